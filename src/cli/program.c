#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXE_PATH_MAX = 4096 };

static bool usable(const char *path)
{
    return access(path, X_OK) == 0;
}

// "DIR/NAME" with DIR as seen from this executable's own folder.
static bool beside(const char *dir, const char *name, char *path, size_t room)
{
    char exe[EXE_PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return false;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    int written = snprintf(path, room, "%s/%s/%s", exe, dir, name);
    return written > 0 && (size_t)written < room && usable(path);
}

bool find_companion(const char *name, const char *folder, const char *variable, char *path, size_t room)
{
    const char *named = getenv(variable);
    if (named != NULL && named[0] != '\0') {
        int written = snprintf(path, room, "%s", named);
        return written > 0 && (size_t)written < room && usable(path);
    }
    char in_build[64];
    snprintf(in_build, sizeof in_build, "../%s", folder);
    if (beside("../libexec/sandbox-engine", name, path, room) || beside(in_build, name, path, room))
        return true;
    int written = snprintf(path, room, "%s/%s", SANDBOX_LIBEXEC_DIR, name);
    return written > 0 && (size_t)written < room && usable(path);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// Up to end of file; false at the deadline, or with more than `room`-1 bytes.
static bool read_all(int fd, int64_t deadline, char *output, size_t room)
{
    for (size_t len = 0; len < room;) {
        int64_t left = deadline - now_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = left > 0 ? poll(&p, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return false;
        ssize_t n = read(fd, output + len, room - len);
        if (n == 0) {
            output[len] = '\0';
            return true;
        }
        if (n < 0 && errno != EINTR)
            return false;
        len += n > 0 ? (size_t)n : 0;
    }
    return false;
}

static int spawn(char *const argv[], int out, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    int r = posix_spawn(ret_pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return r;
}

int run_and_read(char *const argv[], unsigned timeout_s, char *output, size_t room)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    pid_t pid;
    int r = spawn(argv, ends[1], &pid);
    close(ends[1]);
    bool whole = r == 0 && read_all(ends[0], now_ms() + (int64_t)timeout_s * 1000, output, room);
    close(ends[0]);
    if (r != 0)
        return -1;
    if (!whole)
        kill(pid, SIGTERM);
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return whole && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// see program.h
#include "program.h"

#include "system.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum { SAID_MAX = 1 << 20 };

char *built(const char *name)
{
    const char *build = getenv("SANDBOX_BUILD");
    char *path = NULL;
    if (build == NULL || asprintf(&path, "%s/src/%s", build, name) < 0)
        fail_msg("SANDBOX_BUILD names no build folder");
    return path;
}

static pid_t spawn(const char *const *argv, int out, int err)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, 0);
    dup2(out, 1);
    if (err >= 0)
        dup2(err, 2);
    execv(argv[0], (char *const *)argv);
    _exit(127);
}

int wait_program(pid_t pid, unsigned ms)
{
    int status = 0;
    for (uint64_t end = now_ms() + patient(ms); waitpid(pid, &status, WNOHANG) == 0; wait_ms(10))
        if (now_ms() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -2;
        }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// One read from `fd` into the growing text; false at its end.
static bool more(int fd, char *text, size_t *n)
{
    ssize_t r = read(fd, text + *n, SAID_MAX - *n);
    if (r <= 0)
        return false;
    *n += (size_t)r;
    text[*n] = '\0';
    return true;
}

void run_program(const char *const *argv, struct said *ret_said)
{
    int out[2], err[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    pid_t pid = spawn(argv, out[1], err[1]);
    assert_true(pid > 0);
    close(out[1]);
    close(err[1]);
    ret_said->out = calloc(1, SAID_MAX + 1);
    ret_said->err = calloc(1, SAID_MAX + 1);
    size_t n = 0, m = 0;
    uint64_t end = now_ms() + patient(60000);
    struct pollfd p[2] = {{.fd = out[0], .events = POLLIN}, {.fd = err[0], .events = POLLIN}};
    while ((p[0].fd >= 0 || p[1].fd >= 0) && now_ms() < end && poll(p, 2, 1000) >= 0) {
        if (p[0].revents != 0 && !more(out[0], ret_said->out, &n))
            p[0].fd = -1;
        if (p[1].revents != 0 && !more(err[0], ret_said->err, &m))
            p[1].fd = -1;
    }
    close(out[0]);
    close(err[0]);
    ret_said->exit_code = wait_program(pid, 5000);
}

void said_free(struct said *said)
{
    free(said->out);
    free(said->err);
    *said = (struct said){0};
}

pid_t start_program(const char *const *argv, int *ret_out, char **ret_line)
{
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    pid_t pid = spawn(argv, out[1], -1);
    assert_true(pid > 0);
    close(out[1]);
    char *line = calloc(1, 4096);
    for (size_t n = 0; n < 4095 && read(out[0], line + n, 1) == 1 && line[n] != '\n'; n++)
        ;
    line[strcspn(line, "\n")] = '\0';
    *ret_out = out[0];
    *ret_line = line;
    return pid;
}

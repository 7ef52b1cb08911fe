#include "agent/host_api.h"

#include "agent/host_api_files.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "sys/fdpass.h"
#include "wire/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

enum { BACKLOG = 64, ACCEPTS_MAX = 16 };

#define PRELOAD_NAME "preload.js"

struct host_api {
    struct agent *agent;
    int listener, feed;
    int held;  // accepted, and not passed on yet; -1: none
    struct watch *on_listener, *on_feed;
    struct buf preload;
};

// ---- connections ----

static void shut(struct host_api *h)
{
    h->on_listener = watch_remove(h->on_listener);
    h->on_feed = watch_remove(h->on_feed);
    close_fd(&h->held);
    close_fd(&h->listener);
    close_fd(&h->feed);
}

// True: it has been, or cannot be, passed on; false: the feed is full.
static bool pass_on(struct host_api *h)
{
    ssize_t n = fdpass_send(h->feed, "c", 1, &h->held, 1);
    if (n == -EAGAIN || n == -ENOBUFS || n == -ETOOMANYREFS)
        return false;
    close_fd(&h->held);
    return true;
}

static void wait_for(struct host_api *h, bool room)
{
    watch_set(h->on_listener, room ? 0 : EPOLLIN);
    watch_set(h->on_feed, room ? EPOLLOUT : 0);
}

static void on_connection(void *arg, uint32_t events)
{
    struct host_api *h = arg;
    (void)events;
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        h->held = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (h->held < 0)
            return;
        if (!pass_on(h)) {
            wait_for(h, true);
            return;
        }
    }
}

// Nothing is ever received from it: readable is its end.
static void on_feed(void *arg, uint32_t events)
{
    struct host_api *h = arg;
    if ((events & (EPOLLHUP | EPOLLERR)) != 0)
        shut(h);
    else if (h->held < 0 || pass_on(h))
        wait_for(h, false);
}

// ---- the socket ----

// Without a link in its way; it is made where the template has none.
static int open_run(void)
{
    if (mkdir("/run", 0755) < 0 && errno != EEXIST)
        return -errno;
    cleanup_fd int top = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top < 0)
        return -errno;
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    long fd = syscall(SYS_openat2, top, "run", &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

static int listen_there(int run, int *ret_fd)
{
    const char *name = strrchr(HOST_API_SOCKET_PATH, '/') + 1;
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = HOST_API_SOCKET_PATH};
    cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (unlinkat(run, name, 0) < 0 && errno != ENOENT)
        return -errno;
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 || fchmodat(run, name, 0666, 0) < 0 ||
        listen(fd, BACKLOG) < 0)
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

// ---- what is beside it ----

static int write_all(int fd, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t written = write(fd, bytes, n);
        if (written <= 0)
            return written < 0 ? -errno : -ENOSPC;
        bytes += written;
        n -= (size_t)written;
    }
    return 0;
}

// A fresh file takes the place of whatever has that name.
static int place(int dir, const char *name, const uint8_t *bytes, size_t n, mode_t mode)
{
    static const char temporary[] = ".sandbox-place";
    unlinkat(dir, temporary, 0);
    cleanup_fd int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    int r = write_all(fd, bytes, n);
    if (r == 0 && (fchmod(fd, mode) < 0 || renameat(dir, temporary, dir, name) < 0))
        r = -errno;
    if (r < 0)
        unlinkat(dir, temporary, 0);
    return r;
}

static int open_dir(int run)
{
    const char *name = strrchr(HOST_API_DIR, '/') + 1;
    if (mkdirat(run, name, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(run, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int place_files(int run)
{
    cleanup_fd int dir = open_dir(run);
    if (dir < 0)
        return dir;
    int r = place(dir, "host-api", host_api_program, host_api_program_len, 0755);
    if (r == 0)
        r = place(dir, "host_api.py", host_api_py, host_api_py_len, 0644);
    if (r == 0)
        r = place(dir, "host_api.js", host_api_js, host_api_js_len, 0644);
    return r;
}

static int add_variable(struct strv *env, const char *entry)
{
    size_t name = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < env->n; i++)
        if (strncmp(env->v[i], entry, name) == 0)
            return 0;
    return strv_add(env, entry, strlen(entry));
}

// `host-api` is found as a command where the sandbox has not chosen a PATH of its own, and `host_api` as a Python module
// likewise.
static int add_variables(struct strv *env)
{
    static const char *const entries[] = {
        "HOST_API_SOCKET=" HOST_API_SOCKET_PATH,
        "SANDBOX_HOST_API=" HOST_API_SOCKET_PATH,
        "PYTHONPATH=" HOST_API_DIR,
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" HOST_API_DIR,
    };
    int r = 0;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0] && r == 0; i++)
        r = add_variable(env, entries[i]);
    return r;
}

// ---- life ----

static int watch_both(struct host_api *h)
{
    int r = watch_add(h->agent->loop, h->listener, EPOLLIN, on_connection, h, &h->on_listener);
    return r < 0 ? r : watch_add(h->agent->loop, h->feed, 0, on_feed, h, &h->on_feed);
}

static struct host_api *get(struct agent *agent)
{
    if (agent->host_api == NULL && (agent->host_api = calloc(1, sizeof *agent->host_api)) != NULL)
        *agent->host_api = (struct host_api){.agent = agent, .listener = -1, .feed = -1, .held = -1};
    return agent->host_api;
}

int host_api_open(struct agent *agent, int feed, struct err *err)
{
    cleanup_fd int held = feed;
    struct host_api *h = get(agent);
    if (h == NULL)
        return err_set(err, -ENOMEM, "The agent is out of memory.");
    if (held < 0)
        return err_set(err, -EBADF, "There is no way for connections to go.");
    if (fcntl(held, F_SETFL, O_NONBLOCK) < 0)
        return err_set(err, -errno, "The way for connections cannot be used: %s.", strerror(errno));
    shut(h);
    cleanup_fd int run = open_run();
    if (run < 0)
        return err_set(err, run, "The sandbox has no usable /run: %s.", strerror(-run));
    int r = listen_there(run, &h->listener);
    if (r < 0)
        return err_set(err, r, "Cannot listen on " HOST_API_SOCKET_PATH ": %s.", strerror(-r));
    h->feed = take_fd(&held);
    r = place_files(run);
    if (r < 0)
        err_set(err, r, "Cannot place the clients in " HOST_API_DIR ": %s.", strerror(-r));
    if (r == 0 && ((r = add_variables(&agent->env)) < 0 || (r = watch_both(h)) < 0))
        err_set(err, r, "The agent is out of memory.");
    if (r < 0)
        shut(h);
    return r;
}

int host_api_preload(struct agent *agent, const uint8_t *part, size_t n, bool more)
{
    struct host_api *h = get(agent);
    if (h == NULL)
        return -ENOMEM;
    h->preload.max = HOST_API_PRELOAD_MAX;
    int r = buf_append(&h->preload, part, n);
    if (more)
        return r;
    r = buf_error(&h->preload);
    cleanup_fd int run = open_run();
    cleanup_fd int dir = run < 0 ? run : open_dir(run);
    if (r == 0)
        r = dir < 0 ? dir : place(dir, PRELOAD_NAME, h->preload.data, h->preload.len, 0644);
    buf_free(&h->preload);
    return r;
}

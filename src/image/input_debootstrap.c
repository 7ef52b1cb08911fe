// --mmdebstrap: a Debian suite as a tar stream.
//
// mmdebstrap runs inside our own user namespace and believes it is root there.  Its "unshare" mode then makes no further
// user namespace but bind-mounts device nodes where it cannot make them, which is just what such a namespace allows.  So
// packages' maintainer scripts run as root of the namespace: to the host, an id that owns nothing.
#include "base/cleanup.h"
#include "image/apt_sources.h"
#include "image/confine.h"
#include "image/input.h"
#include "image/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ARGS_MAX = 16, SOURCES_MAX = 256 * 1024 };

#define SOURCES_FILE "/tmp/from.sources"
#define LIST_FILE "/tmp/from.list"

struct job {
    const struct debootstrap *what;
    int out_fd, log_fd;
    const char *mirror;        // an address, or NULL
    struct buf sources, list;  // package sources to use, by apt's two formats
};

// Only what apt must know of our environment goes in.
static void set_environment(void)
{
    static const char *const kept[] = {"http_proxy", "https_proxy", "no_proxy", "SOURCE_DATE_EPOCH"};
    char *values[4];
    for (size_t i = 0; i < 4; i++) {
        const char *value = getenv(kept[i]);
        values[i] = value != NULL ? strdup(value) : NULL;
    }
    clearenv();
    char epoch[24];
    snprintf(epoch, sizeof epoch, "%d", TREE_EPOCH);
    setenv("SOURCE_DATE_EPOCH", epoch, 1);
    for (size_t i = 0; i < 4; i++)
        if (values[i] != NULL)
            setenv(kept[i], values[i], 1);
    setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
    setenv("TMPDIR", "/tmp", 1);
    setenv("HOME", "/tmp", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
}

static int put_file(const char *path, const struct buf *text)
{
    cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return fd >= 0 && write(fd, text->data, text->len) == (ssize_t)text->len ? 0 : -EIO;
}

// In the confined child.
static int run(void *arg)
{
    struct job *job = arg;
    const struct debootstrap *what = job->what;
    const char *args[ARGS_MAX] = {"mmdebstrap", "--mode=unshare", "--variant=minbase", "--format=tar"};
    size_t n = 4;
    char include[4096];
    if (what->include != NULL) {
        snprintf(include, sizeof include, "--include=%s", what->include);
        args[n++] = include;
    }
    args[n++] = "--";
    args[n++] = what->suite;
    args[n++] = "-";
    if (job->mirror != NULL)
        args[n++] = job->mirror;
    if (job->sources.len > 0 && put_file(SOURCES_FILE, &job->sources) == 0)
        args[n++] = SOURCES_FILE;
    if (job->list.len > 0 && put_file(LIST_FILE, &job->list) == 0)
        args[n++] = LIST_FILE;
    set_environment();
    cleanup_fd int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (dup2(null, STDIN_FILENO) >= 0 && dup2(job->out_fd, STDOUT_FILENO) >= 0 && dup2(job->log_fd, STDERR_FILENO) >= 0)
        execvp("mmdebstrap", (char *const *)args);
    dprintf(job->log_fd, "E: mmdebstrap cannot be run: %s (install the package mmdebstrap)\n", strerror(errno));
    return 127;
}

static bool is_deb822(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL && strcmp(dot, ".sources") == 0;
}

int input_debootstrap(const struct debootstrap *what, struct input *ret_input, bool *ret_host_sources, struct err *err)
{
    cleanup_buf struct buf sources = BUF_INIT(SOURCES_MAX);
    cleanup_buf struct buf list = BUF_INIT(SOURCES_MAX);
    bool host = what->mirror == NULL && apt_sources_of_host(what->suite, &sources, &list);
    // Read here: the child may not be allowed to, and has another /tmp.
    bool from_file = what->mirror != NULL && strstr(what->mirror, "://") == NULL;
    int r = from_file ? apt_sources_read(what->mirror, is_deb822(what->mirror) ? &sources : &list) : 0;
    if (r < 0)
        return err_set(err, r, "--mirror %s: %s", what->mirror, strerror(-r));
    int stream[2];
    cleanup_fd int log = memfd_create("log", MFD_CLOEXEC);
    if (log < 0 || pipe2(stream, O_CLOEXEC) < 0)
        return err_set(err, -errno, "no pipe: %s", strerror(errno));
    struct job job = {.what = what,
                      .mirror = from_file ? NULL : what->mirror,
                      .out_fd = stream[1],
                      .log_fd = log,
                      .sources = sources,
                      .list = list};
    pid_t pid = 0;
    const int keep[] = {job.out_fd, job.log_fd};
    const struct confine how = {.network = true, .fn = run, .arg = &job, .keep = keep, .keeps = 2};
    r = confine_start(&how, &pid, err);
    close(stream[1]);
    if (r < 0) {
        close(stream[0]);
        return r;
    }
    *ret_input = (struct input){.tar_fd = stream[0], .writer = pid, .log_fd = take_fd(&log)};
    *ret_host_sources = host;
    return 0;
}

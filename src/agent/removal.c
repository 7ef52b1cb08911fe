#include "agent/removal.h"

#include "agent/files.h"
#include "agent/reap.h"
#include "agent/tree_remove.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

struct removal {
    struct agent *agent;
    struct child child;
    int report;  // the child writes one negative errno, or 0
    char *path;
    removal_done_fn *done;
    void *arg;
};

static struct removal *removal_free(struct removal *r)
{
    close_fd(&r->report);
    free(r->path);
    free(r);
    return NULL;
}

static void fill(struct answer *a, const char *path, int r)
{
    if (r < 0) {
        answer_file_error(a, "remove", path, r);
        return;
    }
    sandbox__guest__remove_result__init(&a->body.remove);
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_REMOVE;
    a->result.remove = &a->body.remove;
}

static void on_exit_of_child(void *arg, int status, const struct rusage *usage)
{
    struct removal *r = arg;
    int result;
    // A child that died without a word was killed from outside (memory): an error of the guest's system.
    if (read(r->report, &result, sizeof result) != sizeof result)
        result = -EINTR;
    if (r->done != NULL) {
        cleanup_answer struct answer a;
        answer_init(&a);
        fill(&a, r->path, result);
        r->done(r->arg, &a);
    }
    removal_free(r);
}

static _Noreturn void child(int dir, const char *name, int report)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // Only these two: copies of the lines must not stay open when the agent closes its own.
    if (dup2(dir, 3) < 0 || dup2(report, 4) < 0)
        _exit(1);
    syscall(SYS_close_range, 5U, ~0U, 0U);
    int result = tree_remove(3, name);
    _exit(write(4, &result, sizeof result) == sizeof result ? 0 : 1);
}

// Moves a descriptor out of the way of the child's fixed numbers.  A new descriptor or a negative errno.
static int above_fixed(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 5);
    return moved < 0 ? -errno : moved;
}

static int launch(struct removal *r, const struct place *p)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    r->report = ends[0];
    cleanup_fd int theirs = ends[1];
    cleanup_fd int dir = above_fixed(p->dir);
    cleanup_fd int report = above_fixed(theirs);
    if (dir < 0 || report < 0)
        return dir < 0 ? dir : report;
    r->child.pid = fork();
    if (r->child.pid < 0)
        return -errno;
    if (r->child.pid == 0)
        child(dir, p->name, report);
    reaper_add(r->agent->reaper, &r->child);
    return 0;
}

static struct removal *start_child(struct agent *agent, const char *path, const struct place *p, removal_done_fn *done,
                                   void *arg, struct answer *a)
{
    struct removal *r = calloc(1, sizeof *r);
    if (r != NULL) {
        *r = (struct removal){.agent = agent, .report = -1, .path = strdup(path), .done = done, .arg = arg};
        r->child = (struct child){.on_exit = on_exit_of_child, .arg = r};
    }
    int error = r == NULL || r->path == NULL ? -ENOMEM : launch(r, p);
    if (error == 0)
        return r;
    fill(a, path, error);
    return r != NULL ? removal_free(r) : NULL;
}

// What needs no child: a file, an empty directory, or an error.  1: a tree that does.
static int remove_one(const struct place *p, bool wants_dir, bool recursive)
{
    struct stat st;
    if (fstatat(p->dir, p->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode) && wants_dir)
        return -ENOTDIR;
    if (unlinkat(p->dir, p->name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) == 0)
        return 0;
    return S_ISDIR(st.st_mode) && errno == ENOTEMPTY && recursive ? 1 : -errno;
}

static void refuse_root(struct answer *a, const char *path)
{
    struct err e;
    err_set(&e, EBUSY, "Cannot remove %.200s: the workspace itself stays; remove what is in it.", path);
    answer_refuse(a, STATUS(DENIED), &e);
}

struct removal *removal_start(struct agent *agent, const Sandbox__Guest__Remove *request, bool allow_outside,
                              removal_done_fn *done, void *arg, struct answer *a)
{
    cleanup_target struct target t = TARGET_INIT;
    if (!target_open(&t, &request->path, allow_outside, a))
        return NULL;
    cleanup_place struct place p = PLACE_INIT;
    int r = resolve(&t.scope, t.rest, false, &p);
    if (r == 0 && p.name[0] == '\0') {
        refuse_root(a, t.path);
        return NULL;
    }
    if (r == 0)
        r = remove_one(&p, t.wants_dir, request->recursive);
    if (r > 0)
        return start_child(agent, t.path, &p, done, arg, a);
    fill(a, t.path, r);
    return NULL;
}

void removal_cancel(struct removal *r)
{
    r->done = NULL;
    kill(r->child.pid, SIGKILL);
}

#include "image/builder.h"

#include "base/cleanup.h"
#include "image/mkfs.h"
#include "image/neutral.h"
#include "image/stage.h"
#include "image/tree_read.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

_Static_assert(sizeof(struct builder_report) <= PIPE_BUF, "a report is written whole or not at all");

static void report(const struct builder_job *job, struct builder_report *report, enum builder_phase phase)
{
    report->phase = phase;
    if (write(job->report_fd, report, sizeof *report) != (ssize_t)sizeof *report)
        _exit(1);
}

// A folder of the private tmpfs that confine.c made the working directory.
static int scratch(const char *name, struct err *err)
{
    if (mkdir(name, 0700) < 0)
        return err_set(err, -errno, "staging: %s", strerror(errno));
    int fd = open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? err_set(err, -errno, "staging: %s", strerror(errno)) : fd;
}

static int fill_tree(const struct builder_job *job, int spool, struct tree *tree, struct builder_report *out)
{
    struct read_counts counts = {0};
    int r = tree_read(job->tar_fd, spool, tree, &counts, &out->err);
    out->devices = counts.devices;
    out->xattrs = counts.xattrs;
    if (r == 0 && job->strip)
        r = neutral_strip(tree, spool, job->debian_suite, &out->err);
    if (r == 0)
        r = neutral_require_folders(tree, &out->err);
    out->has_shell = neutral_has_shell(tree);
    return r;
}

static int build(const struct builder_job *job, struct builder_report *out)
{
    cleanup_fd int spool = scratch("spool", &out->err);
    cleanup_fd int stage = spool < 0 ? spool : scratch("stage", &out->err);
    if (stage < 0)
        return stage;
    __attribute__((cleanup(tree_free))) struct tree tree;
    tree_init(&tree);
    report(job, out, BUILDER_READING);
    int r = fill_tree(job, spool, &tree, out);
    if (r < 0)
        return r;
    report(job, out, BUILDER_STAGING);
    struct stage_size size;
    r = stage_tree(&tree, spool, stage, &size, &out->err);
    if (r < 0)
        return r;
    out->files = size.files;
    report(job, out, BUILDER_MKFS);
    return mkfs_image(stage, job->image_fd, &size, job->headroom_mib, &out->err);
}

int builder_run(void *arg)
{
    const struct builder_job *job = arg;
    struct builder_report out = {0};
    int r = build(job, &out);
    report(job, &out, r == 0 ? BUILDER_DONE : BUILDER_FAILED);
    return r == 0 ? 0 : 1;
}

#include "jailer/release.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdlib.h>

enum {
    THREADS = 2,
    WAITING_MAX = 64,  // beyond, who lets go waits: disks must not be made faster than they are freed
};

struct releases {
    struct workers *workers;
    unsigned waiting;
};

struct farewell {
    struct job job;
    struct releases *releases;
    int fd;
};

static void run(struct job *job)
{
    close_fd(&((struct farewell *)job)->fd);
}

static void finish(struct job *job, bool ran)
{
    (void)ran;
    struct farewell *f = (struct farewell *)job;
    close_fd(&f->fd);
    f->releases->waiting--;
    free(f);
}

int releases_new(struct loop *loop, struct releases **ret_releases)
{
    struct releases *r = calloc(1, sizeof *r);
    if (r == NULL)
        return -ENOMEM;
    int error = workers_new(loop, THREADS, &r->workers);
    if (error < 0) {
        free(r);
        return error;
    }
    *ret_releases = r;
    return 0;
}

struct releases *releases_free(struct releases *releases)
{
    if (releases == NULL)
        return NULL;
    releases->workers = workers_free(releases->workers);
    free(releases);
    return NULL;
}

void release(struct releases *releases, int fd)
{
    cleanup_fd int owned = fd;
    struct farewell *f = fd >= 0 && releases != NULL && releases->waiting < WAITING_MAX ? malloc(sizeof *f) : NULL;
    if (f == NULL)
        return;
    *f = (struct farewell){.job = {.run = run, .finish = finish}, .releases = releases, .fd = take_fd(&owned)};
    releases->waiting++;
    workers_submit(releases->workers, &f->job);
}

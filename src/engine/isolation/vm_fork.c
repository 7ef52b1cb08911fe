#include "engine/isolation/vm_fork.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>

// A machine to be started when its snapshot is loaded.
struct waiting {
    STAILQ_ENTRY(waiting) link;
    struct jail_start start;
    void *owner;
    driver_done_fn *done;
    void *arg;
    struct driver_suspended *suspended;
};

STAILQ_HEAD(waiting_list, waiting);

// A snapshot, or a suspended machine that comes back, with its files loaded or being loaded.
struct loaded {
    TAILQ_ENTRY(loaded) link;
    struct vm_forks *all;
    char id[KEPT_ID_ROOM];               // "": a suspended one's
    struct driver_suspended *suspended;  // what it is loaded from, instead of
    int folder;                          // while it is being loaded
    bool ready, starting;
    bool gone;  // the snapshot is
    struct kept_key key;
    struct snapshot_files files;
    uint64_t bytes, used_ns;
    struct waiting_list waiting;
    struct job job;
    int error;
    struct err err;
};

TAILQ_HEAD(loaded_list, loaded);

struct driver_suspended {
    struct kept kept;
    struct snapshot_key key;
    bool busy;       // it is being loaded, and
    bool forgotten;  // not wanted after that
};

struct vm_forks {
    struct vm_driver *driver;
    struct loaded_list list;
    bool stopping;
};

static void suspended_free(struct driver_suspended *s)
{
    kept_close(&s->kept);
    free(s);
}

static void loaded_free(struct loaded *l)
{
    TAILQ_REMOVE(&l->all->list, l, link);
    snapshot_files_close(&l->files);
    close_fd(&l->folder);
    free(l);
}

// ---- letting go of memory ----

static void keep_within_limits(struct vm_forks *all, const struct loaded *newest)
{
    for (;;) {
        struct loaded *l, *oldest = NULL;
        uint64_t bytes = 0;
        unsigned n = 0;
        TAILQ_FOREACH(l, &all->list, link)
        {
            if (!l->ready)
                continue;
            n++;
            bytes += l->bytes;
            if (l != newest && (oldest == NULL || l->used_ns < oldest->used_ns))
                oldest = l;
        }
        if (oldest == NULL || (n <= FORKS_LOADED_MAX && bytes <= vm_config_of(all->driver)->template_memory_mib << 20))
            return;
        log_info("snapshot_unloaded", log_str("snapshot", oldest->id));
        loaded_free(oldest);
    }
}

// ---- starting ----

// It is free to be tried again, or to be forgotten.
static void give_back(struct driver_suspended *s)
{
    if (s == NULL)
        return;
    s->busy = false;
    if (s->forgotten)
        suspended_free(s);
}

static void refuse(struct waiting *w, int error, const char *detail)
{
    give_back(w->suspended);
    const struct driver_answer answer = {.error = error, .detail = detail, .control = -1, .dial = -1, .network = NETWORK_INIT};
    w->done(w->arg, &answer);
    free(w);
}

static int launch(struct loaded *l, const struct jail_start *start, void *owner, driver_done_fn *done, void *arg,
                  const char **ret_why)
{
    int r = vm_key_fits(l->all->driver, &l->key.machine, start, ret_why);
    const struct vm_launch what = {.start = *start, .from = &l->files, .key = &l->key.machine, .owner = owner};
    l->used_ns = mono_ns();
    return r == 0 ? vm_launch(l->all->driver, &what, done, arg) : r;
}

// A suspended machine that was started is used up; one that was not can be tried again.
static void on_started(void *arg, const struct driver_answer *answer)
{
    struct waiting w = *(struct waiting *)arg;
    free(arg);
    w.suspended->forgotten = w.suspended->forgotten || answer->error == 0;
    give_back(w.suspended);
    w.done(w.arg, answer);
}

// 0: `w` is taken over.
static int start_one(struct loaded *l, struct waiting *w, const char **ret_why)
{
    int r = w->suspended != NULL ? launch(l, &w->start, w->owner, on_started, w, ret_why)
                                 : launch(l, &w->start, w->owner, w->done, w->arg, ret_why);
    if (r == 0 && w->suspended == NULL)
        free(w);
    return r;
}

static void start_waiting(struct loaded *l)
{
    struct waiting *w;
    l->starting = true;  // what is told here may ask for more
    while ((w = STAILQ_FIRST(&l->waiting)) != NULL) {
        STAILQ_REMOVE_HEAD(&l->waiting, link);
        const char *why = l->error < 0 ? l->err.text : "it could not be asked for";
        int r = l->error < 0 ? l->error : start_one(l, w, &why);
        if (r < 0)
            refuse(w, r, why);
    }
    l->starting = false;
}

// ---- loading ----

static struct loaded *of_job(struct job *job)
{
    return (struct loaded *)((char *)job - offsetof(struct loaded, job));
}

static void load_run(struct job *job)
{
    struct loaded *l = of_job(job);
    if (l->suspended != NULL) {
        l->error = kept_load(&l->suspended->kept, &l->key.machine, &l->files, &l->err);
        return;
    }
    struct kept kept;
    l->error = kept_open(l->folder, l->id, &kept, &l->key, &l->err);
    if (l->error == 0) {
        l->error = kept_load(&kept, &l->key.machine, &l->files, &l->err);
        kept_close(&kept);
    }
}

static void load_finish(struct job *job, bool ran)
{
    struct loaded *l = of_job(job);
    struct stat st;
    if (!ran)
        l->error = err_set(&l->err, -ECANCELED, "the engine ends");
    if (l->error < 0)
        log_error("snapshot_refused", log_str("snapshot", l->id), log_errno(l->error), log_str("reason", l->err.text));
    l->ready = l->error == 0;
    l->bytes = l->ready && fstat(l->files.memory, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    close_fd(&l->folder);
    if (l->ready && l->suspended == NULL)
        keep_within_limits(l->all, l);
    if (l->suspended != NULL && l->suspended->forgotten)
        l->error = err_set(&l->err, -ECANCELED, "it is not wanted any more");
    start_waiting(l);
    if (!l->ready || l->suspended != NULL || l->gone)
        loaded_free(l);
}

static struct loaded *find(struct vm_forks *all, const char *id)
{
    struct loaded *l;
    TAILQ_FOREACH(l, &all->list, link)
    if (strcmp(l->id, id) == 0)
        return l;
    return NULL;
}

void vm_fork_unload(void *self, const char *snapshot)
{
    struct loaded *l = find(vm_forks_of(self), snapshot);
    if (l == NULL)
        return;
    l->gone = true;
    if (l->ready && !l->starting) {
        log_info("snapshot_unloaded", log_str("snapshot", l->id));
        loaded_free(l);
    }
}

static struct loaded *load(struct vm_forks *all, const struct driver_start *what)
{
    struct loaded *l = calloc(1, sizeof *l);
    if (l == NULL)
        return NULL;
    *l = (struct loaded){.all = all, .suspended = what->suspended, .folder = -1, .files = SNAPSHOT_FILES_INIT};
    STAILQ_INIT(&l->waiting);
    if (what->suspended != NULL) {
        what->suspended->busy = true;
        l->key.machine = what->suspended->key;
    } else {
        snprintf(l->id, sizeof l->id, "%s", what->snapshot);
        l->folder = fcntl(what->folder, F_DUPFD_CLOEXEC, 0);
        if (l->folder < 0) {
            free(l);
            return NULL;
        }
    }
    TAILQ_INSERT_TAIL(&all->list, l, link);
    l->job = (struct job){.run = load_run, .finish = load_finish};
    workers_submit(vm_config_of(all->driver)->workers, &l->job);
    return l;
}

int vm_fork_start(struct vm_forks *all, const struct driver_start *what, const struct jail_start *start, driver_done_fn *done,
                  void *arg)
{
    const char *why;
    if (all->stopping)
        return -ECANCELED;
    if (what->suspended != NULL && what->suspended->busy)
        return -EBUSY;
    struct loaded *l = what->suspended == NULL ? find(all, what->snapshot) : NULL;
    if (l != NULL && l->ready && !l->starting &&
        !snapshot_files_unchanged(&l->files)) {  // somebody was at its files: they are checked again
        loaded_free(l);
        l = NULL;
    }
    if (l != NULL && l->ready)
        return launch(l, start, what->owner, done, arg, &why);
    struct waiting *w = malloc(sizeof *w);
    if (w == NULL)
        return -ENOMEM;
    *w = (struct waiting){.start = *start, .owner = what->owner, .done = done, .arg = arg, .suspended = what->suspended};
    if (l == NULL && (l = load(all, what)) == NULL) {
        free(w);
        return -ENOMEM;
    }
    STAILQ_INSERT_TAIL(&l->waiting, w, link);
    return 0;
}

// ---- suspended ones ----

struct driver_suspended *vm_fork_suspended(struct kept *kept, const struct snapshot_key *key)
{
    struct driver_suspended *s = malloc(sizeof *s);
    if (s == NULL)
        return NULL;
    *s = (struct driver_suspended){.kept = *kept, .key = *key};
    *kept = KEPT_INIT;
    return s;
}

void vm_fork_forget(void *self, struct driver_suspended *suspended)
{
    (void)self;
    suspended->forgotten = true;
    if (!suspended->busy)
        suspended_free(suspended);
}

int vm_forks_new(struct vm_driver *driver, struct vm_forks **ret_forks)
{
    struct vm_forks *all = calloc(1, sizeof *all);
    if (all == NULL)
        return -ENOMEM;
    *all = (struct vm_forks){.driver = driver};
    TAILQ_INIT(&all->list);
    *ret_forks = all;
    return 0;
}

void vm_forks_stop(struct vm_forks *all)
{
    all->stopping = true;
}

struct vm_forks *vm_forks_free(struct vm_forks *all)
{
    if (all == NULL)
        return NULL;
    while (!TAILQ_EMPTY(&all->list))
        loaded_free(TAILQ_FIRST(&all->list));
    free(all);
    return NULL;
}

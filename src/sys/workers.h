// A few threads for work that blocks (hashing files), beside an event loop.
//
// A job is run once on some worker thread and then finished on the loop's thread; between submit and finish it belongs to the
// pool, and nobody else may touch what `run` reads and writes.  Everything here is called on the loop's thread.
#ifndef SYS_WORKERS_H
#define SYS_WORKERS_H

#include "sys/loop.h"

#include <stdbool.h>

struct workers;

// Embedded in what the job works on; set `run` and `finish`, the rest is the pool's.
struct job {
    void (*run)(struct job *job);  // on a worker thread
    // On the loop's thread.  `ran` is false when the pool was freed before the job's turn came: only let go of memory then.
    void (*finish)(struct job *job, bool ran);
    struct job *next;
};

// Starts `threads` threads (1 to 64), with all signals blocked.  `loop` NULL: the caller has a loop of another kind, and calls
// workers_collect when workers_fd is readable.  0 or a negative errno.
int workers_new(struct loop *loop, unsigned threads, struct workers **ret_workers);
// Waits for running jobs, finishes every job that is left with ran = false, and frees.  NULL is fine; returns NULL.
struct workers *workers_free(struct workers *workers);

// First come, first served.  Never fails: the memory is the caller's.
void workers_submit(struct workers *workers, struct job *job);

int workers_fd(const struct workers *workers);
// Finishes the jobs that have run.
void workers_collect(struct workers *workers);

#endif

#include "sys/workers.h"

#include "base/cleanup.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { THREADS_MAX = 64 };

struct queue {
    struct job *first;
    struct job **end;
};

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct queue todo;  // under `lock`, as the three below
    struct queue done;
    bool stopping;
    int event;            // an eventfd: something is in `done`
    struct watch *watch;  // NULL: somebody else's loop looks at `event`
    unsigned threads;
    pthread_t thread[THREADS_MAX];
};

static void put(struct queue *q, struct job *job)
{
    job->next = NULL;
    *q->end = job;
    q->end = &job->next;
}

static struct job *take(struct queue *q)
{
    struct job *job = q->first;
    if (job != NULL) {
        q->first = job->next;
        if (q->first == NULL)
            q->end = &q->first;
    }
    return job;
}

static void tell_loop(struct workers *w)
{
    uint64_t one = 1;
    ssize_t ignored =
        write(w->event, &one, sizeof one);  // can only fail when the counter is full, which wakes the loop as well
    (void)ignored;
}

static void *work(void *arg)
{
    struct workers *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->todo.first == NULL && !w->stopping)
            pthread_cond_wait(&w->wake, &w->lock);
        if (w->stopping)
            break;
        struct job *job = take(&w->todo);
        pthread_mutex_unlock(&w->lock);
        job->run(job);
        pthread_mutex_lock(&w->lock);
        put(&w->done, job);
        tell_loop(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static struct job *take_done(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    struct job *job = take(&w->done);
    pthread_mutex_unlock(&w->lock);
    return job;
}

void workers_collect(struct workers *w)
{
    uint64_t count;
    ssize_t ignored = read(w->event, &count, sizeof count);
    (void)ignored;
    for (struct job *job = take_done(w); job != NULL; job = take_done(w))
        job->finish(job, true);
}

static void on_done(void *arg, uint32_t events)
{
    (void)events;
    workers_collect(arg);
}

int workers_fd(const struct workers *w)
{
    return w->event;
}

// Threads inherit the signal mask of who makes them: signals are the loop's thread's business.
static int start_threads(struct workers *w, unsigned threads)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = 0;
    for (; w->threads < threads && r == 0; w->threads += r == 0)
        r = -pthread_create(&w->thread[w->threads], NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

int workers_new(struct loop *loop, unsigned threads, struct workers **ret_workers)
{
    if (threads < 1 || threads > THREADS_MAX)
        return -EINVAL;
    struct workers *w = calloc(1, sizeof *w);
    if (w == NULL)
        return -ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->todo.end = &w->todo.first;
    w->done.end = &w->done.first;
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = w->event < 0 ? -errno : 0;
    if (r == 0 && loop != NULL)
        r = watch_add(loop, w->event, EPOLLIN, on_done, w, &w->watch);
    if (r == 0)
        r = start_threads(w, threads);
    if (r < 0) {
        workers_free(w);
        return r;
    }
    *ret_workers = w;
    return 0;
}

struct workers *workers_free(struct workers *w)
{
    if (w == NULL)
        return NULL;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->threads; i++)
        pthread_join(w->thread[i], NULL);
    w->watch = watch_remove(w->watch);
    close_fd(&w->event);
    for (struct job *job = take(&w->done); job != NULL; job = take(&w->done))
        job->finish(job, false);
    for (struct job *job = take(&w->todo); job != NULL; job = take(&w->todo))
        job->finish(job, false);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return NULL;
}

void workers_submit(struct workers *w, struct job *job)
{
    pthread_mutex_lock(&w->lock);
    put(&w->todo, job);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

#include "watch.h"

#include "cli.h"
#include "live.h"

#include <errno.h>
#include <libsandbox.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int current_mode = WATCH_EXIT;
static atomic_int came;
static sem_t handled;
static sigset_t signals;

// What the main thread has for ending by itself once everything is destroyed.  It may be stuck in a write that nobody reads.
enum { LEAVE_S = 3 };

static void leave(int signal)
{
    live_restore();
    _exit(CLI_SIGNAL_BASE + signal);
}

static void on_first(int signal)
{
    atomic_store(&came, signal);
    int mode = atomic_load(&current_mode);
    if (mode == WATCH_EXIT)
        leave(signal);
    if (mode == WATCH_CLEANUP)
        sandbox_cleanup();
    sem_post(&handled);
    if (mode != WATCH_CLEANUP)
        return;
    const struct timespec patience = {.tv_sec = LEAVE_S};
    int second;
    do
        second = sigtimedwait(&signals, NULL, &patience);
    while (second < 0 && errno == EINTR);
    leave(second > 0 ? second : signal);
}

static void *take_signals(void *arg)
{
    (void)arg;
    for (;;) {
        int signal;
        if (sigwait(&signals, &signal) != 0)
            continue;
        if (atomic_load(&came) != 0)
            leave(signal);
        on_first(signal);
    }
    return NULL;
}

int watch_start(void)
{
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    sem_init(&handled, 0, 0);
    pthread_t thread;
    int r = pthread_create(&thread, NULL, take_signals, NULL);
    if (r != 0) {
        fprintf(stderr, "sandbox-cli: cannot start a thread: %s\n", strerror(r));
        return -1;
    }
    pthread_detach(thread);
    return 0;
}

void watch_mode(enum watch_mode mode)
{
    atomic_store(&current_mode, mode);
}

int watch_signal(void)
{
    return atomic_load(&came);
}

int watch_wait(unsigned ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (sem_timedwait(&handled, &until) < 0)
        if (errno != EINTR)
            return 0;
    // It may be waited for again.
    sem_post(&handled);
    return watch_signal();
}

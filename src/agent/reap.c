#include "agent/reap.h"

#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

enum { REAP_BATCH = 512 };  // a guest that makes zombies by the thousand must not keep the loop from its other work

struct reaper {
    struct loop *loop;
    int fd;
    struct watch *watch;
    struct timer again;
    struct child *children;
};

static void reap(void *arg)
{
    struct reaper *r = arg;
    for (int i = 0; i < REAP_BATCH; i++) {
        int status;
        struct rusage usage;
        pid_t pid = wait4(-1, &status, WNOHANG | __WALL, &usage);
        if (pid <= 0)
            return;
        for (struct child *c = r->children; c != NULL; c = c->next) {
            if (c->pid != pid)
                continue;
            reaper_remove(r, c);
            c->on_exit(c->arg, status, &usage);
            break;
        }
    }
    timer_set(r->loop, &r->again, mono_ns());
}

static void on_signal(void *arg, uint32_t events)
{
    struct reaper *r = arg;
    struct signalfd_siginfo info[8];
    // The signal is taken first and the children after it: one that ends in between raises it anew.
    while (read(r->fd, info, sizeof info) > 0)
        ;
    reap(r);
}

int reaper_new(struct loop *loop, struct reaper **ret_reaper)
{
    struct reaper *r = calloc(1, sizeof *r);
    if (r == NULL)
        return -ENOMEM;
    r->loop = loop;
    timer_init(&r->again, reap, r);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    r->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    int error = r->fd < 0 ? -errno : watch_add(loop, r->fd, EPOLLIN, on_signal, r, &r->watch);
    if (error < 0) {
        close_fd(&r->fd);
        free(r);
        return error;
    }
    timer_set(loop, &r->again, mono_ns());  // children that ended before SIGCHLD was watched
    *ret_reaper = r;
    return 0;
}

struct reaper *reaper_free(struct reaper *reaper)
{
    if (reaper == NULL)
        return NULL;
    timer_cancel(reaper->loop, &reaper->again);
    reaper->watch = watch_remove(reaper->watch);
    close_fd(&reaper->fd);
    free(reaper);
    return NULL;
}

void reaper_add(struct reaper *reaper, struct child *child)
{
    child->next = reaper->children;
    reaper->children = child;
}

void reaper_remove(struct reaper *reaper, struct child *child)
{
    for (struct child **at = &reaper->children; *at != NULL; at = &(*at)->next)
        if (*at == child) {
            *at = child->next;
            return;
        }
}

#include "vmm/processors.h"

#include "vmm/exit.h"
#include "vmm/filter.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct processor {
    struct processors *all;
    struct vcpu *vcpu;
    pthread_t thread;
    bool started;
    struct exit_counters counters;
};

struct processors {
    struct processors_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed;  // `running`, `closing` or `parked`
    bool running;            // what all shall do
    bool closing;
    size_t parked;
    struct processors_end end;
    struct processor processor[];
};

static void on_signal(int number)
{
    // Only there so that KVM_RUN returns.
}

void processors_end(struct processors *processors, enum vmm_reason reason, const char *detail)
{
    pthread_mutex_lock(&processors->lock);
    bool first = processors->end.reason == VMM_REASON_NONE;
    if (first) {
        processors->end.reason = reason;
        snprintf(processors->end.detail, sizeof processors->end.detail, "%s", detail);
    }
    pthread_mutex_unlock(&processors->lock);
    uint64_t one = 1;
    ssize_t n = first ? write(processors->config.ended_fd, &one, sizeof one) : 0;
    (void)n;
}

void processors_ended(struct processors *processors, struct processors_end *ret_end)
{
    pthread_mutex_lock(&processors->lock);
    *ret_end = processors->end;
    pthread_mutex_unlock(&processors->lock);
}

// Waits until the vCPUs shall run, or for ever if `dead`.  False: the thread shall end.
static bool park(struct processors *all, bool dead)
{
    pthread_mutex_lock(&all->lock);
    all->parked++;
    pthread_cond_broadcast(&all->changed);
    while ((dead || !all->running) && !all->closing)
        pthread_cond_wait(&all->changed, &all->lock);
    all->parked--;
    bool go_on = !all->closing;
    pthread_mutex_unlock(&all->lock);
    return go_on;
}

static bool confine(struct processors *all)
{
    int r = all->config.filter != NULL ? filter_install(all->config.filter, FILTER_THIS_THREAD) : 0;
    if (r < 0)
        processors_end(all, VMM_REASON_SETUP_FAILED, "a vCPU thread could not give up its system calls");
    return r == 0;
}

// Runs the guest until it is paused (true) or this vCPU is at its end (false).
static bool run(struct processor *p)
{
    struct processors *all = p->all;
    for (;;) {
        int r = vcpu_run(p->vcpu);
        if (r == -EINTR) {
            exit_count(&p->counters.signal);
            return true;
        }
        if (r == -EAGAIN)
            continue;
        struct exit_end end = {.reason = VMM_REASON_NONE};
        if (r < 0)
            exit_run_failed(r, &end);
        else
            exit_handle(vcpu_exit(p->vcpu), all->config.ports, all->config.memory, &p->counters, &end);
        if (end.reason != VMM_REASON_NONE) {
            processors_end(all, end.reason, end.detail);
            return false;
        }
    }
}

static void *processor_main(void *arg)
{
    struct processor *p = arg;
    bool alive = true, confined = false;
    while (park(p->all, !alive)) {
        if (!confined) {
            confined = true;
            alive = confine(p->all);
        }
        alive = alive && run(p);
    }
    return NULL;
}

// A thread has the name that its maker has at that moment.  Another's name can only be set through /proc, which the jail has
// not; and by the time that it runs, what names itself may be beyond its filter.
static int start_named(struct processor *p, size_t number)
{
    char own[16] = "", name[16];
    snprintf(name, sizeof name, "vcpu%hhu", (unsigned char)number);
    pthread_getname_np(pthread_self(), own, sizeof own);
    pthread_setname_np(pthread_self(), name);
    int r = pthread_create(&p->thread, NULL, processor_main, p);
    pthread_setname_np(pthread_self(), own);
    p->started = r == 0;
    return -r;
}

static int start_threads(struct processors *all)
{
    struct sigaction action = {.sa_handler = on_signal};
    if (sigaction(PROCESSORS_SIGNAL, &action, NULL) < 0)
        return -errno;
    for (size_t i = 0; i < all->config.count; i++) {
        struct processor *p = &all->processor[i];
        p->all = all;
        p->vcpu = all->config.vcpus[i];
        int r = start_named(p, i);
        if (r < 0)
            return r;
    }
    return 0;
}

int processors_new(const struct processors_config *config, struct processors **ret_processors)
{
    struct processors *all = calloc(1, sizeof *all + config->count * sizeof all->processor[0]);
    if (all == NULL)
        return -ENOMEM;
    all->config = *config;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
    int r = start_threads(all);
    if (r < 0) {
        processors_free(all);
        return r;
    }
    *ret_processors = all;
    return 0;
}

static void kick_all(struct processors *all)
{
    for (size_t i = 0; i < all->config.count; i++) {
        if (!all->processor[i].started)
            continue;
        vcpu_kick(all->processor[i].vcpu);
        pthread_kill(all->processor[i].thread, PROCESSORS_SIGNAL);
    }
}

struct processors *processors_free(struct processors *processors)
{
    if (processors == NULL)
        return NULL;
    pthread_mutex_lock(&processors->lock);
    processors->closing = true;
    processors->running = false;
    pthread_cond_broadcast(&processors->changed);
    pthread_mutex_unlock(&processors->lock);
    kick_all(processors);
    for (size_t i = 0; i < processors->config.count; i++)
        if (processors->processor[i].started)
            pthread_join(processors->processor[i].thread, NULL);
    pthread_cond_destroy(&processors->changed);
    pthread_mutex_destroy(&processors->lock);
    free(processors);
    return NULL;
}

int processors_run(struct processors *processors)
{
    pthread_mutex_lock(&processors->lock);
    bool already = processors->running;
    if (!already) {
        // All are parked, or on their way there with nothing done yet.
        for (size_t i = 0; i < processors->config.count; i++)
            vcpu_clear_kick(processors->processor[i].vcpu);
        processors->running = true;
        pthread_cond_broadcast(&processors->changed);
    }
    pthread_mutex_unlock(&processors->lock);
    return already ? -EALREADY : 0;
}

int processors_pause(struct processors *processors)
{
    pthread_mutex_lock(&processors->lock);
    bool already = !processors->running;
    processors->running = false;
    if (!already) {
        kick_all(processors);
        while (processors->parked < processors->config.count)
            pthread_cond_wait(&processors->changed, &processors->lock);
    }
    pthread_mutex_unlock(&processors->lock);
    return already ? -EALREADY : 0;
}

bool processors_paused(struct processors *processors)
{
    pthread_mutex_lock(&processors->lock);
    bool paused = !processors->running;
    pthread_mutex_unlock(&processors->lock);
    return paused;
}

void processors_count(struct processors *processors, struct vmm_stats *stats)
{
    for (size_t i = 0; i < processors->config.count; i++) {
        struct exit_counters *c = &processors->processor[i].counters;
        stats->exits_pio += exit_counted(&c->pio);
        stats->exits_mmio += exit_counted(&c->mmio);
        stats->exits_signal += exit_counted(&c->signal);
        stats->exits_other += exit_counted(&c->other);
        stats->unknown_pio += exit_counted(&c->unknown_pio);
        stats->unknown_mmio += exit_counted(&c->unknown_mmio);
    }
}

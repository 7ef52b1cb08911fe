#include "agent/oom_storm.h"

#include "agent/agent.h"
#include "agent/exec.h"
#include "agent/groups.h"
#include "base/clock.h"
#include "sys/loop.h"

#include <errno.h>
#include <stdlib.h>

enum { LOOK_MS = 1000, KILL_STEP_MS = 5 };

struct level {
    uint64_t seen;  // kills, at the last look
    uint64_t level;
    bool killing;  // leftovers, which no exec kills
};

struct oom_storm {
    struct agent *agent;
    struct timer timer;
    uint64_t look_ns;  // the last look
    struct level levels[SLOTS_MAX];
};

// How many kills are new, which a group that was made anew may count from 0.
static uint64_t new_kills(struct level *l, const struct slot *slot)
{
    uint64_t now = slot_oom_kills(slot), before = l->seen;
    l->seen = now;
    return now > before ? now - before : 0;
}

static void look_at(struct oom_storm *s, struct slot *slot, struct level *l, uint64_t drained)
{
    l->level += new_kills(l, slot);
    l->level -= l->level < drained ? l->level : drained;
    if (l->level <= OOM_KILLS_BURST)
        return;
    l->level = 0;
    l->killing = !execs_end_slot(s->agent, slot);
}

static void on_timer(void *arg)
{
    struct oom_storm *s = arg;
    uint64_t now = mono_ns();
    uint64_t looks = (now - s->look_ns) / (LOOK_MS * NS_PER_MS);
    s->look_ns += looks * LOOK_MS * NS_PER_MS;
    bool any = false, killing = false;
    for (unsigned i = 0; i < SLOTS_MAX; i++) {
        struct slot *slot = slot_occupied(s->agent->groups, i);
        struct level *l = &s->levels[i];
        l->killing = l->killing && slot != NULL && !slot_in_use(slot);
        if (slot == NULL)
            continue;
        any = true;
        if (looks > 0)
            look_at(s, slot, l, looks * OOM_KILLS_PER_S);
        if (l->killing)
            killing |= l->killing = !slot_kill(slot, 0);
    }
    if (any)
        timer_set(s->agent->loop, &s->timer, killing ? now + KILL_STEP_MS * NS_PER_MS : s->look_ns + LOOK_MS * NS_PER_MS);
}

int oom_storm_new(struct agent *agent, struct oom_storm **ret_storm)
{
    struct oom_storm *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    s->agent = agent;
    timer_init(&s->timer, on_timer, s);
    *ret_storm = s;
    return 0;
}

struct oom_storm *oom_storm_free(struct oom_storm *storm)
{
    if (storm == NULL)
        return NULL;
    timer_cancel(storm->agent->loop, &storm->timer);
    free(storm);
    return NULL;
}

void oom_storm_watch(struct oom_storm *storm, const struct slot *slot)
{
    storm->levels[slot_number(slot)] = (struct level){.seen = slot_oom_kills(slot)};
    if (timer_is_set(&storm->timer))
        return;
    storm->look_ns = mono_ns();
    timer_set(storm->agent->loop, &storm->timer, storm->look_ns + LOOK_MS * NS_PER_MS);
}

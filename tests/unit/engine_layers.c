#include "engine_stage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, JAIL_VOLUME_ID);
}

static int find(const struct stage *s, const uint8_t id[static JAIL_VOLUME_ID])
{
    for (unsigned i = 0; i < s->layers; i++)
        if (memcmp(s->layer[i], id, JAIL_VOLUME_ID) == 0)
            return (int)i;
    return -1;
}

static void changed(struct stage *s)
{
    qsort(s->layer, s->layers, sizeof s->layer[0], compare);
    atomic_store(&s->play->layers, s->layers);
}

static void add(struct stage *s, const uint8_t id[static JAIL_VOLUME_ID])
{
    memcpy(s->layer[s->layers++], id, JAIL_VOLUME_ID);
    changed(s);
}

void layers_begin(struct stage *s)
{
    for (unsigned i = atomic_load(&s->play->layers); i > 0; i--)
        add(s, (const uint8_t[JAIL_VOLUME_ID]){(uint8_t)i, 1});
}

bool layers_fit(struct stage *s, const struct jail_layers *layers)
{
    atomic_store(&s->play->start_layers, layers->count);
    atomic_store(&s->play->start_copies, layers->copy);
    for (uint32_t i = 0; i < layers->count; i++)
        if (find(s, layers->id[i]) < 0)
            return false;
    return true;
}

static void answer_snapshot(struct stage *s, const struct jail_request *q, int error)
{
    if (!s->slot[q->slot % SLOTS].live)
        error = -ENOENT;
    if (error == 0 && (find(s, q->layers.id[0]) >= 0 || s->layers == LAYERS))
        error = -EEXIST;
    if (error < 0) {
        stage_answer_plain(s, q, error, 0);
        return;
    }
    add(s, q->layers.id[0]);
    struct jail_reply reply = {.op = q->op, .id = q->id, .taken = {.pause_us = 1500, .bytes = (uint64_t)64 << 20}};
    if (jail_answer(s->rig->channel, &reply) < 0)
        s->over = true;
}

// Those of the slot; the others keep their order.
static void cancel(struct stage *s, unsigned slot)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < s->held_snapshots; i++) {
        if (s->held_snapshot[i].slot == slot)
            answer_snapshot(s, &s->held_snapshot[i], -ECANCELED);
        else
            s->held_snapshot[kept++] = s->held_snapshot[i];
    }
    s->held_snapshots = kept;
    atomic_store(&s->play->held_snapshots, kept);
}

void layers_end_slot(struct stage *s, unsigned slot)
{
    cancel(s, slot);
}

static void delete (struct stage *s, const struct jail_request *q)
{
    int at = find(s, q->layers.id[0]);
    int error = atomic_load(&s->play->layer_delete_error);
    atomic_fetch_add(&s->play->layer_deletes, 1);
    if (error == 0 && at < 0)
        error = -ENOENT;
    if (error == 0) {
        memcpy(s->layer[at], s->layer[--s->layers], JAIL_VOLUME_ID);
        changed(s);
    }
    stage_answer_plain(s, q, error, 0);
}

static void list(struct stage *s, const struct jail_request *q)
{
    struct jail_reply reply = {.op = q->op, .id = q->id};
    for (unsigned i = 0; i < s->layers && reply.slot < JAIL_VOLUMES_LISTED; i++)
        if (memcmp(s->layer[i], q->layers.id[0], JAIL_VOLUME_ID) > 0)
            memcpy(reply.volumes[reply.slot++], s->layer[i], JAIL_VOLUME_ID);
    if (jail_answer(s->rig->channel, &reply) < 0)
        s->over = true;
}

void layers_take(struct stage *s, const struct jail_request *q)
{
    switch (q->op) {
    case JAIL_OP_SNAPSHOT:
        atomic_fetch_add(&s->play->snapshots, 1);
        s->held_snapshot[s->held_snapshots++] = *q;
        atomic_store(&s->play->held_snapshots, s->held_snapshots);
        break;
    case JAIL_OP_SNAPSHOT_CANCEL:
        cancel(s, q->slot);
        stage_answer_plain(s, q, 0, 0);
        break;
    case JAIL_OP_LAYER_DELETE:
        delete (s, q);
        break;
    default:
        list(s, q);
        break;
    }
}

void layers_turn(struct stage *s)
{
    if (atomic_load(&s->play->hold_snapshots))
        return;
    for (unsigned i = 0; i < s->held_snapshots; i++)
        answer_snapshot(s, &s->held_snapshot[i], atomic_load(&s->play->snapshot_error));
    s->held_snapshots = 0;
    atomic_store(&s->play->held_snapshots, 0);
}

// What the engine sends to the jailer, of which an engine that was taken over could be the author: whatever passes the check is
// within what sys/jail.h promises, field by field.  The first byte says how many descriptors came along.
#include "sys/jail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds)
{
    if (!holds)
        abort();
}

static bool is_zero(const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++)
        if (b[i] != 0)
            return false;
    return true;
}

static void check_start(const struct jail_start *s)
{
    need(s->template_slot < JAIL_TEMPLATES_MAX && s->vcpus >= 1 && s->vcpus <= JAIL_VCPUS_MAX);
    need(s->memory_mib >= JAIL_MEMORY_MIB_MIN && s->memory_mib <= JAIL_MEMORY_MIB_MAX);
    need(s->disk_mib >= JAIL_DISK_MIB_MIN && s->disk_mib <= JAIL_DISK_MIB_MAX);
    need(s->pids_max > 0 && s->pids_max <= JAIL_PIDS_MAX);
    const char *end = memchr(s->hostname, '\0', sizeof s->hostname);
    need(end != NULL && end != s->hostname);
    for (const char *c = s->hostname; c < end; c++)
        need((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '-');
}

static void check_waits(const struct jail_request *q)
{
    need(q->start.waits <= (q->op == JAIL_OP_CLONE_VM ? 1 : 0));
}

static void check_volume(const struct jail_request *q)
{
    bool named = !is_zero(q->volume.id, sizeof q->volume.id);
    need(named == jail_volume_named(q->volume.id));
    need(q->volume.reserved == 0 && q->volume.machine <= (q->op == JAIL_OP_VOLUME_CREATE ? 1 : 0));
    switch (q->op) {
    case JAIL_OP_VOLUME_CREATE:
        need(named && q->volume.mib >= JAIL_VOLUME_MIB_MIN && q->volume.mib <= JAIL_VOLUME_MIB_MAX);
        return;
    case JAIL_OP_VOLUME_DELETE:
        need(named);
        break;
    case JAIL_OP_START:
    case JAIL_OP_START_VM:
    case JAIL_OP_CLONE_VM:
    case JAIL_OP_VOLUME_LIST:
        break;
    default:
        need(!named);
        break;
    }
    need(q->volume.mib == 0);
}

static void check_network(const struct jail_request *q)
{
    const struct jail_network *n = &q->network;
    need(is_zero(n->reserved, sizeof n->reserved));
    if (q->op == JAIL_OP_NETWORK) {
        need(n->line == 0 && n->port >= JAIL_PORT_MIN);
        if (n->synthetic_prefix == 0)
            need(is_zero(n->synthetic, sizeof n->synthetic));
        else
            need(n->synthetic_prefix >= JAIL_SYNTHETIC_PREFIX_MIN && n->synthetic_prefix <= JAIL_SYNTHETIC_PREFIX_MAX &&
                 n->synthetic[0] > 0 && n->synthetic[0] < 224 && n->synthetic[0] != 127 && n->synthetic[3] == 0);
        return;
    }
    need(n->port == 0 && n->synthetic_prefix == 0 && is_zero(n->synthetic, sizeof n->synthetic));
    if (q->op != JAIL_OP_START && q->op != JAIL_OP_START_VM && q->op != JAIL_OP_CLONE_VM)
        need(n->line == 0);
    need((n->line & ~(uint32_t)JAIL_LINE_ALL_) == 0);
    need((n->line & JAIL_LINE_TRANSPARENT) == 0 || (n->line & JAIL_LINE_PROXY) != 0);
}

static void check_layers(const struct jail_request *q)
{
    const struct jail_layers *l = &q->layers;
    need(l->count <= JAIL_LAYERS_MAX && l->copy <= (q->op == JAIL_OP_START && l->count > 0 ? 1 : 0));
    for (uint32_t i = 0; i < JAIL_LAYERS_MAX; i++)
        need(is_zero(l->id[i], sizeof l->id[i]) == (i >= l->count));
    switch (q->op) {
    case JAIL_OP_START:
        break;
    case JAIL_OP_SNAPSHOT:
    case JAIL_OP_LAYER_DELETE:
        need(l->count == 1);
        break;
    case JAIL_OP_LAYER_LIST:
        need(l->count <= 1);
        break;
    default:
        need(l->count == 0);
        break;
    }
}

// As the comments of enum jail_op have it.
static bool descriptors_ok(uint32_t op, size_t fds)
{
    switch (op) {
    case JAIL_OP_MOUNT:
    case JAIL_OP_START:
    case JAIL_OP_IMAGE:
        return fds == 1;
    case JAIL_OP_KERNEL:
        return fds == 2;
    case JAIL_OP_START_VM:
        return fds == 3;
    case JAIL_OP_CLONE_VM:
        return fds == 6 || fds == 7;  // a working set is not always there
    default:
        return fds == 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct jail_request q = {0};
    if (size == 0)
        return 0;
    size_t fds = data[0] % (JAIL_FDS_MAX + 1);
    memcpy(&q, data + 1, size - 1 < sizeof q ? size - 1 : sizeof q);
    int r = jail_check(&q, fds);
    need(r == 0 || r == -EPROTO);
    if (r < 0)
        return 0;
    need(q.op > 0 && q.op < JAIL_OP_EXITED && q.id != 0 && q.slot < JAIL_SANDBOXES_MAX);
    need(descriptors_ok(q.op, fds));
    check_waits(&q);
    if (q.op == JAIL_OP_START || q.op == JAIL_OP_START_VM || q.op == JAIL_OP_CLONE_VM)
        check_start(&q.start);
    else
        need(is_zero(&q.start, sizeof q.start));
    check_volume(&q);
    check_network(&q);
    check_layers(&q);
    return 0;
}

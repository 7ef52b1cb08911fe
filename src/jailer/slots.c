#include "jailer/slots.h"

#include "base/cleanup.h"
#include "base/id.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

static const char lock_path[] = "/run/sandbox-engine-uids";

struct slots {
    int fd;
    uint64_t offset;
    unsigned count, next;
    bool ours[];
};

int slots_open(uint64_t offset, unsigned count, struct slots **ret_slots)
{
    struct slots *s = calloc(1, sizeof *s + count * sizeof s->ours[0]);
    if (s == NULL)
        return -ENOMEM;
    s->offset = offset;
    s->count = count;
    s->fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = s->fd < 0 ? -errno : random_bytes(&s->next, sizeof s->next);
    if (r < 0) {
        slots_close(s);
        return r;
    }
    *ret_slots = s;
    return 0;
}

struct slots *slots_close(struct slots *slots)
{
    if (slots != NULL) {
        close_fd(&slots->fd);
        free(slots);
    }
    return NULL;
}

static int lock_byte(const struct slots *s, unsigned slot, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(s->offset + slot), .l_len = 1};
    return fcntl(s->fd, F_OFD_SETLK, &lock) < 0 ? -errno : 0;
}

void slots_exclude(struct slots *slots, unsigned slot)
{
    slots->ours[slot] = true;
}

int slots_take(struct slots *slots, unsigned *ret_slot)
{
    for (unsigned tries = 0; tries < slots->count; tries++) {
        unsigned slot = slots->next++ % slots->count;
        if (slots->ours[slot])
            continue;
        int r = lock_byte(slots, slot, F_WRLCK);
        if (r == -EAGAIN || r == -EACCES)
            continue;
        if (r < 0)
            return r;
        slots->ours[slot] = true;
        *ret_slot = slot;
        return 0;
    }
    return -EAGAIN;
}

void slots_give(struct slots *slots, unsigned slot)
{
    if (!slots->ours[slot])
        return;
    slots->ours[slot] = false;
    lock_byte(slots, slot, F_UNLCK);
}

#include "jailer/uid_slots.h"

#include "base/cleanup.h"
#include "base/id.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static const char lock_path[] = "/run/sandbox-engine-uids";

struct uid_slots {
    int fd;
    unsigned next;
    bool ours[UID_SLOTS];
};

int uid_slots_open(struct uid_slots **ret_slots)
{
    struct uid_slots *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    s->fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = s->fd < 0 ? -errno : random_bytes(&s->next, sizeof s->next);
    if (r < 0) {
        close_fd(&s->fd);
        free(s);
        return r;
    }
    *ret_slots = s;
    return 0;
}

struct uid_slots *uid_slots_close(struct uid_slots *slots)
{
    if (slots != NULL) {
        close_fd(&slots->fd);
        free(slots);
    }
    return NULL;
}

static int lock_byte(int fd, int slot, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) < 0 ? -errno : 0;
}

int uid_slots_take(struct uid_slots *slots, int *ret_slot, uid_t *ret_first)
{
    for (int tries = 0; tries < UID_SLOTS; tries++) {
        int slot = (int)(slots->next++ % UID_SLOTS);
        if (slots->ours[slot])
            continue;
        int r = lock_byte(slots->fd, slot, F_WRLCK);
        if (r == -EAGAIN || r == -EACCES)
            continue;
        if (r < 0)
            return r;
        slots->ours[slot] = true;
        *ret_slot = slot;
        *ret_first = UID_BASE + (uid_t)slot * UID_RANGE;
        return 0;
    }
    return -EAGAIN;
}

void uid_slots_give(struct uid_slots *slots, int slot)
{
    if (slot < 0 || !slots->ours[slot])
        return;
    slots->ours[slot] = false;
    lock_byte(slots->fd, slot, F_UNLCK);
}

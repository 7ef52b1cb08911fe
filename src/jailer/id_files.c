#include "jailer/id_files.h"

#include "base/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool id_of_name(const char *name, const char *suffix, uint8_t id[static JAIL_VOLUME_ID])
{
    size_t n = strlen(name);
    if (n < ID_DIGITS || (n > ID_DIGITS && strcmp(name + ID_DIGITS, suffix) != 0))
        return false;
    for (size_t i = 0; i < JAIL_VOLUME_ID; i++) {
        int high = digit_of(name[2 * i]), low = digit_of(name[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        id[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

// Puts an id in its place among the least ones; their number.
static int keep(uint8_t ids[static JAIL_VOLUMES_LISTED][JAIL_VOLUME_ID], int count, const uint8_t id[static JAIL_VOLUME_ID])
{
    int at = count;
    for (; at > 0 && memcmp(ids[at - 1], id, JAIL_VOLUME_ID) > 0; at--)
        if (at < JAIL_VOLUMES_LISTED)
            memcpy(ids[at], ids[at - 1], JAIL_VOLUME_ID);
    if (at < JAIL_VOLUMES_LISTED)
        memcpy(ids[at], id, JAIL_VOLUME_ID);
    return count < JAIL_VOLUMES_LISTED ? count + 1 : count;
}

int id_files_list(int folder, const char *suffix, const uint8_t after[static JAIL_VOLUME_ID],
                  uint8_t ret_ids[static JAIL_VOLUMES_LISTED][JAIL_VOLUME_ID])
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        int r = -errno;
        close_fd(&fd);
        return r;
    }
    int count = 0;
    uint8_t id[JAIL_VOLUME_ID];
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (id_of_name(entry->d_name, suffix, id) && memcmp(id, after, sizeof id) > 0)
            count = keep(ret_ids, count, id);
    closedir(dir);
    return count;
}

#include "engine/snapshot_files.h"

#include "base/cleanup.h"
#include "sys/digest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char meta_name[] = "snapshot.bin";

struct folder_name {
    char text[sizeof ".new-" + SNAPSHOT_ID_LEN];
};

static struct folder_name folder_name(const char *prefix, const char *id)
{
    struct folder_name name;
    snprintf(name.text, sizeof name.text, "%s%s", prefix, id);
    return name;
}

static int open_folder(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

// ---- removing ----

// A snapshot's folder has files and nothing else.
static int remove_folder(int dir, const char *name)
{
    int fd = open_folder(dir, name);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (entries == NULL) {
        int r = fd < 0 ? fd : -errno;
        close_fd(&fd);
        return r;
    }
    for (struct dirent *e; (e = readdir(entries)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(entries), e->d_name, 0);
    closedir(entries);
    return unlinkat(dir, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

static int remove_leftovers(int dir)
{
    int fd = open_folder(dir, ".");
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (entries == NULL) {
        int r = fd < 0 ? fd : -errno;
        close_fd(&fd);
        return r;
    }
    // One that cannot be removed takes room and is in nobody's way.
    for (struct dirent *e; (e = readdir(entries)) != NULL;)
        if (strncmp(e->d_name, ".new-", 5) == 0 || strncmp(e->d_name, ".old-", 5) == 0)
            remove_folder(dir, e->d_name);
    closedir(entries);
    return 0;
}

int snapshot_files_open(int state_dir)
{
    if (mkdirat(state_dir, "snapshots", 0700) < 0 && errno != EEXIST)
        return -errno;
    cleanup_fd int dir = open_folder(state_dir, "snapshots");
    if (dir < 0)
        return dir;
    int r = remove_leftovers(dir);
    return r < 0 ? r : take_fd(&dir);
}

int snapshot_files_hide(int dir, const char *id)
{
    struct folder_name old = folder_name(".old-", id);
    return renameat(dir, id, dir, old.text) < 0 || fsync(dir) < 0 ? -errno : 0;
}

// What is left of it, the next start removes.
void snapshot_files_clear(int dir, const char *id)
{
    remove_folder(dir, folder_name(".old-", id).text);
}

int snapshot_files_remove(int dir, const char *id)
{
    int r = snapshot_files_hide(dir, id);
    if (r == 0)
        snapshot_files_clear(dir, id);
    return r;
}

// ---- reading ----

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

int snapshot_files_list(int dir, char (**ret_ids)[SNAPSHOT_ID_LEN + 1], size_t *ret_count)
{
    int fd = open_folder(dir, ".");
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (entries == NULL) {
        int r = fd < 0 ? fd : -errno;
        close_fd(&fd);
        return r;
    }
    char(*ids)[SNAPSHOT_ID_LEN + 1] = NULL;
    size_t n = 0, room = 0;
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(entries)) != NULL;) {
        if (!snapshot_id_valid(e->d_name))
            continue;
        if (n == room) {
            room = room == 0 ? 64 : 2 * room;
            void *more = reallocarray(ids, room, sizeof *ids);
            r = more == NULL ? -ENOMEM : 0;
            ids = more != NULL ? more : ids;
        }
        if (r == 0)
            memcpy(ids[n++], e->d_name, sizeof *ids);
    }
    closedir(entries);
    if (r < 0) {
        free(ids);
        return r;
    }
    if (n > 0)
        qsort(ids, n, sizeof *ids, compare);
    *ret_ids = ids;
    *ret_count = n;
    return 0;
}

static int read_all(int fd, uint8_t *bytes, size_t room, size_t *ret_n)
{
    size_t n = 0;
    while (n < room) {
        ssize_t r = read(fd, bytes + n, room - n);
        if (r < 0 && errno != EINTR)
            return -errno;
        if (r == 0)
            break;
        n += r > 0 ? (size_t)r : 0;
    }
    *ret_n = n;
    return 0;
}

int snapshot_files_read(int dir, const char *id, struct snapshot_meta *ret_meta, uint8_t **ret_body)
{
    cleanup_fd int folder = open_folder(dir, id);
    if (folder < 0)
        return folder;
    cleanup_fd int file = openat(folder, meta_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT ? -EBADMSG : -errno;
    cleanup_free uint8_t *bytes = malloc(SNAPSHOT_META_MAX + 1);
    if (bytes == NULL)
        return -ENOMEM;
    size_t n = 0;
    int r = read_all(file, bytes, SNAPSHOT_META_MAX + 1, &n);
    if (r < 0)
        return r;
    uint8_t seal[DIGEST_LEN];
    if (n > SNAPSHOT_META_MAX || n < DIGEST_LEN)
        return -EBADMSG;
    r = digest_bytes(bytes, n - DIGEST_LEN, seal);
    if (r < 0)
        return r;
    struct snapshot_meta meta;
    if (memcmp(seal, bytes + n - DIGEST_LEN, DIGEST_LEN) != 0 || snapshot_meta_parse(bytes, n - DIGEST_LEN, &meta) < 0 ||
        strcmp(meta.id, id) != 0)
        return -EBADMSG;
    *ret_meta = meta;
    *ret_body = take_ptr(&bytes);
    return 0;
}

// ---- writing ----

static int write_all(int fd, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, bytes, n);
        if (w < 0 && errno != EINTR)
            return -errno;
        bytes += w > 0 ? w : 0;
        n -= w > 0 ? (size_t)w : 0;
    }
    return 0;
}

static int write_file(int folder, const uint8_t *body, size_t n)
{
    uint8_t seal[DIGEST_LEN];
    int r = digest_bytes(body, n, seal);
    if (r < 0)
        return r;
    cleanup_fd int file = openat(folder, meta_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return -errno;
    r = write_all(file, body, n);
    if (r == 0)
        r = write_all(file, seal, sizeof seal);
    return r == 0 && fsync(file) < 0 ? -errno : r;
}

int snapshot_files_begin(int dir, const char *id)
{
    struct folder_name fresh = folder_name(".new-", id);
    if (mkdirat(dir, fresh.text, 0700) < 0)
        return -errno;
    return open_folder(dir, fresh.text);
}

void snapshot_files_abandon(int dir, const char *id)
{
    remove_folder(dir, folder_name(".new-", id).text);
}

int snapshot_files_folder(int dir, const char *id)
{
    return open_folder(dir, id);
}

int snapshot_files_write(int dir, const char *id, const uint8_t *body, size_t n)
{
    if (n + DIGEST_LEN > SNAPSHOT_META_MAX)
        return -EFBIG;
    struct folder_name fresh = folder_name(".new-", id);
    if (mkdirat(dir, fresh.text, 0700) < 0 && errno != EEXIST)  // it was begun
        return -errno;
    cleanup_fd int folder = open_folder(dir, fresh.text);
    int r = folder < 0 ? folder : write_file(folder, body, n);
    if (r == 0 && fsync(folder) < 0)
        r = -errno;
    // An existing folder is never empty, so that it is not replaced.
    if (r == 0 && renameat(dir, fresh.text, dir, id) < 0)
        r = errno == ENOTEMPTY ? -EEXIST : -errno;
    if (r < 0) {
        remove_folder(dir, fresh.text);
        return r;
    }
    if (fsync(dir) == 0)
        return 0;
    r = -errno;
    remove_folder(dir, id);
    return r;
}

#include "engine/isolation/snapshot_store.h"

#include "base/cleanup.h"
#include "base/id.h"
#include "sys/digest.h"
#include "sys/template_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { COPY_BYTES = 256 * 1024, NAME_ROOM = SNAPSHOT_KEY_DIGITS + 2, FILES = 5, MEMORY_FILE = 2 };

static const char folder[] = "booted";

// In the manifest's order.
static const struct {
    const char *name;
    size_t offset;
} places[FILES] = {
    {"disk.delta", offsetof(struct snapshot_files, layer)},
    {"key.bin", offsetof(struct snapshot_files, key)},
    {"memory.snap", offsetof(struct snapshot_files, memory)},
    {"vmstate.bin", offsetof(struct snapshot_files, state)},
    {"working-set.bin", offsetof(struct snapshot_files, working_set)},
};

static int *place(struct snapshot_files *files, size_t i)
{
    return (int *)(void *)((char *)files + places[i].offset);
}

void snapshot_files_close(struct snapshot_files *files)
{
    for (size_t i = 0; i < FILES; i++)
        close_fd(place(files, i));
    files->base = memory_base_unref(files->base);
}

bool snapshot_files_unchanged(const struct snapshot_files *files)
{
    struct stat st;
    if (fstat(files->layer, &st) < 0)
        return false;
    struct file_stamp now = file_stamp_of(&st);
    // One that has given way to others: nobody finds it any more, and its ctime is that of its removal.
    if (st.st_nlink == 0)
        now.ctime = files->layer_is.ctime;
    return file_stamp_same(&now, &files->layer_is);
}

_Static_assert(sizeof(struct snapshot_key) == 2 * DIGEST_LEN + sizeof(struct host_identity) + 32,
               "no padding in what is hashed");

int snapshot_key_name(const struct snapshot_key *key, char ret_name[SNAPSHOT_KEY_DIGITS + 1])
{
    uint8_t digest[DIGEST_LEN];
    int r = digest_bytes(key, sizeof *key, digest);
    if (r == 0)
        hex_encode(digest, sizeof digest, ret_name);
    return r;
}

static void new_name(const char *name, char out[NAME_ROOM])
{
    snprintf(out, NAME_ROOM, ".%.*s", SNAPSHOT_KEY_DIGITS, name);
}

// ---- the folder ----

static void remove_folder(int store, const char *name)
{
    cleanup_fd int dir = openat(store, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return;
    for (size_t i = 0; i < FILES; i++)
        unlinkat(dir, places[i].name, 0);
    unlinkat(dir, TEMPLATE_MANIFEST_FILE, 0);
    unlinkat(store, name, AT_REMOVEDIR);
}

// Calls fn with each entry but "." and "..".
static int each_entry(int store, void (*fn)(int store, const char *name, void *arg), void *arg)
{
    int fd = openat(store, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL) {
        int r = -errno;
        close_fd(&fd);
        return r;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            fn(store, e->d_name, arg);
    closedir(d);
    return 0;
}

static void remove_unfinished(int store, const char *name, void *arg)
{
    (void)arg;
    if (name[0] == '.')
        remove_folder(store, name);
}

int snapshot_store_open(int state_dir)
{
    if (mkdirat(state_dir, folder, 0700) < 0 && errno != EEXIST)
        return -errno;
    cleanup_fd int store = openat(state_dir, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (store < 0)
        return -errno;
    int r = each_entry(store, remove_unfinished, NULL);
    return r < 0 ? r : take_fd(&store);
}

struct oldest {
    unsigned count;
    uint64_t bytes;
    struct timespec used;
    char name[NAME_ROOM];
};

// On the disk.
static uint64_t bytes_of(int store, const char *name)
{
    uint64_t bytes = 0;
    struct stat st;
    cleanup_fd int dir = openat(store, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (size_t i = 0; dir >= 0 && i < FILES; i++)
        if (fstatat(dir, places[i].name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (uint64_t)st.st_blocks * 512;
    return bytes;
}

static void find_oldest(int store, const char *name, void *arg)
{
    struct oldest *o = arg;
    struct stat st;
    if (name[0] == '.' || strlen(name) >= sizeof o->name || fstatat(store, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    bool older =
        st.st_mtim.tv_sec < o->used.tv_sec || (st.st_mtim.tv_sec == o->used.tv_sec && st.st_mtim.tv_nsec < o->used.tv_nsec);
    o->bytes += bytes_of(store, name);
    if (o->count++ == 0 || older) {
        o->used = st.st_mtim;
        snprintf(o->name, sizeof o->name, "%s", name);
    }
}

// The newest stays, however large it is.
static void make_room(int store, uint64_t bytes_max)
{
    for (;;) {
        struct oldest o = {0};
        if (each_entry(store, find_oldest, &o) < 0 || o.count <= 1 || (o.count <= SNAPSHOTS_STORED_MAX && o.bytes <= bytes_max))
            return;
        remove_folder(store, o.name);
    }
}

// ---- reading ----

int snapshot_copy_bytes(int from, int to, uint64_t at, uint64_t end)
{
    cleanup_free uint8_t *bytes = malloc(COPY_BYTES);
    if (bytes == NULL)
        return -ENOMEM;
    while (at < end) {
        size_t n = end - at < COPY_BYTES ? (size_t)(end - at) : COPY_BYTES;
        ssize_t got = pread(from, bytes, n, (off_t)at);
        if (got <= 0)
            return got < 0 ? -errno : -ESTALE;
        ssize_t put = pwrite(to, bytes, (size_t)got, (off_t)at);
        if (put <= 0)
            return put < 0 ? -errno : -EIO;
        at += (uint64_t)put;
    }
    return 0;
}

int snapshot_copy_sparse(int from, int to, uint64_t at, uint64_t end)
{
    while (at < end) {
        off_t data = lseek(from, (off_t)at, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? 0 : -errno;
        if ((uint64_t)data >= end)
            return 0;
        off_t hole = lseek(from, data, SEEK_HOLE);
        if (hole < 0)
            return -errno;
        at = (uint64_t)hole < end ? (uint64_t)hole : end;
        int r = snapshot_copy_bytes(from, to, (uint64_t)data, at);
        if (r < 0)
            return r;
    }
    return 0;
}

int snapshot_seal(int file)
{
    struct stat st;
    if (fstat(file, &st) < 0)
        return -errno;
    cleanup_fd int copy = memfd_create("template", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (copy < 0 || ftruncate(copy, st.st_size) < 0)
        return -errno;
    int r = snapshot_copy_sparse(file, copy, 0, (uint64_t)st.st_size);
    return r < 0 ? r : snapshot_seal_memfd(copy);
}

int snapshot_reopen(int fd)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int readable = open(path, O_RDONLY | O_CLOEXEC);
    return readable < 0 ? -errno : readable;
}

int snapshot_seal_memfd(int memfd)
{
    if (fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -errno;
    return snapshot_reopen(memfd);
}

static int take_files(const struct manifest *m, int fds[MANIFEST_FILES_MAX], struct snapshot_files *files, struct err *err)
{
    for (size_t i = 0; i < FILES; i++) {
        if (m->files != FILES || strcmp(m->file[i].name, places[i].name) != 0)
            return err_set(err, -EBADMSG, "its manifest does not list the files of a snapshot");
        *place(files, i) = take_fd(&fds[i]);
    }
    return 0;
}

static int check_key(int fd, const char *name, struct err *err)
{
    struct snapshot_key key;
    char real[SNAPSHOT_KEY_DIGITS + 1];
    if (pread(fd, &key, sizeof key, 0) == (ssize_t)sizeof key && snapshot_key_name(&key, real) == 0 && strcmp(real, name) == 0)
        return 0;
    return err_set(err, -EBADMSG, "it is another one: its key.bin does not give its name");
}

// Instead of a file, a copy of it that nobody can change.
static int take_copy(int *file, const char *name, struct err *err)
{
    int copy = snapshot_seal(*file);
    if (copy < 0)
        return err_set(err, copy, "its %s cannot be loaded: %s", name, strerror(-copy));
    close(*file);
    *file = copy;
    return 0;
}

static int keep_memory_file(struct snapshot_files *files, const struct manifest_file *memory, struct err *err)
{
    int root = fcntl(files->memory, F_DUPFD_CLOEXEC, 0);
    if (root < 0)
        return err_set(err, -errno, "its memory cannot be kept open: %s", strerror(errno));
    files->base = memory_base_new(root, memory->size, memory->digest);
    return files->base != NULL ? 0 : err_set(err, -ENOMEM, "out of memory");
}

static int settle_files(struct snapshot_files *files, const char *name, const struct manifest_file *memory, struct err *err)
{
    struct stat st;
    int r = check_key(files->key, name, err);
    close_fd(&files->key);
    if (r == 0)
        r = keep_memory_file(files, memory, err);
    for (size_t i = 0; r == 0 && i < FILES; i++)
        if (place(files, i) != &files->layer && place(files, i) != &files->key)
            r = take_copy(place(files, i), places[i].name, err);
    if (r == 0 && fstat(files->layer, &st) < 0)
        r = err_set(err, -errno, "its disk cannot be looked at: %s", strerror(errno));
    if (r == 0)
        files->layer_is = file_stamp_of(&st);
    return r;
}

int snapshot_load(int store, const char *name, struct snapshot_files *ret_files, struct err *err)
{
    char real[TEMPLATE_NAME_MAX + 1];
    struct manifest manifest;
    cleanup_fd int dir = -1;
    int fds[MANIFEST_FILES_MAX];
    int r = template_open(store, name, real, &manifest, &dir, err);
    if (r == 0)
        r = template_verify(dir, &manifest, fds, err);
    if (r < 0)
        return r;
    struct snapshot_files files = SNAPSHOT_FILES_INIT;
    r = take_files(&manifest, fds, &files, err);
    for (int i = 0; i < MANIFEST_FILES_MAX; i++)
        close_fd(&fds[i]);
    if (r == 0)
        r = settle_files(&files, name, &manifest.file[MEMORY_FILE], err);
    if (r < 0) {
        snapshot_files_close(&files);
        return r;
    }
    futimens(dir, NULL);  // it was used now
    *ret_files = files;
    return 0;
}

// ---- writing ----

int snapshot_begin(int store, const char *name, const struct snapshot_key *key, int *ret_dir, struct snapshot_files *ret_files)
{
    char fresh[NAME_ROOM];
    new_name(name, fresh);
    remove_folder(store, fresh);
    if (mkdirat(store, fresh, 0700) < 0)
        return -errno;
    cleanup_fd int dir = openat(store, fresh, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct snapshot_files files = SNAPSHOT_FILES_INIT;
    int r = dir < 0 ? -errno : 0;
    for (size_t i = 0; r == 0 && i < FILES; i++)
        if ((*place(&files, i) = openat(dir, places[i].name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0)
            r = -errno;
    if (r == 0 && write(files.key, key, sizeof *key) != (ssize_t)sizeof *key)
        r = -EIO;
    if (r < 0) {
        snapshot_files_close(&files);
        remove_folder(store, fresh);
        return r;
    }
    *ret_dir = take_fd(&dir);
    *ret_files = files;
    return 0;
}

// The digest is of what is on the disk: it is taken after the sync.
static int list_files(const struct snapshot_files *files, struct manifest *m)
{
    m->files = FILES;
    for (size_t i = 0; i < FILES; i++) {
        int fd = *place((struct snapshot_files *)files, i);
        if (fsync(fd) < 0)
            return -errno;
        snprintf(m->file[i].name, sizeof m->file[i].name, "%s", places[i].name);
        int r = digest_file(fd, &m->file[i].size, m->file[i].digest);
        if (r < 0)
            return r;
    }
    return 0;
}

int snapshot_commit(int store, const char *name, int dir, const struct snapshot_files *files, uint64_t bytes_max)
{
    char fresh[NAME_ROOM];
    struct manifest m = {0};
    new_name(name, fresh);
    int r = list_files(files, &m);
    if (r == 0)
        r = template_write_manifest(dir, &m);
    if (r < 0)
        return r;
    remove_folder(store, name);  // one that was refused
    if (fsync(dir) < 0 || renameat(store, fresh, store, name) < 0 || fsync(store) < 0)
        return -errno;
    make_room(store, bytes_max);
    return 0;
}

void snapshot_abandon(int store, const char *name)
{
    char fresh[NAME_ROOM];
    new_name(name, fresh);
    remove_folder(store, fresh);
}

void snapshot_touch(int store, const char *name)
{
    utimensat(store, name, NULL, AT_SYMLINK_NOFOLLOW);
}

void snapshot_remove(int store, const char *name)
{
    remove_folder(store, name);
}

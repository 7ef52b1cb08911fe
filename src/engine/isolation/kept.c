#include "engine/isolation/kept.h"

#include "base/cleanup.h"
#include "sys/digest.h"
#include "sys/template_store.h"
#include "sys/vm_ram.h"
#include "wire/page_delta.h"
#include "wire/vmstate.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[] = "SBXKEPT1", root_name[] = "base.snap", key_name[] = "key.bin";

static const char *const names[KEPT_FILES] = {
    [KEPT_DISK] = "disk.delta", [KEPT_MEMORY] = "memory.delta", [KEPT_STATE] = "vmstate.bin"};

_Static_assert(sizeof(struct kept_key) == sizeof magic - 1 + KEPT_ID_ROOM + sizeof(struct snapshot_key),
               "no padding in what is written");

void kept_close(struct kept *kept)
{
    for (int i = 0; i < KEPT_FILES; i++)
        close_fd(&kept->fd[i]);
    close_fd(&kept->root);
}

#define cleanup_kept __attribute__((cleanup(kept_close)))

// ---- what a monitor wrote ----

// The size of the memory that the file is of.
static int memory_bytes_of(int delta, const struct snapshot_key *machine, uint64_t *ret_memory_bytes)
{
    struct stat st;
    if (fstat(delta, &st) < 0)
        return -errno;
    // The file has 32769 parts, of which one is the list.
    uint64_t parts = PAGE_DELTA_PAGE * 8, memory = (uint64_t)st.st_size / (parts + 1) * parts;
    if (memory == 0 || memory > vm_ram_mib(machine->memory_mib) << 20 || memory % PAGE_DELTA_STEP != 0 ||
        page_delta_file_bytes(memory) != (uint64_t)st.st_size)
        return -EBADMSG;
    *ret_memory_bytes = memory;
    return 0;
}

// The memory's size and, to be freed, the list at the end of the file.  It is read once: whoever wrote the file may still be
// able to write to it.
static int read_list(int delta, const struct snapshot_key *machine, uint64_t *ret_memory_bytes, uint8_t **ret_list)
{
    uint64_t memory = 0;
    int r = memory_bytes_of(delta, machine, &memory);
    if (r < 0)
        return r;
    size_t n = page_delta_list_bytes(memory);
    cleanup_free uint8_t *list = n > 0 ? malloc(n) : NULL;
    if (list == NULL)
        return -ENOMEM;
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(delta, list + done, n - done, (off_t)(memory + done));
        if (got <= 0)
            return got < 0 ? -errno : -EBADMSG;
        done += (size_t)got;
    }
    *ret_memory_bytes = memory;
    *ret_list = take_ptr(&list);
    return 0;
}

static int state_bytes_of(int state, uint64_t *ret_bytes)
{
    struct stat st;
    if (fstat(state, &st) < 0)
        return -errno;
    if (st.st_size <= 0 || st.st_size > VMSTATE_FILE_MAX)
        return -EBADMSG;
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

// ---- copying ----

// What is a hole in the one is a hole in the other.  `over`: something may be there.
static int copy_range(int from, int to, uint64_t at, uint64_t end, bool over)
{
    if (!over || fallocate(to, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)(end - at)) == 0)
        return snapshot_copy_sparse(from, to, at, end);
    return errno == EOPNOTSUPP ? snapshot_copy_bytes(from, to, at, end) : -errno;
}

// Copies the listed pages that `but` (NULL: none) does not list; `over`: over what may be there.
static int copy_pages(int from, int to, uint64_t memory_bytes, const uint8_t *list, const uint8_t *but, bool over)
{
    uint64_t pages = memory_bytes / PAGE_DELTA_PAGE;
    int r = 0;
    for (uint64_t page = 0, end; r == 0 && page < pages; page = end) {
        end = page_delta_run_end(list, page, pages);
        if (but != NULL) {
            uint64_t other = page_delta_run_end(but, page, pages);
            end = end < other ? end : other;
        }
        if (page_delta_has(list, page) && (but == NULL || !page_delta_has(but, page)))
            r = copy_range(from, to, page * PAGE_DELTA_PAGE, end * PAGE_DELTA_PAGE, over);
    }
    return r;
}

static int write_at(int fd, const void *bytes, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t w = pwrite(fd, (const uint8_t *)bytes + done, n - done, (off_t)(at + done));
        if (w <= 0)
            return w < 0 ? -errno : -EIO;
        done += (size_t)w;
    }
    return 0;
}

// ---- writing ----

int kept_create(int folder, struct kept *ret_kept)
{
    struct kept kept = KEPT_INIT;
    for (int i = 0; i < KEPT_FILES; i++) {
        kept.fd[i] = openat(folder, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
        if (kept.fd[i] < 0) {
            int r = -errno;
            kept_close(&kept);
            return r;
        }
    }
    *ret_kept = kept;
    return 0;
}

// The pages of the snapshot below that were not written again are added to `to`, which has those of `from`, and the list.
static int write_memory(int from, int to, const struct memory_base *base, const struct snapshot_key *machine)
{
    cleanup_free uint8_t *list = NULL;
    uint64_t memory = 0;
    int r = read_list(from, machine, &memory, &list);
    if (r < 0)
        return r;
    bool more = base != NULL && base->memory >= 0;
    bool stands = base != NULL && base->root >= 0;
    if ((more && base->memory_bytes != memory) || (stands && base->root_bytes != memory))
        return -EBADMSG;
    if (from != to)
        r = copy_pages(from, to, memory, list, NULL, false);
    if (r == 0 && more)
        r = copy_pages(base->memory, to, memory, base->list, list, from == to);
    size_t n = page_delta_list_bytes(memory);
    for (size_t i = 0; more && i < n; i++)
        list[i] |= base->list[i];
    return r == 0 ? write_at(to, list, n, memory) : r;
}

static int write_state(int from, int to)
{
    uint64_t bytes = 0;
    int r = state_bytes_of(from, &bytes);
    return r == 0 && from != to ? snapshot_copy_bytes(from, to, 0, bytes) : r;
}

static int write_disk(int from, int to)
{
    struct stat st;
    if (from == to)
        return 0;
    if (fstat(from, &st) < 0 || ftruncate(to, st.st_size) < 0)
        return -errno;
    return snapshot_copy_sparse(from, to, 0, (uint64_t)st.st_size);
}

// In files that no monitor was ever handed, instead of those that it may still write to.
static int write_own(struct kept *kept, const struct memory_base *base, int folder, const struct snapshot_key *machine)
{
    cleanup_kept struct kept own = KEPT_INIT;
    for (int i = 0; i < KEPT_FILES; i++)
        if ((own.fd[i] = openat(folder, names[i], O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)) < 0)
            return -errno;
    int r = write_state(kept->fd[KEPT_STATE], own.fd[KEPT_STATE]);
    if (r == 0)
        r = write_memory(kept->fd[KEPT_MEMORY], own.fd[KEPT_MEMORY], base, machine);
    if (r == 0)
        r = write_disk(kept->fd[KEPT_DISK], own.fd[KEPT_DISK]);
    for (int i = 0; r == 0 && i < KEPT_FILES; i++) {
        close_fd(&kept->fd[i]);
        kept->fd[i] = take_fd(&own.fd[i]);
    }
    return r;
}

static int settle(struct kept *kept, const struct memory_base *base, int folder, const struct snapshot_key *machine)
{
    if (folder >= 0)
        return write_own(kept, base, folder, machine);
    int r = write_state(kept->fd[KEPT_STATE], kept->fd[KEPT_STATE]);
    return r == 0 ? write_memory(kept->fd[KEPT_MEMORY], kept->fd[KEPT_MEMORY], base, machine) : r;
}

// The template's file gets another name.  Where it has none any more, because it has given way to others, a copy gets it.
static int name_root(int root, int folder)
{
    char path[32];
    struct stat st;
    snprintf(path, sizeof path, "/proc/self/fd/%d", root);
    if (linkat(AT_FDCWD, path, folder, root_name, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    cleanup_fd int copy = openat(folder, root_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (copy < 0 || fstat(root, &st) < 0 || ftruncate(copy, st.st_size) < 0)
        return -errno;
    int r = snapshot_copy_sparse(root, copy, 0, (uint64_t)st.st_size);
    return r == 0 && fsync(copy) < 0 ? -errno : r;
}

static int write_key(int folder, const struct kept_key *key)
{
    cleanup_fd int fd = openat(folder, key_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = write_at(fd, key, sizeof *key, 0);
    return r == 0 && fsync(fd) < 0 ? -errno : r;
}

static void list_file(struct manifest *m, const char *name, uint64_t size, const uint8_t digest[DIGEST_LEN])
{
    struct manifest_file *file = &m->file[m->files++];
    snprintf(file->name, sizeof file->name, "%s", name);
    file->size = size;
    memcpy(file->digest, digest, DIGEST_LEN);
}

// The digest is of what is on the disk: it is taken after the sync.
static int list_written(struct manifest *m, const char *name, int fd)
{
    uint64_t size;
    uint8_t digest[DIGEST_LEN];
    int r = fsync(fd) < 0 ? -errno : digest_file(fd, &size, digest);
    if (r == 0)
        list_file(m, name, size, digest);
    return r;
}

// In the order of their names.  What is kept without names has no key, which binds a folder to its name.
static int list_all(struct kept *kept, const struct memory_base *base, const struct kept_key *key)
{
    struct manifest *m = &kept->manifest;
    uint8_t block[DIGEST_LEN], digest[DIGEST_LEN];
    *m = (struct manifest){0};
    if (kept->root >= 0)
        list_file(m, root_name, base->root_bytes, base->root_digest);
    int r = list_written(m, names[KEPT_DISK], kept->fd[KEPT_DISK]);
    if (r == 0 && key != NULL && (r = digest_bytes(key, sizeof *key, block)) == 0)
        r = digest_bytes(block, sizeof block, digest);  // a file of one block: sys/digest.h
    if (r == 0 && key != NULL)
        list_file(m, key_name, sizeof *key, digest);
    if (r == 0)
        r = list_written(m, names[KEPT_MEMORY], kept->fd[KEPT_MEMORY]);
    return r == 0 ? list_written(m, names[KEPT_STATE], kept->fd[KEPT_STATE]) : r;
}

static uint64_t bytes_of(const struct kept *kept)
{
    uint64_t bytes = 0;
    struct stat st;
    for (int i = 0; i < KEPT_FILES; i++)
        if (fstat(kept->fd[i], &st) == 0)
            bytes += (uint64_t)st.st_blocks * 512;
    return bytes;
}

int kept_finish(struct kept *kept, const struct memory_base *base, int folder, const struct kept_key *key, uint64_t *ret_bytes,
                struct err *err)
{
    if (base != NULL && base->root >= 0 && (kept->root = fcntl(base->root, F_DUPFD_CLOEXEC, 0)) < 0)
        return err_set(err, -errno, "the template's memory cannot be kept open");
    int r = settle(kept, base, folder, &key->machine);
    if (r == -EBADMSG)
        return err_set(err, r, "its monitor wrote files of a size that they cannot have");
    if (r < 0)
        return err_set(err, r, "it cannot be written: %s", strerror(-r));
    struct kept_key written = *key;
    memcpy(written.magic, magic, sizeof written.magic);
    if (folder >= 0 && kept->root >= 0)
        r = name_root(kept->root, folder);
    if (r == 0 && folder >= 0)
        r = write_key(folder, &written);
    if (r == 0)
        r = list_all(kept, base, folder >= 0 ? &written : NULL);
    if (r == 0 && folder >= 0)
        r = template_write_manifest(folder, &kept->manifest);
    if (r < 0)
        return err_set(err, r, "it cannot be written: %s", strerror(-r));
    *ret_bytes = bytes_of(kept);
    return 0;
}

// ---- reading ----

// Where a file that the manifest lists belongs.  NULL: it belongs nowhere.
static int *place(struct kept *kept, int *key, const char *name)
{
    for (int i = 0; i < KEPT_FILES; i++)
        if (strcmp(name, names[i]) == 0)
            return &kept->fd[i];
    return strcmp(name, root_name) == 0 ? &kept->root : strcmp(name, key_name) == 0 ? key : NULL;
}

static int open_files(int folder, struct kept *kept, int *key, struct err *err)
{
    const struct manifest *m = &kept->manifest;
    for (uint32_t i = 0; i < m->files; i++) {
        int *fd = place(kept, key, m->file[i].name);
        if (fd == NULL)
            return err_set(err, -EBADMSG, "its manifest lists a file that no snapshot has");
        *fd = openat(folder, m->file[i].name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (*fd < 0)
            return err_set(err, errno == ENOENT || errno == ELOOP ? -EBADMSG : -errno, "its %s cannot be opened: %s",
                           m->file[i].name, strerror(errno));
    }
    for (int i = 0; i < KEPT_FILES; i++)
        if (kept->fd[i] < 0)
            return err_set(err, -EBADMSG, "its manifest does not list %s", names[i]);
    return *key >= 0 ? 0 : err_set(err, -EBADMSG, "its manifest does not list %s", key_name);
}

static int check_file(int fd, const struct manifest_file *file, struct err *err)
{
    uint64_t size;
    uint8_t digest[DIGEST_LEN];
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_set(err, -errno, "its %s cannot be looked at: %s", file->name, strerror(errno));
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != file->size)
        return err_set(err, -EBADMSG, "its %s has changed since it was taken (its size differs)", file->name);
    int r = digest_file(fd, &size, digest);
    if (r < 0 && r != -ESTALE)
        return err_set(err, r, "its %s cannot be read: %s", file->name, strerror(-r));
    if (r == 0 && size == file->size && memcmp(digest, file->digest, DIGEST_LEN) == 0)
        return 0;
    return err_set(err, -EBADMSG, "its %s has changed since it was taken (its contents differ)", file->name);
}

static int check_key(int fd, const struct manifest *m, const char *id, struct kept_key *ret_key, struct err *err)
{
    struct kept_key key;
    char padded[KEPT_ID_ROOM] = "";
    int r = -EBADMSG;
    for (uint32_t i = 0; i < m->files; i++)
        if (strcmp(m->file[i].name, key_name) == 0)
            r = check_file(fd, &m->file[i], err);
    if (r < 0)
        return r;
    memcpy(padded, id, strnlen(id, sizeof padded - 1));
    if (pread(fd, &key, sizeof key, 0) != (ssize_t)sizeof key || memcmp(key.magic, magic, sizeof key.magic) != 0 ||
        memcmp(key.id, padded, sizeof padded) != 0)
        return err_set(err, -EBADMSG, "it is another one: its %s is not this snapshot's", key_name);
    *ret_key = key;
    return 0;
}

int kept_open(int folder, const char *id, struct kept *ret_kept, struct kept_key *ret_key, struct err *err)
{
    struct kept kept = KEPT_INIT;
    cleanup_fd int key = -1;
    int r = template_read_manifest(folder, &kept.manifest);
    if (r < 0)
        return err_set(err, r, "its %s cannot be used: %s", TEMPLATE_MANIFEST_FILE,
                       r == -EBADMSG ? "it has changed since it was written" : strerror(-r));
    r = open_files(folder, &kept, &key, err);
    if (r == 0)
        r = check_key(key, &kept.manifest, id, ret_key, err);
    if (r < 0) {
        kept_close(&kept);
        return r;
    }
    *ret_kept = kept;
    return 0;
}

static int check_all(const struct kept *kept, struct err *err)
{
    struct kept all = *kept;
    int r = 0, key = -1;
    for (uint32_t i = 0; r == 0 && i < kept->manifest.files; i++) {
        const struct manifest_file *file = &kept->manifest.file[i];
        if (strcmp(file->name, key_name) != 0)  // which kept_open has checked
            r = check_file(*place(&all, &key, file->name), file, err);
    }
    return r;
}

// A sealed memfd of the template's memory and the pages of `list` over it.  A descriptor or a negative errno.
static int make_memory(const struct kept *kept, uint64_t bytes, const uint8_t *list)
{
    struct stat root;
    if (kept->root >= 0 && (fstat(kept->root, &root) < 0 || (uint64_t)root.st_size != bytes))
        return -EBADMSG;
    cleanup_fd int memory = memfd_create("snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0 || ftruncate(memory, (off_t)bytes) < 0)
        return -errno;
    int r = kept->root >= 0 ? snapshot_copy_sparse(kept->root, memory, 0, bytes) : 0;
    if (r == 0)
        r = copy_pages(kept->fd[KEPT_MEMORY], memory, bytes, list, NULL, true);
    return r < 0 ? r : snapshot_seal_memfd(memory);
}

static const struct manifest_file *root_of(const struct manifest *m)
{
    return strcmp(m->file[0].name, root_name) == 0 ? &m->file[0] : NULL;
}

// What is made of these files is described by what was loaded, not by what they become.
static int describe_base(const struct kept *kept, struct snapshot_files *files, uint64_t bytes, uint8_t **list)
{
    const struct manifest_file *listed = root_of(&kept->manifest);
    bool has_root = kept->root >= 0 && listed != NULL;
    cleanup_fd int memory = fcntl(files->memory, F_DUPFD_CLOEXEC, 0);
    int root = has_root ? fcntl(kept->root, F_DUPFD_CLOEXEC, 0) : -1;
    if (memory < 0 || (has_root && root < 0)) {
        close_fd(&root);
        return -EMFILE;
    }
    files->base = memory_base_new(root, has_root ? listed->size : 0, has_root ? listed->digest : NULL);
    if (files->base == NULL)
        return -ENOMEM;
    memory_base_add(files->base, take_fd(&memory), bytes, take_ptr(list));
    return 0;
}

static int load(const struct kept *kept, const struct snapshot_key *machine, struct snapshot_files *files)
{
    struct stat st;
    cleanup_free uint8_t *list = NULL;
    uint64_t bytes = 0, state_bytes;
    int r = read_list(kept->fd[KEPT_MEMORY], machine, &bytes, &list);
    if (r == 0)
        r = state_bytes_of(kept->fd[KEPT_STATE], &state_bytes);
    if (r < 0)
        return r;
    files->memory = make_memory(kept, bytes, list);
    files->state = snapshot_seal(kept->fd[KEPT_STATE]);
    files->layer = snapshot_reopen(kept->fd[KEPT_DISK]);
    const int fds[] = {files->memory, files->state, files->layer};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] < 0)
            return fds[i];
    if (fstat(files->layer, &st) < 0)
        return -errno;
    files->layer_is = file_stamp_of(&st);
    return describe_base(kept, files, bytes, &list);
}

int kept_load(const struct kept *kept, const struct snapshot_key *machine, struct snapshot_files *ret_files, struct err *err)
{
    struct snapshot_files files = SNAPSHOT_FILES_INIT;
    int r = check_all(kept, err);
    if (r < 0)
        return r;
    r = load(kept, machine, &files);
    if (r < 0) {
        snapshot_files_close(&files);
        return err_set(err, r, "it cannot be loaded: %s",
                       r == -EBADMSG ? "its memory or its state has another size" : strerror(-r));
    }
    *ret_files = files;
    return 0;
}

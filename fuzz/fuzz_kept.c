// engine/isolation/kept: files as a monitor may have left them, and a snapshot's files as anybody may have damaged them.
//
// The first byte chooses.  Even: a monitor's files of any sizes, with any list of pages, over a template's memory and a
// snapshot below or without; what is taken must come back as exactly the memory that the model has.  Odd: a good snapshot, some
// of whose files are then changed, cut, lengthened, removed, or swapped; it must be refused, or be what it was.
#include "base/cleanup.h"
#include "engine/isolation/kept.h"
#include "sys/digest.h"
#include "wire/page_delta.h"
#include "wire/vmstate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MEMORY = PAGE_DELTA_STEP, PAGES = MEMORY / PAGE_DELTA_PAGE, LIST = PAGES / 8, CHANGES = 4 };

static const char id[] = "snp_0123456789abc";
static const char *const names[] = {"base.snap", "disk.delta", "key.bin", "manifest.bin", "memory.delta", "vmstate.bin"};
enum { NAMES = sizeof names / sizeof names[0] };

struct tape {
    const uint8_t *at, *end;
};

static uint8_t next(struct tape *t)
{
    return t->at < t->end ? *t->at++ : 0;
}

static uint32_t next_u24(struct tape *t)
{
    uint32_t high = next(t), middle = next(t);
    return high << 16 | middle << 8 | next(t);
}

// ---- the folder: in memory, and empty before each input ----

static char folder_path[] = "/dev/shm/fuzz-kept.XXXXXX";

static void remove_folder(void)
{
    for (int i = 0; i < NAMES; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/%s", folder_path, names[i]);
        unlink(path);
    }
    rmdir(folder_path);
}

static int open_folder(void)
{
    static int fd = -1;
    if (fd < 0) {
        if (mkdtemp(folder_path) == NULL || (fd = open(folder_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
            abort();
        atexit(remove_folder);
    }
    for (int i = 0; i < NAMES; i++)
        unlinkat(fd, names[i], 0);
    return fd;
}

static int file_of(int dir, const void *bytes, size_t n)
{
    int fd = openat(dir, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd < 0 || (n > 0 && pwrite(fd, bytes, n, 0) != (ssize_t)n))
        abort();
    return fd;
}

// ---- what a monitor left ----

// A list: runs of pages, and what each page says if it is the first that says something.
static void write_pages(struct tape *t, uint8_t *memory, uint8_t *list)
{
    for (unsigned runs = next(t) % 6; runs > 0; runs--) {
        uint64_t page = next_u24(t) % PAGES, count = 1 + next(t) % 32;
        uint8_t byte = next(t);
        for (; count > 0 && page < PAGES; count--, page++) {
            page_delta_add(list, page, 1);
            memset(memory + page * PAGE_DELTA_PAGE, byte, PAGE_DELTA_PAGE);
        }
    }
}

struct world {
    struct memory_base *base;
    uint8_t model[MEMORY];  // what comes back
};

static void add_listed(uint8_t *model, const uint8_t *memory, const uint8_t *list)
{
    for (uint64_t page = 0; page < PAGES; page++)
        if (page_delta_has(list, page))
            memcpy(model + page * PAGE_DELTA_PAGE, memory + page * PAGE_DELTA_PAGE, PAGE_DELTA_PAGE);
}

// 0: none; 1: a template's memory; 2: a snapshot over that; 3: one of a machine that had no template.
static void make_base(struct tape *t, int dir, struct world *w)
{
    static const uint8_t digest[DIGEST_LEN];
    unsigned kind = next(t) % 4;
    w->base = NULL;
    memset(w->model, 0, MEMORY);
    if (kind == 0)
        return;
    if (kind < 3)
        for (uint64_t page = 0; page < PAGES; page += 1 + next(t) % 64)
            w->model[page * PAGE_DELTA_PAGE] = 0x11;
    w->base = memory_base_new(kind < 3 ? file_of(dir, w->model, MEMORY) : -1, kind < 3 ? MEMORY : 0, digest);
    if (w->base == NULL)
        abort();
    if (kind == 1)
        return;
    uint8_t *list = calloc(1, LIST);
    if (list == NULL)
        abort();
    write_pages(t, w->model, list);
    memory_base_add(w->base, file_of(dir, w->model, MEMORY), MEMORY, list);
}

// As it was checked when the machine's memory was made of it.
static void describe_root(struct memory_base *base)
{
    uint64_t bytes;
    if (base != NULL && base->root >= 0 && digest_file(base->root, &bytes, base->root_digest) < 0)
        abort();
}

// The memory's file: whole, or of any size.  True if it has the size that it must have.
static bool write_memory(struct tape *t, int fd, struct world *w)
{
    static uint8_t memory[MEMORY], list[LIST];
    memset(memory, 0, sizeof memory);
    memset(list, 0, sizeof list);
    write_pages(t, memory, list);
    bool noise = next(t) % 2 == 1;  // in pages that are not listed
    for (uint64_t page = 0; page < PAGES; page++) {
        bool listed = page_delta_has(list, page);
        const uint8_t junk = 0xee;
        if (listed && pwrite(fd, memory + page * PAGE_DELTA_PAGE, PAGE_DELTA_PAGE, (off_t)(page * PAGE_DELTA_PAGE)) < 0)
            abort();
        if (!listed && noise && pwrite(fd, &junk, 1, (off_t)(page * PAGE_DELTA_PAGE)) < 0)
            abort();
    }
    if (pwrite(fd, list, LIST, MEMORY) != LIST)
        abort();
    add_listed(w->model, memory, list);
    off_t wrong = next(t) % 4 == 3 ? (off_t)next_u24(t) : MEMORY + LIST;
    if (ftruncate(fd, wrong) < 0)
        abort();
    return wrong == MEMORY + LIST;
}

static bool write_state(struct tape *t, int fd)
{
    uint32_t bytes = next(t) % 4 == 3 ? next_u24(t) * 8 : 1U + next(t);
    if (ftruncate(fd, bytes) < 0)
        abort();
    return bytes > 0 && bytes <= VMSTATE_FILE_MAX;
}

static bool has_memory(int fd, const uint8_t *model)
{
    void *seen = mmap(NULL, MEMORY, PROT_READ, MAP_SHARED, fd, 0);
    if (seen == MAP_FAILED)
        abort();
    bool same = memcmp(seen, model, MEMORY) == 0;
    munmap(seen, MEMORY);
    return same;
}

static struct kept_key key_of(void)
{
    struct kept_key key = {.machine = {.memory_mib = 2, .vcpus = 1}};
    memcpy(key.id, id, sizeof id);
    return key;
}

// Loads what is in the folder.  0 if it is taken.
static int load(int dir, const uint8_t *model)
{
    struct kept kept = KEPT_INIT;
    struct snapshot_files files = SNAPSHOT_FILES_INIT;
    struct kept_key key;
    struct err err;
    int r = kept_open(dir, id, &kept, &key, &err);
    if (r == 0)
        r = kept_load(&kept, &key.machine, &files, &err);
    if (r == 0 && !has_memory(files.memory, model))
        abort();
    snapshot_files_close(&files);
    kept_close(&kept);
    return r;
}

// As a monitor leaves it.  0 if it is a snapshot now.
static int keep(struct tape *t, int dir, struct world *w)
{
    struct kept kept = KEPT_INIT;
    struct kept_key key = key_of();
    struct err err;
    uint64_t bytes;
    make_base(t, dir, w);
    describe_root(w->base);
    if (kept_create(dir, &kept) < 0)
        abort();
    bool good = write_memory(t, kept.fd[KEPT_MEMORY], w);
    good = write_state(t, kept.fd[KEPT_STATE]) && good;
    if (ftruncate(kept.fd[KEPT_DISK], next_u24(t)) < 0)
        abort();
    int r = kept_finish(&kept, w->base, dir, &key, &bytes, &err);
    if (r != (good ? 0 : -EBADMSG))
        abort();
    kept_close(&kept);
    w->base = memory_base_unref(w->base);
    return r;
}

// ---- damage ----

static void rewrite(struct tape *t, int dir, const char *name)
{
    struct stat st;
    cleanup_fd int fd = openat(dir, name, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return;
    uint8_t how = next(t), byte = 0;
    off_t at = st.st_size > 0 ? next_u24(t) % st.st_size : 0;
    if (how % 3 == 0 && pread(fd, &byte, 1, at) == 1) {
        byte ^= (uint8_t)(1U << (how / 3 % 8));
        if (pwrite(fd, &byte, 1, at) != 1)
            abort();
    } else if (ftruncate(fd, how % 3 == 1 ? at : st.st_size + 1 + at) < 0) {
        abort();
    }
}

static void change(struct tape *t, int dir)
{
    const char *name = names[next(t) % NAMES], *other = names[next(t) % NAMES];
    switch (next(t) % 5) {
    case 0:
        unlinkat(dir, name, 0);
        break;
    case 1:
        renameat2(dir, name, dir, other, RENAME_EXCHANGE);
        break;
    case 2:
        unlinkat(dir, name, 0);
        if (symlinkat(other, dir, name) < 0)
            abort();
        break;
    default:
        rewrite(t, dir, name);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world world;
    struct tape tape = {data, data + size};
    bool damaged = next(&tape) % 2 == 1;
    int dir = open_folder();
    if (keep(&tape, dir, &world) < 0)
        return 0;
    for (int changes = damaged ? 1 + next(&tape) % CHANGES : 0; changes > 0; changes--)
        change(&tape, dir);
    if (load(dir, world.model) != 0 && !damaged)
        abort();
    return 0;
}

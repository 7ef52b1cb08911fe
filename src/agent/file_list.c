// list_dir.  A guest can make a directory of any size: at most LIST_ENTRIES_MAX entries are looked at, and only as many of the
// smallest names are kept as one answer could carry.
#include "agent/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    ENTRY_BYTES_MIN = 15,  // a packed entry without its name: tags and lengths of entry and name, type, mtime, mode
    KEPT_MAX = LIST_BYTES_MAX / ENTRY_BYTES_MIN,
};

struct names {
    char **list;
    size_t n;
    bool truncated;
};

static void names_free(struct names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->list[i]);
    free(names->list);
}

static void dir_close(DIR **dir)
{
    if (*dir != NULL)
        closedir(*dir);
}

#define cleanup_names __attribute__((cleanup(names_free)))
#define cleanup_dir __attribute__((cleanup(dir_close)))

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// Sorts, and lets all but the first KEPT_MAX go.
static void keep_smallest(struct names *names)
{
    if (names->n > 0)
        qsort(names->list, names->n, sizeof *names->list, by_bytes);
    while (names->n > KEPT_MAX) {
        free(names->list[--names->n]);
        names->truncated = true;
    }
}

static int add_name(struct names *names, const char *name)
{
    if (names->n == 2 * KEPT_MAX)
        keep_smallest(names);
    names->list[names->n] = strdup(name);
    if (names->list[names->n] == NULL)
        return -ENOMEM;
    names->n++;
    return 0;
}

static int collect(DIR *dir, struct names *names)
{
    names->list = calloc(2 * KEPT_MAX, sizeof *names->list);
    if (names->list == NULL)
        return -ENOMEM;
    for (size_t seen = 0;;) {
        errno = 0;
        const struct dirent *d = readdir(dir);
        if (d == NULL && errno != 0)
            return -errno;
        if (d == NULL)
            break;
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        if (++seen > LIST_ENTRIES_MAX) {
            names->truncated = true;
            break;
        }
        int r = add_name(names, d->d_name);
        if (r < 0)
            return r;
    }
    keep_smallest(names);
    return 0;
}

// One entry, or NULL: it has gone (errno ENOENT), or no memory.
static Sandbox__Guest__DirEntry *make_entry(int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return NULL;
    Sandbox__Guest__DirEntry *e = malloc(sizeof *e);
    char *copy = strdup(name);
    if (e == NULL || copy == NULL) {
        free(e);
        free(copy);
        errno = ENOMEM;
        return NULL;
    }
    sandbox__guest__dir_entry__init(e);
    e->name = (ProtobufCBinaryData){strlen(copy), (uint8_t *)copy};
    e->type = file_type(st.st_mode);
    e->size = (uint64_t)st.st_size;
    e->mtime = st.st_mtim.tv_sec;
    e->mode = st.st_mode & 07777;
    return e;
}

static void drop_entry(Sandbox__Guest__DirEntry *e)
{
    free(e->name.data);
    free(e);
}

static int fill(int dir, const struct names *names, Sandbox__Guest__ListDirResult *list)
{
    list->truncated = names->truncated;
    list->entries = calloc(names->n + 1, sizeof *list->entries);
    if (list->entries == NULL)
        return -ENOMEM;
    size_t bytes = 0;
    for (size_t i = 0; i < names->n; i++) {
        Sandbox__Guest__DirEntry *e = make_entry(dir, names->list[i]);
        if (e == NULL && errno == ENOMEM)
            return -ENOMEM;
        if (e == NULL)
            continue;
        size_t packed = sandbox__guest__dir_entry__get_packed_size(e);
        bytes += 1 + (packed < 128 ? 1 : 2) + packed;
        if (bytes > LIST_BYTES_MAX) {
            drop_entry(e);
            list->truncated = true;
            break;
        }
        list->entries[list->n_entries++] = e;
    }
    return 0;
}

int file_list(const Sandbox__Guest__ListDir *request, const struct target *t, struct answer *a)
{
    cleanup_place struct place p = PLACE_INIT;
    int r = resolve(&t->scope, t->rest, true, &p);
    if (r < 0)
        return r;
    cleanup_fd int fd =
        openat(p.dir, p.name[0] != '\0' ? p.name : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    cleanup_dir DIR *dir = fdopendir(fd);
    if (dir == NULL)
        return -errno;
    take_fd(&fd);
    cleanup_names struct names names = {0};
    r = collect(dir, &names);
    if (r < 0)
        return r;
    Sandbox__Guest__ListDirResult *list = &a->body.list_dir;
    sandbox__guest__list_dir_result__init(list);
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_LIST_DIR;
    a->result.list_dir = list;
    return fill(dirfd(dir), &names, list);
}

#include "image/store.h"

#include "base/cleanup.h"
#include "base/id.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define NEW_PREFIX ".new-"

void store_close(struct store *store)
{
    close_fd(&store->fd);
    close_fd(&store->lock_fd);
}

static int cannot(struct err *err, const char *what, const char *name)
{
    return err_set(err, -errno, "%s %s: %s", what, name, strerror(errno));
}

int store_open(const char *path, struct store *ret_store, struct err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, -errno, "the template store %s cannot be opened: %s (--store names another)", path,
                       strerror(errno));
    *ret_store = (struct store){.path = path, .fd = fd, .lock_fd = -1};
    return 0;
}

// mkdir -p, every folder 0755.
static int make_store(const char *path)
{
    cleanup_free char *copy = strdup(path);
    if (copy == NULL)
        return -ENOMEM;
    for (char *slash = strchr(copy + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0755) < 0 && errno != EEXIST)
            return -errno;
        *slash = '/';
    }
    return mkdir(copy, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

// A folder of files and nothing deeper: what this program makes.
static int remove_folder(int parent_fd, const char *name)
{
    cleanup_fd int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    DIR *dir = fdopendir(dup(fd));
    if (dir == NULL)
        return -errno;
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            unlinkat(fd, d->d_name, 0);
    closedir(dir);
    return unlinkat(parent_fd, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

static void sweep(int store_fd)
{
    DIR *dir = fdopendir(dup(store_fd));
    if (dir == NULL)
        return;
    rewinddir(dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        if (strncmp(d->d_name, NEW_PREFIX, strlen(NEW_PREFIX)) == 0 && remove_folder(store_fd, d->d_name) < 0)
            unlinkat(store_fd, d->d_name, 0);
    closedir(dir);
}

int store_open_writable(const char *path, struct store *ret_store, struct err *err)
{
    __attribute__((cleanup(store_close))) struct store store = STORE_INIT;
    int r = make_store(path);
    if (r < 0)
        return err_set(err, r, "the template store %s cannot be made: %s", path, strerror(-r));
    r = store_open(path, &store, err);
    if (r < 0)
        return r;
    store.lock_fd = openat(store.fd, ".lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (store.lock_fd < 0)
        return cannot(err, "the template store cannot be written:", path);
    if (flock(store.lock_fd, LOCK_EX | LOCK_NB) < 0) {
        fprintf(stderr, "sandbox-image: waiting for another sandbox-image that is changing %s\n", path);
        if (flock(store.lock_fd, LOCK_EX) < 0)
            return cannot(err, "no lock on the template store", path);
    }
    sweep(store.fd);
    *ret_store = store;
    store = STORE_INIT;
    return 0;
}

int store_begin(struct store *store, char name[16], int *ret_fd, struct err *err)
{
    char digits[9];
    if (random_hex(digits, 8) < 0)
        return err_set(err, -EIO, "no random bytes");
    snprintf(name, 16, NEW_PREFIX "%s", digits);
    if (mkdirat(store->fd, name, 0700) < 0)
        return cannot(err, "no folder for the build in", store->path);
    int fd = openat(store->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return cannot(err, "no folder for the build in", store->path);
    *ret_fd = fd;
    return 0;
}

void store_discard(struct store *store, const char *new_name)
{
    remove_folder(store->fd, new_name);
}

int store_publish(struct store *store, const char *new_name, const char *name, bool replace, struct err *err)
{
    bool exchanged = false;
    int r = renameat2(store->fd, new_name, store->fd, name, RENAME_NOREPLACE);
    if (r < 0 && errno == EEXIST && replace) {
        r = renameat2(store->fd, new_name, store->fd, name, RENAME_EXCHANGE);
        exchanged = true;
    }
    if (r < 0)
        return cannot(err, "the finished template cannot be put in place:", name);
    if (fsync(store->fd) < 0)
        return cannot(err, "the template store cannot be synced:", store->path);
    if (exchanged)
        remove_folder(store->fd, new_name);
    return 0;
}

// -ENOENT, or the kind (S_IFDIR, S_IFLNK, ...) of what is there.
static int kind_of(const struct store *store, const char *name)
{
    struct stat st;
    if (fstatat(store->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return (int)(st.st_mode & S_IFMT);
}

static int check_text(const char *name, struct err *err)
{
    if (template_name_valid(name))
        return 0;
    return err_set(err, -EINVAL,
                   "\"%.80s\" is not a template's name: 1 to %d of a-z 0-9 . _ -, beginning with a letter or digit", name,
                   TEMPLATE_NAME_MAX);
}

int store_check_name(struct store *store, const char *name, bool replace, struct err *err)
{
    int r = check_text(name, err);
    if (r < 0)
        return r;
    int kind = kind_of(store, name);
    if (kind == -ENOENT || (kind == S_IFDIR && replace))
        return 0;
    if (kind == S_IFDIR)
        return err_set(err, -EEXIST, "template \"%s\" exists; give --replace to build it anew", name);
    if (kind == S_IFLNK)
        return err_set(err, -EEXIST, "\"%s\" is an alias; remove it first (sandbox-image rm %s) or choose another name", name,
                       name);
    return err_set(err, -EEXIST, "\"%s\" in %s is in the way and is no template", name, store->path);
}

int store_check_alias(struct store *store, const char *alias, const char *name, struct err *err)
{
    int r = check_text(alias, err);
    if (r < 0)
        return r;
    if (strcmp(alias, name) == 0)
        return err_set(err, -EINVAL, "\"%s\" cannot be an alias of itself", alias);
    int kind = kind_of(store, alias);
    if (kind == -ENOENT || kind == S_IFLNK)
        return 0;
    return err_set(err, -EEXIST, "\"%s\" cannot become an alias: there is a template of that name", alias);
}

int store_set_alias(struct store *store, const char *alias, const char *name, struct err *err)
{
    char temporary[16] = NEW_PREFIX "alias";
    int r = store_check_alias(store, alias, name, err);
    if (r < 0)
        return r;
    unlinkat(store->fd, temporary, 0);
    if (symlinkat(name, store->fd, temporary) < 0 || renameat(store->fd, temporary, store->fd, alias) < 0 ||
        fsync(store->fd) < 0)
        return cannot(err, "no alias", alias);
    return 0;
}

static int remove_alias(struct store *store, const char *alias, struct err *err)
{
    return unlinkat(store->fd, alias, 0) < 0 ? cannot(err, "the alias cannot be removed:", alias) : 0;
}

static int remove_aliases_of(struct store *store, const char *name, bool force, struct err *err)
{
    __attribute__((cleanup(store_list_free))) struct store_list list;
    int r = store_list(store, &list, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < list.count && r == 0; i++) {
        const struct store_entry *e = &list.entry[i];
        if (strcmp(e->target, name) != 0)
            continue;
        if (!force)
            return err_set(err, -EBUSY, "the alias \"%s\" points at \"%s\"; remove it first, or give --force to remove both",
                           e->name, name);
        r = remove_alias(store, e->name, err);
    }
    return r;
}

int store_remove(struct store *store, const char *name, bool force, struct err *err)
{
    int r = check_text(name, err);
    if (r < 0)
        return r;
    int kind = kind_of(store, name);
    if (kind == -ENOENT)
        return err_set(err, -ENOENT, "there is no template or alias \"%s\" in %s", name, store->path);
    if (kind == S_IFLNK)
        r = remove_alias(store, name, err);
    else if (kind != S_IFDIR)
        return err_set(err, -ENOTDIR, "\"%s\" in %s is no template", name, store->path);
    else
        r = remove_aliases_of(store, name, force, err);
    if (r == 0 && kind == S_IFDIR) {
        // Renamed first: a template is there whole or not at all.
        char gone[16];
        char digits[9];
        random_hex(digits, 8);
        snprintf(gone, sizeof gone, NEW_PREFIX "%s", digits);
        if (renameat(store->fd, name, store->fd, gone) < 0)
            return cannot(err, "the template cannot be removed:", name);
        remove_folder(store->fd, gone);
    }
    if (r == 0 && fsync(store->fd) < 0)
        return cannot(err, "the template store cannot be synced:", store->path);
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct store_entry *)a)->name, ((const struct store_entry *)b)->name);
}

static int add_entry(const struct store *store, const char *name, struct store_list *list)
{
    struct store_entry e = {0};
    snprintf(e.name, sizeof e.name, "%.*s", TEMPLATE_NAME_MAX, name);
    int kind = kind_of(store, name);
    if (kind == S_IFLNK) {
        char target[TEMPLATE_NAME_MAX + 2];
        ssize_t n = readlinkat(store->fd, name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        // One that leads nowhere a template could be is listed as such: an alias of "?".
        snprintf(e.target, sizeof e.target, "%.*s", TEMPLATE_NAME_MAX, template_name_valid(target) ? target : "?");
    } else if (kind != S_IFDIR) {
        return 0;
    }
    struct store_entry *grown = reallocarray(list->entry, list->count + 1, sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    list->entry = grown;
    list->entry[list->count++] = e;
    return 0;
}

int store_list(const struct store *store, struct store_list *ret_list, struct err *err)
{
    *ret_list = (struct store_list){0};
    DIR *dir = fdopendir(openat(store->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir == NULL)
        return cannot(err, "the template store cannot be read:", store->path);
    int r = 0;
    for (struct dirent *d; r == 0 && (d = readdir(dir)) != NULL;)
        if (template_name_valid(d->d_name))
            r = add_entry(store, d->d_name, ret_list);
    closedir(dir);
    if (r < 0)
        return err_set(err, r, "out of memory");
    if (ret_list->count > 0)
        qsort(ret_list->entry, ret_list->count, sizeof *ret_list->entry, by_name);
    return 0;
}

void store_list_free(struct store_list *list)
{
    free(list->entry);
    *list = (struct store_list){0};
}

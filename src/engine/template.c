#include "engine/template.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/pool.h"
#include "libsandbox.h"
#include "sys/file_stamp.h"
#include "sys/jail.h"
#include "sys/template_store.h"
#include "sys/workers.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

enum { TRIES = 3 };  // a template that changes faster than it can be read is given up

enum entry_state { VERIFYING, ATTACHING, READY };

TAILQ_HEAD(waiter_list, template_waiter);

struct template
{
    TAILQ_ENTRY(template) link;
    struct templates *templates;
    char name[TEMPLATE_NAME_MAX + 1];  // never an alias
    struct tier *tier;
    enum entry_state state;
    struct manifest manifest;
    struct file_stamp stamp[MANIFEST_FILES_MAX];  // all zero: it could not be looked at
    int rootfs;                                   // held open, so that what was verified is what is used
    struct file_stamp attached;                   // of the file behind `handle`
    bool has_handle;
    uint32_t handle;
    struct waiter_list waiters;
    uint64_t used_ns;
};

TAILQ_HEAD(template_list, template);

struct templates {
    struct engine *engine;
    int store_fd;
    struct template_list entries;
    unsigned count;
};

// A short look at a template, on a worker thread.
struct look {
    struct job job;
    struct templates *templates;
    struct template_waiter *waiter;  // NULL: cancelled
    struct tier *tier;
    char name[TEMPLATE_NAME_MAX + 1];
    // found:
    int result;
    struct err err;
    char real_name[TEMPLATE_NAME_MAX + 1];
    struct manifest manifest;
    struct file_stamp stamp[MANIFEST_FILES_MAX];
    int dir_fd;
};

// The hashing of a template's files, on a worker thread.
struct verification {
    struct job job;
    struct template *entry;
    struct manifest manifest;
    struct file_stamp stamp[MANIFEST_FILES_MAX];
    int dir_fd;
    // found:
    int result;
    struct err err;
    int fd[MANIFEST_FILES_MAX];
};

static bool same_manifest(const struct manifest *a, const struct manifest *b)
{
    if (a->files != b->files)
        return false;
    for (uint32_t i = 0; i < a->files; i++)
        if (strcmp(a->file[i].name, b->file[i].name) != 0 || a->file[i].size != b->file[i].size ||
            memcmp(a->file[i].digest, b->file[i].digest, DIGEST_LEN) != 0)
            return false;
    return true;
}

static bool unchanged(const struct template *entry, const struct look *look)
{
    if (!same_manifest(&entry->manifest, &look->manifest))
        return false;
    for (uint32_t i = 0; i < entry->manifest.files; i++)
        if (!file_stamp_same(&entry->stamp[i], &look->stamp[i]))
            return false;
    return true;
}

// ---- entries ----

static struct template *find_entry(struct templates *t, const struct tier *tier, const char *name)
{
    struct template *entry;
    TAILQ_FOREACH(entry, &t->entries, link)
    if (entry->tier == tier && strcmp(entry->name, name) == 0)
        return entry;
    return NULL;
}

static void detach(struct template *entry)
{
    if (entry->has_handle)
        pool_forget_template(entry->templates->engine->pool, entry->tier, entry->handle);
    if (entry->has_handle)
        entry->tier->driver->template_detach(entry->tier->self, entry->handle);
    entry->has_handle = false;
}

static void free_entry(struct template *entry)
{
    TAILQ_REMOVE(&entry->templates->entries, entry, link);
    entry->templates->count--;
    close_fd(&entry->rootfs);
    free(entry);
}

// Makes room for one more entry; false when all of them are being worked on.
static bool make_room(struct templates *t)
{
    if (t->count < JAIL_TEMPLATES_MAX)
        return true;
    struct template *entry, *oldest = NULL;
    TAILQ_FOREACH(entry, &t->entries, link)
    if (entry->state == READY && (oldest == NULL || entry->used_ns < oldest->used_ns))
        oldest = entry;
    if (oldest == NULL)
        return false;
    detach(oldest);
    free_entry(oldest);
    return true;
}

static struct template *new_entry(struct templates *t, struct tier *tier, const char *name)
{
    struct template *entry = make_room(t) ? calloc(1, sizeof *entry) : NULL;
    if (entry == NULL)
        return NULL;
    *entry = (struct template){.templates = t, .tier = tier, .rootfs = -1};
    memcpy(entry->name, name, strlen(name) + 1);
    TAILQ_INIT(&entry->waiters);
    TAILQ_INSERT_TAIL(&t->entries, entry, link);
    t->count++;
    return entry;
}

static void answer(struct template_waiter *w, int code, const char *text)
{
    struct template_answer a = {.code = code, .text = text};
    w->done(w->arg, &a);
}

static void answer_ready(struct template_waiter *w, const struct template *entry)
{
    struct template_answer a = {.text = "", .handle = entry->handle, .name = entry->name};
    for (uint32_t i = 0; i < entry->manifest.files; i++)
        if (strcmp(entry->manifest.file[i].name, "rootfs.ext4") == 0)
            a.rootfs = entry->manifest.file[i].digest;
    w->done(w->arg, &a);
}

static void wait_for(struct template *entry, struct template_waiter *w)
{
    w->entry = entry;
    TAILQ_INSERT_TAIL(&entry->waiters, w, link);
}

static struct template_waiter *take_waiter(struct waiter_list *list)
{
    struct template_waiter *w = TAILQ_FIRST(list);
    if (w != NULL) {
        TAILQ_REMOVE(list, w, link);
        w->entry = NULL;
    }
    return w;
}

// The entry is of no use: everybody who waits is told, and it is forgotten.
static void fail_entry(struct template *entry, int code, const char *text)
{
    struct template_waiter *w;
    while ((w = take_waiter(&entry->waiters)) != NULL)
        answer(w, code, text);
    detach(entry);
    free_entry(entry);
}

static int look_again(struct templates *t, struct tier *tier, const char *name, struct template_waiter *w);

// Everybody who waited looks again, and finds the template good or changed once more.
static void entry_ready(struct template *entry)
{
    entry->state = READY;
    struct template_waiter *w;
    while ((w = take_waiter(&entry->waiters)) != NULL)
        if (look_again(entry->templates, entry->tier, entry->name, w) < 0)
            answer(w, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
}

// ---- attaching ----

static int rootfs_index(const struct manifest *m)
{
    for (uint32_t i = 0; i < m->files; i++)
        if (strcmp(m->file[i].name, TEMPLATE_ROOTFS_FILE) == 0)
            return (int)i;
    return -1;
}

static void on_attached(void *arg, const struct driver_answer *a)
{
    struct template *entry = arg;
    if (a->error < 0) {
        log_error("template_attach_failed", log_str("template", entry->name), log_errno(a->error),
                  log_str("detail", a->detail));
        char text[ERR_TEXT_MAX];
        snprintf(text, sizeof text, "template \"%s\" could not be made usable: %s (%s)", entry->name, strerror(-a->error),
                 a->detail);
        fail_entry(entry, SANDBOX_ERR_INTERNAL, text);
        return;
    }
    detach(entry);  // of the file that was replaced
    entry->has_handle = true;
    entry->handle = a->handle;
    log_info("template_loaded", log_str("template", entry->name), log_str("isolation", entry->tier->name));
    entry_ready(entry);
}

static void attach(struct template *entry, const struct file_stamp *rootfs)
{
    if (entry->has_handle && entry->attached.device == rootfs->device && entry->attached.inode == rootfs->inode) {
        entry_ready(entry);
        return;
    }
    entry->attached = *rootfs;
    entry->state = ATTACHING;
    int r = entry->tier->driver->template_attach(
        entry->tier->self, entry->rootfs, entry->manifest.file[rootfs_index(&entry->manifest)].digest, on_attached, entry);
    if (r < 0) {
        struct driver_answer failed = {.error = r, .detail = "the driver could not be asked"};
        on_attached(entry, &failed);
    }
}

// ---- verifying ----

static void verify(struct job *job)
{
    struct verification *v = (struct verification *)job;
    v->result = template_verify(v->dir_fd, &v->manifest, v->fd, &v->err);
    for (uint32_t i = 0; v->result == 0 && i < v->manifest.files; i++) {
        struct stat st;
        struct file_stamp now = {.size = -1};
        if (fstat(v->fd[i], &st) == 0)
            now = file_stamp_of(&st);
        if (!file_stamp_same(&now, &v->stamp[i]))
            v->result = err_set(&v->err, -EBADMSG, "%s changed while it was being verified", v->manifest.file[i].name);
    }
}

static void verified(struct verification *v)
{
    struct template *entry = v->entry;
    entry->templates->engine->metrics.template_verifications++;
    int rootfs = rootfs_index(&v->manifest);
    if (v->result == 0 && rootfs < 0)
        v->result = err_set(&v->err, -EBADMSG, "its manifest lists no %s", TEMPLATE_ROOTFS_FILE);
    if (v->result < 0) {
        log_error("template_refused", log_str("template", entry->name), log_str("reason", v->err.text));
        char text[ERR_TEXT_MAX];
        snprintf(text, sizeof text, "template \"%s\" is refused: %.280s", entry->name, v->err.text);
        fail_entry(entry, SANDBOX_ERR_INVALID_SPEC, text);
        return;
    }
    entry->manifest = v->manifest;
    memcpy(entry->stamp, v->stamp, sizeof entry->stamp);
    close_fd(&entry->rootfs);
    entry->rootfs = take_fd(&v->fd[rootfs]);
    attach(entry, &entry->stamp[rootfs]);
}

static void verify_finish(struct job *job, bool ran)
{
    struct verification *v = (struct verification *)job;
    if (ran)
        verified(v);
    for (int i = 0; i < MANIFEST_FILES_MAX; i++)
        close_fd(&v->fd[i]);
    close_fd(&v->dir_fd);
    free(v);
}

static int begin_verification(struct template *entry, struct look *look)
{
    struct verification *v = calloc(1, sizeof *v);
    if (v == NULL)
        return -ENOMEM;
    *v = (struct verification){
        .job = {.run = verify, .finish = verify_finish}, .entry = entry, .manifest = look->manifest, .dir_fd = -1};
    v->dir_fd = take_fd(&look->dir_fd);
    memcpy(v->stamp, look->stamp, sizeof v->stamp);
    for (int i = 0; i < MANIFEST_FILES_MAX; i++)
        v->fd[i] = -1;
    entry->state = VERIFYING;
    workers_submit(entry->templates->engine->workers, &v->job);
    return 0;
}

// ---- looking ----

static void look_run(struct job *job)
{
    struct look *look = (struct look *)job;
    look->result =
        template_open(look->templates->store_fd, look->name, look->real_name, &look->manifest, &look->dir_fd, &look->err);
    for (uint32_t i = 0; look->result == 0 && i < look->manifest.files; i++) {
        struct stat st;
        if (fstatat(look->dir_fd, look->manifest.file[i].name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            look->stamp[i] = file_stamp_of(&st);
    }
}

// What the look found, put to use.  0, or a sandbox_error_t with a sentence.
static int use(struct look *look, struct template_waiter *w, struct err *err)
{
    struct templates *t = look->templates;
    if (look->result < 0)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "%s", look->err.text);
    struct template *entry = find_entry(t, look->tier, look->real_name);
    bool fresh = entry == NULL;
    if (!fresh && entry->state != READY) {
        wait_for(entry, w);
        return 0;
    }
    if (!fresh && unchanged(entry, look)) {
        entry->used_ns = mono_ns();
        answer_ready(w, entry);
        return 0;
    }
    if (w->tries++ >= TRIES)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "template \"%s\" keeps changing; try again when it is complete",
                       look->real_name);
    if (fresh)
        entry = new_entry(t, look->tier, look->real_name);
    if (entry == NULL)
        return err_set(err, SANDBOX_ERR_INTERNAL, "no more templates can be loaded at the moment; try again");
    if (begin_verification(entry, look) < 0) {
        if (fresh)
            free_entry(entry);
        return err_set(err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
    }
    wait_for(entry, w);
    return 0;
}

static void look_finish(struct job *job, bool ran)
{
    struct look *look = (struct look *)job;
    struct template_waiter *w = look->waiter;
    if (w != NULL)
        w->look = NULL;
    struct err err;
    if (ran && w != NULL && use(look, w, &err) != 0)
        answer(w, err.code, err.text);
    close_fd(&look->dir_fd);
    free(look);
}

static int look_again(struct templates *t, struct tier *tier, const char *name, struct template_waiter *w)
{
    struct look *look = calloc(1, sizeof *look);
    if (look == NULL)
        return -ENOMEM;
    *look =
        (struct look){.job = {.run = look_run, .finish = look_finish}, .templates = t, .waiter = w, .tier = tier, .dir_fd = -1};
    memcpy(look->name, name, strlen(name) + 1);
    w->look = look;
    workers_submit(t->engine->workers, &look->job);
    return 0;
}

// ---- the whole ----

int templates_new(struct engine *e, int store_fd, struct templates **ret_templates)
{
    struct templates *t = calloc(1, sizeof *t);
    if (t == NULL)
        return -ENOMEM;
    *t = (struct templates){.engine = e, .store_fd = store_fd};
    TAILQ_INIT(&t->entries);
    *ret_templates = t;
    return 0;
}

struct templates *templates_free(struct templates *t)
{
    if (t == NULL)
        return NULL;
    while (!TAILQ_EMPTY(&t->entries))
        free_entry(TAILQ_FIRST(&t->entries));
    free(t);
    return NULL;
}

int template_get(struct templates *t, struct tier *tier, const char *name, struct template_waiter *waiter)
{
    waiter->tries = 0;
    return look_again(t, tier, name, waiter);
}

void template_cancel(struct template_waiter *waiter)
{
    if (waiter->look != NULL)
        waiter->look->waiter = NULL;
    if (waiter->entry != NULL)
        TAILQ_REMOVE(&waiter->entry->waiters, waiter, link);
    waiter->look = NULL;
    waiter->entry = NULL;
}

void templates_list(const struct templates *t, struct json_out *json)
{
    const struct template *entry;
    TAILQ_FOREACH(entry, &t->entries, link)
    if (entry->state == READY)
        json_str(json, NULL, entry->name);
}

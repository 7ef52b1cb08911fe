#include "image/kernel_modules.h"

#include "image/unpack.h"

#include <errno.h>
#include <string.h>

static const char *const needed[] = {"virtio_mmio", "virtio_blk", "virtio_rng", "vmw_vsock_virtio_transport",
                                     "virtio_net",  "ext4"};

static struct module *find(const struct module_set *set, const char *name)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (strcmp(set->module[i].name, name) == 0)
            return (struct module *)&set->module[i];
    return NULL;
}

static bool there(const struct module *m)
{
    return m->built_in || m->file.len > 0;
}

// The index of a module, which is wanted from here on; -1 when there is no room.
static int want(struct module_set *set, const char *name)
{
    struct module *m = find(set, name);
    if (m == NULL) {
        if (set->count == MODULES_MAX || strlen(name) > MODULE_NAME_MAX || name[0] == '\0')
            return -1;
        m = &set->module[set->count++];
        *m = (struct module){.file = BUF_INIT(MODULE_BYTES_MAX)};
        memcpy(m->name, name, strlen(name) + 1);
    }
    return (int)(m - set->module);
}

void module_set_begin(struct module_set *set)
{
    *set = (struct module_set){0};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        want(set, needed[i]);
}

void module_set_free(struct module_set *set)
{
    for (uint32_t i = 0; i < set->count; i++)
        buf_free(&set->module[i].file);
    set->count = 0;
}

bool module_name_of(const char *path, char ret_name[MODULE_NAME_MAX + 1])
{
    static const char *const endings[] = {".ko", ".ko.gz", ".ko.xz", ".ko.zst"};
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t end = strlen(endings[i]);
        if (n <= end || n - end > MODULE_NAME_MAX || strcmp(name + n - end, endings[i]) != 0)
            continue;
        for (size_t k = 0; k < n - end; k++)
            ret_name[k] = name[k] == '-' ? '_' : name[k];
        ret_name[n - end] = '\0';
        return true;
    }
    return false;
}

bool module_set_wants(const struct module_set *set, const char *name)
{
    const struct module *m = find(set, name);
    return m != NULL && !there(m);
}

// The value of "depends=" among the strings of the module's .modinfo section, each of which ends with a NUL.  Looked for in the
// whole file: the words occur nowhere else at the beginning of a string, and the kernel will judge the file as a whole.
static const char *depends_of(const struct buf *file)
{
    static const char key[] = "\0depends=";
    const size_t n = sizeof key - 1;
    const uint8_t *at = memmem(file->data, file->len, key, n);
    if (at == NULL)
        return NULL;
    const uint8_t *value = at + n;
    return memchr(value, '\0', file->len - (size_t)(value - file->data)) != NULL ? (const char *)value : NULL;
}

static int add_dependencies(struct module_set *set, struct module *m, const char *list, struct err *err)
{
    while (*list != '\0') {
        size_t n = strcspn(list, ",");
        char name[MODULE_NAME_MAX + 1];
        int index = -1;
        if (n > 0 && n <= MODULE_NAME_MAX) {
            memcpy(name, list, n);
            name[n] = '\0';
            for (char *p = name; *p != '\0'; p++)
                *p = *p == '-' ? '_' : *p;
            index = want(set, name);
        }
        if (index < 0 || m->depend_count == MODULES_MAX)
            return err_set(err, -E2BIG, "module %s depends on more than can be: %.60s", m->name, list);
        m->depends[m->depend_count++] = (uint32_t)index;
        list += n + (list[n] == ',');
    }
    return 0;
}

int module_set_add(struct module_set *set, const char *name, const struct buf *packed, struct err *err)
{
    struct module *m = find(set, name);
    if (m == NULL || there(m))
        return err_set(err, -EEXIST, "module %s was not asked for", name);
    int r = unpack(packed->data, packed->len, &m->file);
    if (r < 0)
        return err_set(err, r, "module %s cannot be unpacked: %s", name, strerror(-r));
    const char *depends = depends_of(&m->file);
    if (depends == NULL || m->file.len < 4 || memcmp(m->file.data, "\177ELF", 4) != 0)
        return err_set(err, -EBADMSG, "module %s is not a kernel module", name);
    return add_dependencies(set, m, depends, err);
}

void module_set_built_in(struct module_set *set, const char *text)
{
    char path[512], name[MODULE_NAME_MAX + 1];
    for (; *text != '\0'; text += strspn(text, "\n")) {
        size_t n = strcspn(text, "\n");
        if (n < sizeof path) {
            memcpy(path, text, n);
            path[n] = '\0';
            struct module *m = module_name_of(path, name) ? find(set, name) : NULL;
            if (m != NULL)
                m->built_in = true;
        }
        text += n;
    }
}

const char *module_set_missing(const struct module_set *set)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (!there(&set->module[i]))
            return set->module[i].name;
    return NULL;
}

enum mark { NEW, OPEN, DONE };

static int visit(struct module_set *set, uint32_t index, uint8_t marks[MODULES_MAX], struct err *err)
{
    const struct module *m = &set->module[index];
    if (marks[index] == DONE || m->built_in)
        return 0;
    if (marks[index] == OPEN)
        return err_set(err, -ELOOP, "module %s depends on itself", m->name);
    marks[index] = OPEN;
    for (uint32_t i = 0; i < m->depend_count; i++) {
        int r = visit(set, m->depends[i], marks, err);
        if (r < 0)
            return r;
    }
    marks[index] = DONE;
    set->order[set->order_count++] = index;
    return 0;
}

int module_set_order(struct module_set *set, struct err *err)
{
    uint8_t marks[MODULES_MAX] = {NEW};
    set->order_count = 0;
    // In the order of `needed`, whatever order the files came in.
    for (uint32_t i = 0; i < set->count; i++) {
        int r = visit(set, i, marks, err);
        if (r < 0)
            return r;
    }
    return 0;
}

#include "lib/encode.h"
#include "lib/errors.h"
#include "lib/guest.h"
#include "wire/pb.h"

#include <stdlib.h>

enum { MODE_BITS = 07777 };

static bool is_dots(const ProtobufCBinaryData *name)
{
    return name->data[0] == '.' && (name->len == 1 || (name->len == 2 && name->data[1] == '.'));
}

// Negative, 0 or positive, bytewise.
static int compare(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
    int c = memcmp(a->data, b->data, a->len < b->len ? a->len : b->len);
    return c != 0 ? c : (a->len > b->len) - (a->len < b->len);
}

// What is wrong with the guest's answer, or NULL.
static const char *fault_of(const Sandbox__Guest__ListDirResult *list)
{
    for (size_t i = 0; i < list->n_entries; i++) {
        const Sandbox__Guest__DirEntry *e = list->entries[i];
        if (e->name.len == 0 || e->name.len > NAME_BYTES_MAX || is_dots(&e->name))
            return "a name that no file has";
        if (memchr(e->name.data, '/', e->name.len) != NULL || memchr(e->name.data, '\0', e->name.len) != NULL)
            return "a name with a byte that no name has";
        if (e->type > SANDBOX_FILE_BLOCK_DEVICE)
            return "no such file type";
        if (i > 0 && compare(&list->entries[i - 1]->name, &e->name) >= 0)
            return "names not in order";
    }
    return NULL;
}

// One block: the entries, then the names.  NULL: no memory.
static sandbox_dirent_t *make_block(const Sandbox__Guest__ListDirResult *list)
{
    size_t size = (list->n_entries + 1) * sizeof(sandbox_dirent_t);
    for (size_t i = 0; i < list->n_entries; i++)
        size += list->entries[i]->name.len + 1;
    sandbox_dirent_t *made = calloc(1, size);
    if (made == NULL)
        return NULL;
    char *names = (char *)(made + list->n_entries + 1);
    for (size_t i = 0; i < list->n_entries; i++) {
        const Sandbox__Guest__DirEntry *e = list->entries[i];
        memcpy(names, e->name.data, e->name.len);
        made[i] =
            (sandbox_dirent_t){.name = names, .type = e->type, .mode = e->mode & MODE_BITS, .size = e->size, .mtime = e->mtime};
        names += e->name.len + 1;
    }
    return made;
}

static sandbox_error_t take_list(const Sandbox__Guest__ListDirResult *list, sandbox_dirent_t **entries, size_t *count,
                                 bool *truncated)
{
    const char *fault = fault_of(list);
    if (fault != NULL)
        return guest_nonsense(fault);
    sandbox_dirent_t *made = make_block(list);
    if (made == NULL)
        return fail_memory();
    *entries = made;
    *count = list->n_entries;
    *truncated = list->truncated;
    return SANDBOX_OK;
}

sandbox_error_t sandbox_list_dir(sandbox_handle_t *handle, const char *path, sandbox_dirent_t **entries, size_t *count,
                                 bool *truncated)
{
    sandbox_error_t r = guest_check_path(handle, path);
    if (r != SANDBOX_OK)
        return r;
    if (entries == NULL || count == NULL || truncated == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL",
                    entries == NULL ? "entries"
                    : count == NULL ? "count"
                                    : "truncated");
    Sandbox__Guest__ListDir list = SANDBOX__GUEST__LIST_DIR__INIT;
    list.path = bytes_of_text(path);
    DEFINE_OPERATION(op, LIST_DIR, list_dir, &list);
    Sandbox__Guest__Result *result = NULL;
    r = guest_call(handle, &op, &result);
    if (r == SANDBOX_OK)
        r = take_list(result->list_dir, entries, count, truncated);
    pb_free(result);
    return r;
}

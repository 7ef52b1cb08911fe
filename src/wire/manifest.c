#include "wire/manifest.h"

#include "wire/number.h"

#include <errno.h>
#include <string.h>

static const uint8_t magic[8] = {'S', 'B', 'X', 'M', 'A', 'N', 'I', '1'};

bool manifest_name_valid(const char *name, size_t n)
{
    if (n == 0 || n > MANIFEST_NAME_MAX || name[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-'))
            return false;
    }
    return true;
}

static void take_file(struct number_reader *r, struct manifest_file *file)
{
    size_t n = (size_t)number_take(r, 1);
    if (n > MANIFEST_NAME_MAX) {
        r->failed = true;
        return;
    }
    number_take_bytes(r, file->name, n);
    file->name[n] = '\0';
    if (!manifest_name_valid(file->name, n))
        r->failed = true;
    file->size = number_take(r, 8);
    number_take_bytes(r, file->digest, DIGEST_LEN);
}

int manifest_parse(const uint8_t *bytes, size_t n, struct manifest *ret_manifest)
{
    struct number_reader r = {.at = bytes, .left = n};
    uint8_t start[sizeof magic];
    number_take_bytes(&r, start, sizeof start);
    if (memcmp(start, magic, sizeof magic) != 0 || number_take(&r, 4) != MANIFEST_VERSION)
        return -EBADMSG;
    struct manifest m = {.files = (uint32_t)number_take(&r, 4)};
    if (m.files == 0 || m.files > MANIFEST_FILES_MAX)
        return -EBADMSG;
    for (uint32_t i = 0; i < m.files && !r.failed; i++) {
        take_file(&r, &m.file[i]);
        if (i > 0 && strcmp(m.file[i - 1].name, m.file[i].name) >= 0)
            return -EBADMSG;
    }
    if (r.failed || r.left > 0)
        return -EBADMSG;
    *ret_manifest = m;
    return 0;
}

static bool writable(const struct manifest *m)
{
    if (m->files == 0 || m->files > MANIFEST_FILES_MAX)
        return false;
    for (uint32_t i = 0; i < m->files; i++) {
        if (!manifest_name_valid(m->file[i].name, strnlen(m->file[i].name, sizeof m->file[i].name)))
            return false;
        if (i > 0 && strcmp(m->file[i - 1].name, m->file[i].name) >= 0)
            return false;
    }
    return true;
}

int manifest_write(const struct manifest *m, struct buf *out)
{
    if (!writable(m))
        return -EINVAL;
    buf_append(out, magic, sizeof magic);
    number_put(out, MANIFEST_VERSION, 4);
    number_put(out, m->files, 4);
    for (uint32_t i = 0; i < m->files; i++) {
        size_t n = strlen(m->file[i].name);
        number_put(out, n, 1);
        buf_append(out, m->file[i].name, n);
        number_put(out, m->file[i].size, 8);
        buf_append(out, m->file[i].digest, DIGEST_LEN);
    }
    return buf_error(out);
}

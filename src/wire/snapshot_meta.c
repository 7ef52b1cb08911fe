#include "wire/snapshot_meta.h"

#include "wire/number.h"
#include "wire/spec.h"

#include <errno.h>
#include <string.h>

static const char magic[] = "SBXSNAP1";
static const char id_prefix[] = "snp_";
static const char id_digits[] = "0123456789abcdefghijklmnopqrstuv";

enum { FLAG_MEMORY = 1, FLAG_VOLUME_LEFT_OUT = 2, FLAG_UNSYNCED = 4, FLAGS_ALL = 7, ID_DIGIT_BITS = 5 };

bool snapshot_id_valid(const char *id)
{
    size_t prefix = sizeof id_prefix - 1;
    return strlen(id) == SNAPSHOT_ID_LEN && strncmp(id, id_prefix, prefix) == 0 &&
           strspn(id + prefix, id_digits) == SNAPSHOT_ID_LEN - prefix;
}

void snapshot_id_make(const uint8_t random[static 8], char ret_id[static SNAPSHOT_ID_LEN + 1])
{
    uint64_t value = 0;
    for (size_t i = 0; i < 8; i++)
        value = value << 8 | random[i];
    memcpy(ret_id, id_prefix, sizeof id_prefix - 1);
    for (size_t i = sizeof id_prefix - 1; i < SNAPSHOT_ID_LEN; i++, value >>= ID_DIGIT_BITS)
        ret_id[i] = id_digits[value & ((1U << ID_DIGIT_BITS) - 1)];
    ret_id[SNAPSHOT_ID_LEN] = '\0';
}

static bool printable(const char *text)
{
    for (; *text != '\0'; text++)
        if (*text < '!' || *text > '~')
            return false;
    return true;
}

// A variable has a name, and no byte in it that ends a string.
static bool variable_ok(const struct snapshot_variable *v)
{
    const char *equals = v->len <= ENV_VAR_MAX ? memchr(v->text, '=', v->len) : NULL;
    return equals != NULL && equals != v->text && memchr(v->text, '\0', v->len) == NULL;
}

static bool plausible(const struct snapshot_meta *m)
{
    if (!snapshot_id_valid(m->id) || m->owner[0] == '\0' || !printable(m->owner) || !spec_template_name_ok(m->template_name))
        return false;
    if (m->isolation < 1 || m->isolation > 4 || m->vcpus == 0 || m->memory_mib == 0 || m->disk_mib == 0)
        return false;
    if (m->layers > SNAPSHOT_LAYERS_MAX || m->variables > ENV_VARS_MAX)
        return false;
    size_t total = 0;
    for (uint32_t i = 0; i < m->variables; i++) {
        if (!variable_ok(&m->variable[i]))
            return false;
        total += m->variable[i].len + 4;
    }
    return total <= SPEC_ENV_TOTAL_MAX;
}

static void take_text(struct number_reader *r, char *text, size_t most)
{
    size_t n = (size_t)number_take(r, 1);
    if (n > most) {
        r->failed = true;
        return;
    }
    number_take_bytes(r, text, n);
    text[n] = '\0';
    if (strlen(text) != n)
        r->failed = true;
}

static void take_layers(struct number_reader *r, struct snapshot_meta *m)
{
    m->layers = (uint32_t)number_take(r, 1);
    if (m->layers > SNAPSHOT_LAYERS_MAX)
        r->failed = true;
    for (uint32_t i = 0; i < m->layers && !r->failed; i++)
        number_take_bytes(r, m->layer[i], SNAPSHOT_LAYER_ID);
}

static void take_variables(struct number_reader *r, struct snapshot_meta *m)
{
    m->variables = (uint32_t)number_take(r, 2);
    if (m->variables > ENV_VARS_MAX)
        r->failed = true;
    for (uint32_t i = 0; i < m->variables && !r->failed; i++) {
        size_t n = (size_t)number_take(r, 2);
        if (n > r->left) {
            r->failed = true;
            return;
        }
        m->variable[i] = (struct snapshot_variable){.text = (const char *)r->at, .len = n};
        r->at += n;
        r->left -= n;
    }
}

static void take_numbers(struct number_reader *r, struct snapshot_meta *m)
{
    m->isolation = (uint8_t)number_take(r, 1);
    uint64_t flags = number_take(r, 1);
    if ((flags & ~(uint64_t)FLAGS_ALL) != 0)
        r->failed = true;
    m->memory = (flags & FLAG_MEMORY) != 0;
    m->volume_left_out = (flags & FLAG_VOLUME_LEFT_OUT) != 0;
    m->unsynced = (flags & FLAG_UNSYNCED) != 0;
    m->source = (uint32_t)number_take(r, 4);
    m->vcpus = (uint32_t)number_take(r, 4);
    m->memory_mib = number_take(r, 8);
    m->disk_mib = number_take(r, 8);
    m->created = number_take(r, 8);
    m->bytes = number_take(r, 8);
    m->pause_us = number_take(r, 8);
}

int snapshot_meta_parse(const uint8_t *bytes, size_t n, struct snapshot_meta *ret_meta)
{
    struct number_reader r = {.at = bytes, .left = n};
    char start[sizeof magic - 1];
    number_take_bytes(&r, start, sizeof start);
    if (memcmp(start, magic, sizeof start) != 0 || number_take(&r, 4) != SNAPSHOT_META_VERSION)
        return -EBADMSG;
    struct snapshot_meta m;
    memset(&m, 0, sizeof m);
    take_text(&r, m.id, SNAPSHOT_ID_LEN);
    take_text(&r, m.owner, SNAPSHOT_OWNER_MAX);
    take_text(&r, m.template_name, TEMPLATE_NAME_MAX);
    number_take_bytes(&r, m.rootfs, DIGEST_LEN);
    take_numbers(&r, &m);
    take_layers(&r, &m);
    take_variables(&r, &m);
    if (r.failed || r.left > 0 || !plausible(&m))
        return -EBADMSG;
    *ret_meta = m;
    return 0;
}

static void put_text(struct buf *out, const char *text)
{
    size_t n = strlen(text);
    number_put(out, n, 1);
    buf_append(out, text, n);
}

int snapshot_meta_write(const struct snapshot_meta *m, struct buf *out)
{
    if (!plausible(m))
        return -EINVAL;
    buf_append(out, magic, sizeof magic - 1);
    number_put(out, SNAPSHOT_META_VERSION, 4);
    put_text(out, m->id);
    put_text(out, m->owner);
    put_text(out, m->template_name);
    buf_append(out, m->rootfs, DIGEST_LEN);
    number_put(out, m->isolation, 1);
    number_put(out,
               (m->memory ? FLAG_MEMORY : 0U) | (m->volume_left_out ? FLAG_VOLUME_LEFT_OUT : 0U) |
                   (m->unsynced ? FLAG_UNSYNCED : 0U),
               1);
    number_put(out, m->source, 4);
    number_put(out, m->vcpus, 4);
    number_put(out, m->memory_mib, 8);
    number_put(out, m->disk_mib, 8);
    number_put(out, m->created, 8);
    number_put(out, m->bytes, 8);
    number_put(out, m->pause_us, 8);
    number_put(out, m->layers, 1);
    for (uint32_t i = 0; i < m->layers; i++)
        buf_append(out, m->layer[i], SNAPSHOT_LAYER_ID);
    number_put(out, m->variables, 2);
    for (uint32_t i = 0; i < m->variables; i++) {
        number_put(out, m->variable[i].len, 2);
        buf_append(out, m->variable[i].text, m->variable[i].len);
    }
    return buf_error(out);
}

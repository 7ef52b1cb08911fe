#include "agent/strv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static char *copy(const void *bytes, size_t n)
{
    char *text = malloc(n + 1);
    if (text == NULL)
        return NULL;
    if (n > 0)
        memcpy(text, bytes, n);
    text[n] = '\0';
    return text;
}

char *text_copy(const ProtobufCBinaryData *bytes)
{
    return copy(bytes->data, bytes->len);
}

int strv_add(struct strv *s, const void *bytes, size_t n)
{
    if (s->n + 2 > s->room) {
        size_t room = s->room > 0 ? s->room * 2 : 16;
        char **grown = realloc(s->v, room * sizeof *grown);
        if (grown == NULL)
            return -ENOMEM;
        s->v = grown;
        s->room = room;
    }
    char *text = copy(bytes, n);
    if (text == NULL)
        return -ENOMEM;
    s->v[s->n++] = text;
    s->v[s->n] = NULL;
    return 0;
}

int strv_add_all(struct strv *s, const ProtobufCBinaryData *items, size_t n)
{
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = strv_add(s, items[i].data, items[i].len);
    return r;
}

int strv_set_env(struct strv *s, const void *bytes, size_t n)
{
    const char *equals = memchr(bytes, '=', n);
    size_t key = equals != NULL ? (size_t)(equals - (const char *)bytes) + 1 : n;
    for (size_t i = 0; i < s->n; i++) {
        if (strncmp(s->v[i], bytes, key) != 0)
            continue;
        char *text = copy(bytes, n);
        if (text == NULL)
            return -ENOMEM;
        free(s->v[i]);
        s->v[i] = text;
        return 0;
    }
    return strv_add(s, bytes, n);
}

void strv_free(struct strv *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->v[i]);
    free(s->v);
    *s = (struct strv){0};
}

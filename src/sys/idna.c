#include "sys/idna.h"

#include <errno.h>
#include <idn2.h>
#include <string.h>

static int idna(void *arg, const char *utf8, size_t n, char *ascii, size_t size)
{
    (void)arg;
    char text[HOST_TEXT_MAX + 1];
    uint8_t *out = NULL;
    if (n > HOST_TEXT_MAX || memchr(utf8, '\0', n) != NULL)
        return -EINVAL;
    memcpy(text, utf8, n);
    text[n] = '\0';
    int r = idn2_lookup_u8((const uint8_t *)text, &out, IDN2_NFC_INPUT | IDN2_NONTRANSITIONAL);
    if (r == IDN2_OK && strlen((const char *)out) < size)
        memcpy(ascii, out, strlen((const char *)out) + 1);
    else
        r = r == IDN2_OK ? -ENAMETOOLONG : -EINVAL;
    idn2_free(out);
    return r == IDN2_OK ? 0 : r;
}

const struct host_idna sys_idna = {.fn = idna};

// wire/ini: what is handed over is what stands in the bytes: clean names, values without control characters, lines that count
// up.
#include "wire/ini.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int on_pair(void *arg, unsigned line, const char *section, const char *key, const char *value)
{
    unsigned *last = arg;
    if (line <= *last || key[0] == '\0' || strlen(section) > INI_NAME_MAX || strlen(key) > INI_NAME_MAX ||
        strlen(value) > INI_VALUE_MAX)
        abort();
    *last = line;
    for (const char *c = value; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 && *c != '\t')
            abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned last = 0;
    struct err err = {.code = 0};
    int r = ini_parse((const char *)data, size, on_pair, &last, &err);
    if ((r != 0) != (err.text[0] != '\0'))
        abort();
    return 0;
}

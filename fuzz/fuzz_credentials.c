// credentials.conf, which only its operator writes: any text is taken whole or refused with a sentence, and what is taken is
// found under its host and port, with a header and a value that can stand in a request.
#include "broker/credentials.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct credentials *c = NULL;
    struct err err = {0};
    int r = credentials_parse((const char *)data, size, &c, &err);
    need((r == 0) == (c != NULL));
    need(r == 0 || err.text[0] != '\0');
    if (r == 0) {
        need(credentials_count(c) <= CREDENTIALS_MAX);
        struct host host;
        enum host_problem why;
        need(host_parse("api.example.org", 15, &(struct host_idna){0}, &host, &why) == 0);
        const struct credential *found = credentials_find(c, &host, 443);
        need(found == NULL || (found->header[0] != '\0' && found->value[0] != '\0' && strpbrk(found->value, "\r\n") == NULL));
    }
    credentials_unref(c);
    return 0;
}

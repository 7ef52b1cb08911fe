#include "broker/api_answer.h"

#include <errno.h>
#include <string.h>

int api_answer_put(struct evbuffer *out, const struct api_answer *a, bool close, bool bare)
{
    size_t n = a->body != NULL ? evbuffer_get_length(a->body) : strlen(a->text);
    bool bodiless = a->status == 204 || a->status == 304;
    int r = evbuffer_add_printf(out, "HTTP/1.1 %u \r\n", a->status);
    if (r >= 0 && !bodiless)
        r = evbuffer_add_printf(out, "Content-Type: %s\r\nContent-Length: %zu\r\n", a->type, n);
    if (r >= 0)
        r = evbuffer_add_printf(out, "%s%s\r\n", a->more != NULL ? a->more : "", close ? "Connection: close\r\n" : "");
    if (r >= 0 && !bodiless && !bare)
        r = a->body != NULL ? evbuffer_add_buffer(out, a->body) : evbuffer_add(out, a->text, n);
    return r < 0 ? -ENOMEM : 0;
}

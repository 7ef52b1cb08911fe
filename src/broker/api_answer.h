// What a guest is answered, written out: a status, a content type, a body, and nothing else.
#ifndef BROKER_API_ANSWER_H
#define BROKER_API_ANSWER_H

#include <event2/buffer.h>
#include <stdbool.h>

struct api_answer {
    unsigned status;
    const char *type;
    struct evbuffer *body;  // emptied; NULL: `text`
    const char *text;
    const char *more;  // whole header lines besides; NULL: none
};

// `close`: says so; `bare`: the answer to a HEAD, whose body is not sent.  0 or -ENOMEM: then it may be cut.
int api_answer_put(struct evbuffer *out, const struct api_answer *a, bool close, bool bare);

#endif

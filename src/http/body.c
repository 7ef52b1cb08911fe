#include "http/body.h"

#include <errno.h>

void http_mover_init(struct http_mover *m, const struct http_body *body, bool chunked_out, uint64_t limit)
{
    *m = (struct http_mover){.body = *body, .chunked_out = chunked_out, .limit = limit};
    m->over = body->kind == HTTP_BODY_NONE || (body->kind == HTTP_BODY_LENGTH && body->length == 0 && !chunked_out);
}

static int put_end(struct http_mover *m, struct evbuffer *out)
{
    if (m->chunked_out && evbuffer_add(out, CHUNK_BODY_END, sizeof CHUNK_BODY_END - 1) < 0)
        return -ENOMEM;
    m->over = true;
    return 1;
}

static int put_chunk_head(struct http_mover *m, struct evbuffer *out, size_t n)
{
    char head[CHUNK_HEAD_MAX];
    if (!m->chunked_out)
        return 0;
    return evbuffer_add(out, head, chunk_put_head(head, n)) < 0 ? -ENOMEM : 0;
}

static int put_data_end(struct http_mover *m, struct evbuffer *out)
{
    if (!m->chunked_out)
        return 0;
    return evbuffer_add(out, CHUNK_DATA_END, sizeof CHUNK_DATA_END - 1) < 0 ? -ENOMEM : 0;
}

// Moves the next `n` bytes of `in`, which are data, without copying them.
static int move_data(struct http_mover *m, struct evbuffer *in, struct evbuffer *out, size_t n)
{
    if (n > m->limit - m->moved)
        return -EMSGSIZE;
    if (put_chunk_head(m, out, n) < 0 || evbuffer_remove_buffer(in, out, n) != (int)n || put_data_end(m, out) < 0)
        return -ENOMEM;
    m->moved += n;
    return 0;
}

static size_t room_of(struct evbuffer *out, size_t window)
{
    size_t held = evbuffer_get_length(out);
    return held < window ? window - held : 0;
}

static int move_plain(struct http_mover *m, struct evbuffer *in, struct evbuffer *out, size_t window)
{
    size_t n = evbuffer_get_length(in), room = room_of(out, window);
    if (n > room)
        n = room;
    if (m->body.kind == HTTP_BODY_LENGTH && n > m->body.length - m->moved)
        n = (size_t)(m->body.length - m->moved);
    int r = n > 0 ? move_data(m, in, out, n) : 0;
    if (r < 0)
        return r;
    return m->body.kind == HTTP_BODY_LENGTH && m->moved == m->body.length ? put_end(m, out) : 0;
}

// One piece of a chunked body: the decoder's next step over the first stretch of the buffer.
static int move_piece(struct http_mover *m, struct evbuffer *in, struct evbuffer *out, size_t room)
{
    struct evbuffer_iovec piece;
    if (evbuffer_peek(in, -1, NULL, &piece, 1) < 1)
        return 0;
    size_t used, n = 0;
    const uint8_t *data = NULL;
    // Framing is bounded by the decoder; data is cut to the room there is.
    size_t look = piece.iov_len < room ? piece.iov_len : room;
    int r = chunk_decode(&m->chunks, piece.iov_base, look, &used, &data, &n);
    if (r < 0)
        return r == -EMSGSIZE ? -EBADMSG : r;
    if (r == CHUNK_DATA && n > 0) {
        if (n > m->limit - m->moved)
            return -EMSGSIZE;
        if (put_chunk_head(m, out, n) < 0 || evbuffer_add(out, data, n) < 0 || put_data_end(m, out) < 0)
            return -ENOMEM;
        m->moved += n;
    }
    evbuffer_drain(in, used);
    return r == CHUNK_END ? put_end(m, out) : 0;
}

static int move_chunked(struct http_mover *m, struct evbuffer *in, struct evbuffer *out, size_t window)
{
    int r = 0;
    size_t room;
    while (r == 0 && evbuffer_get_length(in) > 0 && (room = room_of(out, window)) > 0)
        r = move_piece(m, in, out, room);
    return r;
}

int http_move(struct http_mover *m, struct evbuffer *in, struct evbuffer *out, size_t window)
{
    if (m->over)
        return 1;
    return m->body.kind == HTTP_BODY_CHUNKED ? move_chunked(m, in, out, window) : move_plain(m, in, out, window);
}

int http_mover_close(struct http_mover *m, struct evbuffer *out)
{
    if (m->over)
        return 0;
    if (m->body.kind != HTTP_BODY_UNTIL_CLOSE)
        return -EBADMSG;
    int r = put_end(m, out);
    return r < 0 ? r : 0;
}

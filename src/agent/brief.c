#include "agent/brief.h"

#include "agent/answer.h"
#include "agent/file_writing.h"
#include "agent/job.h"
#include "agent/strv.h"
#include "base/cleanup.h"
#include "base/pages.h"
#include "wire/frame.h"
#include "wire/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    FRAMES_A_PIPE = 3,                // as many as it and a socket hold
    WINDOW_STEP = STREAM_WINDOW / 4,  // the host gets its window back in pieces of at least this size
};

static bool refuse_memory(struct line *l)
{
    struct err e;
    err_set(&e, ENOMEM, "The sandbox's agent is out of memory; try again.");
    line_end_refused(l, STATUS(BUSY), &e);
    return true;
}

// The last frame: that `bytes` were moved, or what went wrong with `path`.
static void end_line(struct line *l, const char *verb, const char *path, int r, uint64_t bytes)
{
    cleanup_answer struct answer a;
    answer_init(&a);
    if (r < 0)
        answer_file_error(&a, verb, path, r);
    else
        answer_transfer(&a, bytes);
    line_end(l, &a.result);
}

// ---- out ----

struct sender {
    struct line *line;
    char *path;
    int fd;
    off_t offset;
    uint64_t left, bytes;
    int pipe[2];
    bool copying;  // pages cannot be had of this file
};

static void sender_free(struct sender *s)
{
    pages_close_pipe(s->pipe);
    close_fd(&s->fd);
    free(s->path);
    free(s);
}

// One frame of the file's next `n` bytes into the pipe.  0; -EAGAIN: it has not as many, or the pipe no room.
static int fill_frame(struct sender *s, off_t *offset, size_t n)
{
    uint8_t head[FRAME_HEAD + 1];
    frame_put_head(head, (uint32_t)(1 + n));
    head[FRAME_HEAD] = FRAME_STDOUT;
    if (write(s->pipe[1], head, sizeof head) != (ssize_t)sizeof head)
        return -EAGAIN;
    for (size_t at = 0; at < n;) {
        ssize_t moved = pages_move_file(s->fd, offset, s->pipe[1], n - at);
        if (moved <= 0)
            return -EAGAIN;
        at += (size_t)moved;
    }
    return 0;
}

// Some frames by reference.  How many bytes of the file; 0: it cannot be done.
static size_t send_pages(struct sender *s)
{
    off_t offset = s->offset;
    uint64_t left = s->left;
    size_t in_pipe = 0;
    if (s->pipe[0] < 0 && pages_take_pipe(s->pipe) < 0)
        return 0;
    for (int i = 0; i < FRAMES_A_PIPE && left > 0; i++) {
        size_t n = left < STREAM_PAYLOAD_MAX ? (size_t)left : STREAM_PAYLOAD_MAX;
        if (fill_frame(s, &offset, n) < 0) {  // a frame says its length first: nothing of this may be sent
            pages_close_pipe(s->pipe);
            return 0;
        }
        left -= n;
        in_pipe += FRAME_HEAD + 1 + n;
    }
    line_send_pages(s->line, s->pipe[0], in_pipe);
    return (size_t)(s->left - left);
}

// One frame.  How many bytes of the file, 0 at its end, or a negative errno.
static ssize_t send_copy(struct sender *s)
{
    static uint8_t piece[STREAM_PAYLOAD_MAX];
    ssize_t n = pread(s->fd, piece, s->left < sizeof piece ? (size_t)s->left : sizeof piece, s->offset);
    if (n < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    if (n > 0)
        line_send(s->line, FRAME_STDOUT, piece, (size_t)n);
    return n;
}

static void finish_sending(struct sender *s, int r)
{
    end_line(s->line, "read", s->path, r, s->bytes);
    sender_free(s);
}

// As much as the line takes.  A failure to send is told by on_gone.
static void on_send_room(void *arg)
{
    struct sender *s = arg;
    while (line_idle(s->line)) {
        ssize_t n = s->left == 0 ? 0 : s->copying ? 0 : (ssize_t)send_pages(s);
        if (n == 0 && s->left > 0) {
            s->copying = true;
            n = send_copy(s);
            if (n == -EAGAIN)
                continue;
        }
        if (n <= 0) {
            finish_sending(s, (int)n);
            return;
        }
        s->offset += n;
        s->bytes += (uint64_t)n;
        s->left -= (uint64_t)n;
    }
}

static void on_sender_frame(void *arg, const struct stream_frame *f)
{
    struct sender *s = arg;
    if (f->type == FRAME_KILL)
        finish_sending(s, -ECANCELED);
}

static void on_nothing(void *arg)
{
    (void)arg;
}

static void on_sender_gone(void *arg)
{
    sender_free(arg);
}

static bool start_sending(struct line *l, const Sandbox__Guest__ReadStream *request)
{
    static const struct line_user user = {
        .on_frame = on_sender_frame, .on_input_end = on_nothing, .on_room = on_send_room, .on_gone = on_sender_gone};
    cleanup_answer struct answer a;
    answer_init(&a);
    struct stat st;
    cleanup_fd int fd = -1;
    int r = read_stream_open(request, &st, &fd, &a);
    if (r < 0)
        answer_path_error(&a, "read", &request->path, r);
    if (r != 0) {
        line_end(l, &a.result);
        return true;
    }
    struct file_range range = read_stream_range(request, &st);
    if (range.most > FILE_MAX)
        return false;
    struct sender *s = calloc(1, sizeof *s);
    char *path = text_copy(&request->path);
    if (s == NULL || path == NULL) {
        free(s);
        free(path);
        return refuse_memory(l);
    }
    *s = (struct sender){
        .line = l, .path = path, .fd = take_fd(&fd), .offset = (off_t)range.offset, .left = range.most, .pipe = PAGES_NO_PIPE};
    uint8_t head[READ_STREAM_HEAD];
    read_stream_describe(&range, head);
    line_use(l, &user, s);
    line_send(l, FRAME_STDOUT, head, sizeof head);
    on_send_room(s);
    return true;
}

// ---- in ----

struct receiver {
    struct line *line;
    char *path;
    struct writing writing;
    size_t owed;  // of the host's window, not given back yet
};

static void receiver_free(struct receiver *v)
{
    writing_close(&v->writing);
    free(v->path);
    free(v);
}

static void finish_receiving(struct receiver *v, int r)
{
    uint64_t bytes = v->writing.bytes;
    // The verdict comes behind the last thing that is done to the file.
    writing_close(&v->writing);
    end_line(v->line, "write", v->path, r, bytes);
    receiver_free(v);
}

static void give_window(struct receiver *v)
{
    if (v->owed >= WINDOW_STEP && line_room(v->line) && line_send_number(v->line, FRAME_WINDOW, v->owed) == 0)
        v->owed = 0;
}

static void take_bytes(struct receiver *v, const struct stream_frame *f)
{
    if (v->owed + f->n > STREAM_WINDOW) {
        line_break(v->line);
        return;
    }
    int r = writing_add(&v->writing, f->payload, f->n);
    if (r < 0) {
        finish_receiving(v, r);
        return;
    }
    v->owed += f->n;
    give_window(v);
}

static void on_receiver_frame(void *arg, const struct stream_frame *f)
{
    struct receiver *v = arg;
    if (f->type == FRAME_STDIN)
        take_bytes(v, f);
    else if (f->type == FRAME_STDIN_END)
        finish_receiving(v, writing_finish(&v->writing));
    else if (f->type == FRAME_KILL)
        finish_receiving(v, -ECANCELED);
}

static void on_receiver_end(void *arg)
{
    struct receiver *v = arg;
    finish_receiving(v, writing_finish(&v->writing));
}

static void on_receiver_room(void *arg)
{
    give_window(arg);
}

static void on_receiver_gone(void *arg)
{
    receiver_free(arg);
}

static bool start_receiving(struct line *l, const Sandbox__Guest__WriteStream *request)
{
    static const struct line_user user = {.on_frame = on_receiver_frame,
                                          .on_input_end = on_receiver_end,
                                          .on_room = on_receiver_room,
                                          .on_gone = on_receiver_gone};
    struct receiver *v = calloc(1, sizeof *v);
    char *path = text_copy(&request->path);
    if (v == NULL || path == NULL) {
        free(v);
        free(path);
        return refuse_memory(l);
    }
    *v = (struct receiver){.line = l, .path = path, .writing = WRITING_INIT};
    cleanup_answer struct answer a;
    answer_init(&a);
    int r = writing_open(request, &v->writing, &a);
    if (r == 0) {
        line_use(l, &user, v);
        return true;
    }
    if (r < 0)
        answer_path_error(&a, "write", &request->path, r);
    receiver_free(v);
    line_end(l, &a.result);
    return true;
}

bool brief_start(struct line *l, const Sandbox__Agent__Request *request)
{
    if (request->op_case == SANDBOX__AGENT__REQUEST__OP_READ_STREAM)
        return request->read_stream->confined && request->read_stream->described && start_sending(l, request->read_stream);
    if (request->op_case != SANDBOX__AGENT__REQUEST__OP_WRITE_STREAM)
        return false;
    const Sandbox__Guest__WriteStream *w = request->write_stream;
    return w->confined && w->most > 0 && w->most <= FILE_MAX && start_receiving(l, w);
}

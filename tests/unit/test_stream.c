// sys: the event loop's timers and watches, descriptor passing, and framed streams.
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/pages.h"
#include "sandbox.pb-c.h"
#include "sys/fdpass.h"
#include "sys/loop.h"
#include "sys/stream.h"
#include "unit.h"
#include "wire/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

// ---- timers ----

struct order {
    struct loop *loop;
    struct timer timers[5];
    int fired[5];
    int count;
};

static struct order *current;

static void record(void *arg)
{
    current->fired[current->count++] = (int)((struct timer *)arg - current->timers);
    if (current->count == 3) {
        // One that has not fired yet is cancelled by one that has.
        timer_cancel(current->loop, &current->timers[4]);
        loop_stop(current->loop, 42);
    }
}

static void timers_fire_in_order_of_time(void **state)
{
    struct order o = {0};
    current = &o;
    assert_int_equal(loop_new(&o.loop), 0);
    static const uint64_t after[5] = {3, 1, 2, 5, 4};
    uint64_t now = mono_ns();
    for (int i = 0; i < 5; i++) {
        timer_init(&o.timers[i], record, &o.timers[i]);
        assert_int_equal(timer_set(o.loop, &o.timers[i], now + after[i] * 1000), 0);
    }
    timer_cancel(o.loop, &o.timers[3]);
    timer_cancel(o.loop, &o.timers[3]);
    assert_int_equal(loop_run(o.loop), 42);
    assert_int_equal(o.fired[0], 1);
    assert_int_equal(o.fired[1], 2);
    assert_int_equal(o.fired[2], 0);
    assert_false(timer_is_set(&o.timers[4]));
    loop_free(o.loop);
}

// ---- watches that remove each other in one batch ----

struct mutual {
    struct loop *loop;
    struct watch *watch[2];
    int calls;
};

static void remove_both(void *arg, uint32_t events)
{
    struct mutual *m = arg;
    m->calls++;
    m->watch[0] = watch_remove(m->watch[0]);
    m->watch[1] = watch_remove(m->watch[1]);
    loop_stop(m->loop, 0);
}

static void a_removed_watch_is_never_called(void **state)
{
    struct mutual m = {0};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(loop_new(&m.loop), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(watch_add(m.loop, pair[i], EPOLLOUT, remove_both, &m, &m.watch[i]), 0);
    assert_int_equal(loop_run(m.loop), 0);
    assert_int_equal(m.calls, 1);
    loop_free(m.loop);
    close(pair[0]);
    close(pair[1]);
}

// ---- streams ----

enum { FRAME_LIMIT = 1000, QUEUE_LIMIT = 5000 };

struct sink {
    struct loop *loop;
    struct stream *stream;
    struct buf got;  // bodies, joined by '|'
    int frames;
    int stop_after;
    bool hold_each;
    bool ended;
    int reason;
};

static void take_frame(void *arg, const uint8_t *body, size_t len)
{
    struct sink *s = arg;
    buf_append(&s->got, body, len);
    buf_append(&s->got, "|", 1);
    if (s->hold_each)
        stream_hold(s->stream, true);
    if (++s->frames == s->stop_after)
        loop_stop(s->loop, 0);
}

static void loop_stop_now(void *loop)
{
    loop_stop(loop, 0);
}

static void take_end(void *arg, int reason)
{
    struct sink *s = arg;
    s->ended = true;
    s->reason = reason;
    loop_stop(s->loop, 0);
}

static const struct stream_handler handler = {.on_frame = take_frame, .on_end = take_end};

static int open_sink(struct sink *s)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *s = (struct sink){.got = BUF_INIT(1 << 20), .stop_after = -1};
    assert_int_equal(loop_new(&s->loop), 0);
    static const struct stream_limits limits = {.frame_max = FRAME_LIMIT, .queue_max = QUEUE_LIMIT};
    assert_int_equal(stream_new(s->loop, pair[0], &limits, &handler, s, &s->stream), 0);
    return pair[1];
}

static void close_sink(struct sink *s, int peer)
{
    s->stream = stream_free(s->stream);
    loop_free(s->loop);
    buf_free(&s->got);
    close(peer);
}

// Lets the loop look once at what there is.
static void turn(struct sink *s)
{
    struct timer stop = {0};
    timer_init(&stop, loop_stop_now, s->loop);
    timer_set(s->loop, &stop, mono_ns() + NS_PER_MS);
    loop_run(s->loop);
    timer_cancel(s->loop, &stop);
}

static void frames_arrive_whole_however_they_are_cut(void **state)
{
    struct sink s;
    int peer = open_sink(&s);
    s.stop_after = 1;
    static const uint8_t wire[] = {0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0, 0, 0, 0, 2, 'd', 'e'};
    // Byte by byte: the loop runs until a frame is whole; a pending byte makes it return for the next.
    for (size_t i = 0; i < sizeof wire; i++) {
        assert_int_equal(write(peer, wire + i, 1), 1);
        if (i == 6 || i == 10 || i == sizeof wire - 1) {
            s.stop_after = s.frames + 1;
            assert_int_equal(loop_run(s.loop), 0);
        }
    }
    assert_string_equal(buf_text(&s.got), "abc||de|");
    shutdown(peer, SHUT_WR);
    assert_int_equal(loop_run(s.loop), 0);
    assert_true(s.ended);
    assert_int_equal(s.reason, 0);
    close_sink(&s, peer);
}

static void a_frame_has_a_longest_length(void **state)
{
    struct sink s;
    int peer = open_sink(&s);
    uint8_t head[FRAME_HEAD];
    static const uint8_t body[FRAME_LIMIT];
    frame_put_head(head, FRAME_LIMIT);
    assert_int_equal(write(peer, head, FRAME_HEAD), FRAME_HEAD);
    assert_int_equal(write(peer, body, FRAME_LIMIT), FRAME_LIMIT);
    s.stop_after = 1;
    assert_int_equal(loop_run(s.loop), 0);
    assert_int_equal(s.frames, 1);
    frame_put_head(head, FRAME_LIMIT + 1);
    assert_int_equal(write(peer, head, FRAME_HEAD), FRAME_HEAD);
    assert_int_equal(loop_run(s.loop), 0);
    assert_int_equal(s.reason, -EMSGSIZE);
    close_sink(&s, peer);
}

static void held_frames_wait_and_are_not_lost(void **state)
{
    struct sink s;
    int peer = open_sink(&s);
    s.hold_each = true;
    static const uint8_t wire[] = {0, 0, 0, 1, 'a', 0, 0, 0, 1, 'b', 0, 0, 0, 1, 'c'};
    assert_int_equal(write(peer, wire, sizeof wire), sizeof wire);
    for (int i = 1; i <= 3; i++) {
        s.stop_after = i;
        assert_int_equal(loop_run(s.loop), 0);
        assert_int_equal(s.frames, i);
        stream_hold(s.stream, false);
    }
    assert_string_equal(buf_text(&s.got), "a|b|c|");
    close_sink(&s, peer);
}

static void a_peer_that_does_not_read_meets_the_queue_ceiling(void **state)
{
    struct sink s;
    int peer = open_sink(&s);
    int small = 1;
    setsockopt(stream_fd(s.stream), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    static const uint8_t body[FRAME_LIMIT];
    int r = 0, sent = 0;
    for (; sent < 1000 && r == 0; sent++)
        r = stream_send_bytes(s.stream, body, sizeof body);
    assert_int_equal(r, -ENOSPC);
    assert_true(stream_queued(s.stream) <= QUEUE_LIMIT);
    close_sink(&s, peer);
}

struct half {
    struct sink sink;
    int half_closed, drained;
};

static void note_half_close(void *arg)
{
    ((struct half *)arg)->half_closed++;
    loop_stop(((struct half *)arg)->sink.loop, 0);
}

static void note_drained(void *arg)
{
    ((struct half *)arg)->drained++;
    loop_stop(((struct half *)arg)->sink.loop, 0);
}

// Two ends over vsock, where this machine can call itself.
static bool vsock_pair(int pair[2])
{
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_LOCAL, .svm_port = VMADDR_PORT_ANY};
    socklen_t size = sizeof address;
    cleanup_fd int listener = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cleanup_fd int caller = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || caller < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&address, &size) < 0 ||
        connect(caller, (struct sockaddr *)&address, sizeof address) < 0)
        return false;
    pair[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    pair[1] = take_fd(&caller);
    return pair[0] >= 0;
}

// A peer that has said all still listens; one that closes is gone, whether it had said so before or not.
static void a_close_is_the_end(int pair[2], bool half_before)
{
    static const struct stream_handler both = {
        .on_frame = take_frame, .on_end = take_end, .on_half_close = note_half_close, .on_drained = note_drained};
    static const struct stream_limits limits = {.frame_max = FRAME_LIMIT, .queue_max = QUEUE_LIMIT};
    struct half h = {.sink = {.got = BUF_INIT(1 << 20), .stop_after = -1}};
    assert_int_equal(loop_new(&h.sink.loop), 0);
    assert_int_equal(stream_new(h.sink.loop, pair[0], &limits, &both, &h, &h.sink.stream), 0);
    int small = 1;
    setsockopt(stream_fd(h.sink.stream), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    static const uint8_t wire[] = {0, 0, 0, 1, 'a'};
    assert_int_equal(write(pair[1], wire, sizeof wire), sizeof wire);
    if (half_before) {
        shutdown(pair[1], SHUT_WR);
        assert_int_equal(loop_run(h.sink.loop), 0);
        assert_false(h.sink.ended);
        assert_string_equal(buf_text(&h.sink.got), "a|");
    }
    assert_int_equal(h.half_closed, half_before);
    while (half_before && stream_queued(h.sink.stream) == 0)
        assert_int_equal(stream_send_typed(h.sink.stream, 'T', "ype", 3), 0);
    static uint8_t all[1 << 20];
    while (half_before && h.drained == 0) {
        assert_true(recv(pair[1], all, sizeof all, 0) > 0);
        assert_int_equal(loop_run(h.sink.loop), 0);
    }
    assert_int_equal(stream_queued(h.sink.stream), 0);
    close(pair[1]);
    assert_int_equal(loop_run(h.sink.loop), 0);
    assert_true(h.sink.ended && h.sink.reason == 0 && h.half_closed == half_before);
    assert_string_equal(buf_text(&h.sink.got), "a|");
    stream_free(h.sink.stream);
    loop_free(h.sink.loop);
    buf_free(&h.sink.got);
}

// What waited may be taken along by a later send, before the loop sees that there is room: that is told, too, once.
static void what_a_send_takes_along_is_told(void **state)
{
    static const struct stream_handler told = {.on_frame = take_frame, .on_end = take_end, .on_drained = note_drained};
    static const struct stream_limits limits = {.frame_max = FRAME_LIMIT, .queue_max = QUEUE_LIMIT};
    struct half h = {.sink = {.got = BUF_INIT(1 << 20), .stop_after = -1}};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(loop_new(&h.sink.loop), 0);
    assert_int_equal(stream_new(h.sink.loop, pair[0], &limits, &told, &h, &h.sink.stream), 0);
    int small = 1;
    setsockopt(stream_fd(h.sink.stream), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    while (stream_queued(h.sink.stream) == 0)
        assert_int_equal(stream_send_typed(h.sink.stream, 'T', "ype", 3), 0);
    static uint8_t all[1 << 20];
    while (stream_queued(h.sink.stream) > 0) {
        assert_true(recv(pair[1], all, sizeof all, 0) > 0);
        assert_int_equal(stream_send_typed(h.sink.stream, 'T', "ype", 3), 0);
    }
    assert_int_equal(h.drained, 0);  // never from inside a send
    assert_int_equal(loop_run(h.sink.loop), 0);
    assert_int_equal(h.drained, 1);
    close(pair[1]);
    assert_int_equal(loop_run(h.sink.loop), 0);
    assert_true(h.sink.ended);
    assert_int_equal(h.drained, 1);
    stream_free(h.sink.stream);
    loop_free(h.sink.loop);
    buf_free(&h.sink.got);
}

static void half_a_close_is_told_apart(void **state)
{
    for (int half_before = 0; half_before < 2; half_before++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        a_close_is_the_end(pair, half_before);
    }
}

static void half_a_close_is_told_apart_over_vsock(void **state)
{
    for (int half_before = 0; half_before < 2; half_before++) {
        int pair[2];
        if (!vsock_pair(pair))
            skip();
        a_close_is_the_end(pair, half_before);
    }
}

// ---- descriptors ----

// Each descriptor comes with the first byte of its frame, also behind others in a queue.
static void descriptors_keep_their_place(void **state)
{
    static const struct stream_limits limits = {.frame_max = FRAME_LIMIT, .queue_max = 1 << 20};
    struct sink s = {.got = BUF_INIT(1 << 20), .stop_after = -1};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(loop_new(&s.loop), 0);
    assert_int_equal(stream_new(s.loop, pair[0], &limits, &handler, &s, &s.stream), 0);
    int small = 1;
    setsockopt(stream_fd(s.stream), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    while (stream_queued(s.stream) == 0)
        assert_int_equal(stream_send_bytes(s.stream, "plain", 5), 0);
    Sandbox__StreamResponse response = SANDBOX__STREAM_RESPONSE__INIT;
    response.sandbox_id = 7;
    size_t each = FRAME_HEAD + protobuf_c_message_get_packed_size(&response.base), plain = FRAME_HEAD + 5;
    for (int i = 0; i < STREAM_FDS_MAX; i++) {
        assert_int_equal(stream_send_fd(s.stream, &response, open("/dev/null", O_RDONLY | O_CLOEXEC)), 0);
        assert_int_equal(stream_send_bytes(s.stream, "plain", 5), 0);
    }
    int over = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(stream_send_fd(s.stream, &response, over), -ENOSPC);
    close(over);
    size_t came = 0, at = 0, first = 0;
    fcntl(pair[1], F_SETFL, O_NONBLOCK);
    while (came < STREAM_FDS_MAX || stream_queued(s.stream) > 0) {
        uint8_t byte;
        int fd = -1;
        size_t count = 1;
        ssize_t n = fdpass_recv(pair[1], &byte, 1, &fd, &count);
        if (n == -EAGAIN) {
            struct timer stop = {0};
            timer_init(&stop, loop_stop_now, s.loop);
            timer_set(s.loop, &stop, mono_ns() + NS_PER_MS);
            loop_run(s.loop);
            timer_cancel(s.loop, &stop);
            continue;
        }
        assert_int_equal(n, 1);
        if (count == 1) {
            first = came == 0 ? at : first;
            assert_int_equal(at, first + came * (each + plain));
            came++;
            close(fd);
        }
        at++;
    }
    assert_int_equal(came, STREAM_FDS_MAX);
    // One that still waits is closed with the stream.
    close_sink(&s, pair[1]);
}

// What a pipe holds goes behind what is queued, whatever the socket takes at once; meanwhile nothing else can be sent.
static void bytes_of_a_pipe_keep_their_place(void **state)
{
    enum { MANY = 60000 };
    struct sink s;
    int peer = open_sink(&s), fds[2] = PAGES_NO_PIPE;
    size_t before = 0, n = 0;
    static uint8_t bytes[MANY], got[1 << 20];
    memset(bytes, 'p', sizeof bytes);
    assert_int_equal(pages_take_pipe(fds), 0);
    assert_int_equal(write(fds[1], bytes, MANY), MANY);
    // The socket is full, and a frame is queued.
    while (stream_queued(s.stream) == 0) {
        assert_int_equal(stream_send_bytes(s.stream, "abc", 3), 0);
        before++;
    }
    assert_int_equal(stream_send_pages(s.stream, fds[0], MANY), 0);
    assert_int_equal(stream_queued(s.stream), FRAME_HEAD + 3 + MANY);
    assert_int_equal(stream_send_bytes(s.stream, "x", 1), -EBUSY);
    assert_int_equal(stream_send_pages(s.stream, fds[0], 1), -EBUSY);
    while (n < before * (FRAME_HEAD + 3) + MANY) {
        turn(&s);
        ssize_t r = recv(peer, got + n, sizeof got - n, MSG_DONTWAIT);
        assert_true(r > 0 || errno == EAGAIN);
        n += r > 0 ? (size_t)r : 0;
    }
    assert_memory_equal(got + n - MANY, bytes, MANY);
    assert_memory_equal(got + n - MANY - 3, "abc", 3);
    assert_int_equal(stream_queued(s.stream), 0);
    assert_int_equal(stream_send_bytes(s.stream, "x", 1), 0);
    pages_give_pipe(fds);
    close_sink(&s, peer);
}

static void a_pipe_keeps_what_its_reader_never_took(void **state)
{
    struct sink s;
    int peer = open_sink(&s), fds[2] = PAGES_NO_PIPE;
    assert_int_equal(pages_take_pipe(fds), 0);
    close(peer);
    assert_int_equal(write(fds[1], "abc", 3), 3);
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(stream_send_pages(s.stream, fds[0], 3), -EPIPE);
    pages_close_pipe(fds);
    pages_close_pipe(fds);
    assert_int_equal(fds[0], -1);
    close_sink(&s, open("/dev/null", O_RDONLY));
}

static void empty_pipes_are_kept_up_to_a_number(void **state)
{
    int pipes[PAGES_SPARE + 1][2];
    for (int i = 0; i <= PAGES_SPARE; i++)
        assert_int_equal(pages_take_pipe(pipes[i]), 0);
    int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC), last = pipes[PAGES_SPARE][1];
    close(lowest);
    for (int i = 0; i <= PAGES_SPARE; i++)
        pages_give_pipe(pipes[i]);
    assert_int_equal(fcntl(last, F_GETFD), -1);
    for (int i = 0; i < PAGES_SPARE; i++)
        assert_int_equal(pages_take_pipe(pipes[i]), 0);
    int again = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(again <= last);
    close(again);
    for (int i = 0; i < PAGES_SPARE; i++)
        pages_close_pipe(pipes[i]);
}

// A receiver at its limit is told that something came which it could not have.
static void descriptors_beyond_the_limit_are_said_to_be_lost(void **state)
{
    int pair[2], fds[2], got[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    for (int i = 0; i < 2; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (int room = 0; room <= 2; room++) {
        size_t count = 2;
        char byte = 0;
        assert_int_equal(fdpass_send(pair[0], "x", 1, fds, 2), 1);
        const struct rlimit few = {.rlim_cur = (rlim_t)(fds[1] + 1 + room), .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        ssize_t n = fdpass_recv(pair[1], &byte, 1, got, &count);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(n, 1);
        assert_int_equal(byte, 'x');
        if (room == 2) {
            assert_int_equal(count, 2);
            close(got[0]);
            close(got[1]);
        } else {
            assert_true(count == FDPASS_LOST);
        }
        int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert_int_equal(lowest, fds[1] + 1);
        close(lowest);
    }
    close(fds[0]);
    close(fds[1]);
    close(pair[0]);
    close(pair[1]);
}

static void too_many_descriptors_are_closed(void **state)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    int fds[3], got[2];
    for (int i = 0; i < 3; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    size_t count = 2;
    char byte;
    assert_int_equal(fdpass_send(pair[0], "x", 1, fds, 3), 1);
    assert_int_equal(fdpass_recv(pair[1], &byte, 1, got, &count), -EPROTO);
    assert_int_equal(fdpass_send(pair[0], "x", 1, fds, 1), 1);
    assert_int_equal(fdpass_recv(pair[1], &byte, 1, NULL, NULL), -EPROTO);
    int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(lowest, fds[2] + 1);
    close(lowest);
    count = 2;
    assert_int_equal(fdpass_send(pair[0], "x", 1, fds, 2), 1);
    assert_int_equal(fdpass_recv(pair[1], &byte, 1, got, &count), 1);
    assert_int_equal(count, 2);
    assert_int_equal(fcntl(got[0], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(got[0]);
    close(got[1]);
    assert_int_equal(fdpass_send(pair[0], "x", 1, fds, FDPASS_MAX + 1), -EINVAL);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timers_fire_in_order_of_time),
        cmocka_unit_test(a_removed_watch_is_never_called),
        cmocka_unit_test(frames_arrive_whole_however_they_are_cut),
        cmocka_unit_test(a_frame_has_a_longest_length),
        cmocka_unit_test(held_frames_wait_and_are_not_lost),
        cmocka_unit_test(a_peer_that_does_not_read_meets_the_queue_ceiling),
        cmocka_unit_test(what_a_send_takes_along_is_told),
        cmocka_unit_test(half_a_close_is_told_apart),
        cmocka_unit_test(half_a_close_is_told_apart_over_vsock),
        cmocka_unit_test(descriptors_keep_their_place),
        cmocka_unit_test(bytes_of_a_pipe_keep_their_place),
        cmocka_unit_test(a_pipe_keeps_what_its_reader_never_took),
        cmocka_unit_test(empty_pipes_are_kept_up_to_a_number),
        cmocka_unit_test(descriptors_beyond_the_limit_are_said_to_be_lost),
        cmocka_unit_test(too_many_descriptors_are_closed),
    };
    return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}

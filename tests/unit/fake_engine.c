#include "fake_engine.h"

#include "base/buf.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PEERS_MAX = 64 };

struct fake_peer {
    struct fake_engine *engine;
    int fd;
    pthread_t thread;
    pthread_mutex_t send_lock;
    size_t in_len;
    uint8_t in[FRAME_HEAD + IPC_FRAME_MAX];
};

struct fake_engine {
    char dir[64], path[96];
    int listener;
    fake_handler handler;
    void *arg;
    pthread_t acceptor;
    pthread_mutex_t lock;
    struct fake_peer *peers[PEERS_MAX];
    size_t n_peers;
};

static atomic_uint destroyed, next_sandbox;

static void take_frames(struct fake_peer *peer)
{
    const uint8_t *body;
    size_t n, at = 0;
    while (frame_find(peer->in + at, peer->in_len - at, IPC_FRAME_MAX, &body, &n) == 1) {
        Sandbox__ClientMessage *m = (Sandbox__ClientMessage *)pb_unpack(&sandbox__client_message__descriptor, body, n);
        assert(m != NULL && m->request_id != 0);
        peer->engine->handler(peer, m, peer->engine->arg);
        pb_free(m);
        at += FRAME_HEAD + n;
    }
    peer->in_len -= at;
    memmove(peer->in, peer->in + at, peer->in_len);
}

static void *peer_main(void *arg)
{
    struct fake_peer *peer = arg;
    ssize_t n;
    while ((n = read(peer->fd, peer->in + peer->in_len, sizeof peer->in - peer->in_len)) > 0) {
        peer->in_len += (size_t)n;
        take_frames(peer);
    }
    return NULL;
}

static void *acceptor_main(void *arg)
{
    struct fake_engine *engine = arg;
    int fd;
    while ((fd = accept4(engine->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct fake_peer *peer = calloc(1, sizeof *peer);
        assert(peer != NULL);
        peer->engine = engine;
        peer->fd = fd;
        pthread_mutex_init(&peer->send_lock, NULL);
        pthread_mutex_lock(&engine->lock);
        assert(engine->n_peers < PEERS_MAX);
        engine->peers[engine->n_peers++] = peer;
        pthread_mutex_unlock(&engine->lock);
        pthread_create(&peer->thread, NULL, peer_main, peer);
    }
    return NULL;
}

struct fake_engine *fake_start(fake_handler handler, void *arg)
{
    struct fake_engine *engine = calloc(1, sizeof *engine);
    assert(engine != NULL);
    atomic_store(&destroyed, 0);
    atomic_store(&next_sandbox, 1);
    engine->handler = handler;
    engine->arg = arg;
    pthread_mutex_init(&engine->lock, NULL);
    strcpy(engine->dir, "/tmp/fake-engine-XXXXXX");
    if (mkdtemp(engine->dir) == NULL)
        abort();
    snprintf(engine->path, sizeof engine->path, "%s/engine.sock", engine->dir);
    engine->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, engine->path);
    if (bind(engine->listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(engine->listener, 16) < 0)
        abort();
    pthread_create(&engine->acceptor, NULL, acceptor_main, engine);
    return engine;
}

void fake_stop(struct fake_engine *engine)
{
    shutdown(engine->listener, SHUT_RDWR);
    pthread_join(engine->acceptor, NULL);
    for (size_t i = 0; i < engine->n_peers; i++) {
        shutdown(engine->peers[i]->fd, SHUT_RDWR);
        pthread_join(engine->peers[i]->thread, NULL);
        close(engine->peers[i]->fd);
        free(engine->peers[i]);
    }
    close(engine->listener);
    unlink(engine->path);
    rmdir(engine->dir);
    free(engine);
}

const char *fake_path(const struct fake_engine *engine)
{
    return engine->path;
}

void fake_send(struct fake_peer *peer, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    pthread_mutex_lock(&peer->send_lock);
    while (n > 0) {
        ssize_t sent = send(peer->fd, p, n, MSG_NOSIGNAL);
        if (sent < 0)
            break;
        p += sent;
        n -= (size_t)sent;
    }
    pthread_mutex_unlock(&peer->send_lock);
}

void fake_reply(struct fake_peer *peer, const Sandbox__ServerMessage *m)
{
    struct buf frame = BUF_INIT(2 * IPC_FRAME_MAX);
    if (pb_append_frame(&frame, m, IPC_FRAME_MAX) < 0)
        abort();
    fake_send(peer, frame.data, frame.len);
    buf_free(&frame);
}

void fake_error(struct fake_peer *peer, uint64_t request_id, int32_t code, const char *text)
{
    Sandbox__ErrorResponse error = SANDBOX__ERROR_RESPONSE__INIT;
    error.error_code = code;
    error.message = (char *)text;
    Sandbox__ServerMessage m = SANDBOX__SERVER_MESSAGE__INIT;
    m.request_id = request_id;
    m.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR;
    m.error = &error;
    fake_reply(peer, &m);
}

void fake_guest_bytes(struct fake_peer *peer, const Sandbox__ClientMessage *m, const void *body, size_t n)
{
    Sandbox__GuestResponse guest = SANDBOX__GUEST_RESPONSE__INIT;
    guest.sandbox_id = m->guest->sandbox_id;
    guest.body.data = (uint8_t *)body;
    guest.body.len = n;
    Sandbox__ServerMessage reply = SANDBOX__SERVER_MESSAGE__INIT;
    reply.request_id = m->request_id;
    reply.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST;
    reply.guest = &guest;
    fake_reply(peer, &reply);
}

void fake_guest(struct fake_peer *peer, const Sandbox__ClientMessage *m, const Sandbox__Guest__Result *result)
{
    size_t n = protobuf_c_message_get_packed_size(&result->base);
    uint8_t *body = malloc(n + 1);
    assert(body != NULL);
    protobuf_c_message_pack(&result->base, body);
    fake_guest_bytes(peer, m, body, n);
    free(body);
}

void fake_stop_reading(struct fake_peer *peer)
{
    shutdown(peer->fd, SHUT_RD);
}

void fake_hang_up(struct fake_peer *peer)
{
    shutdown(peer->fd, SHUT_RDWR);
}

static void behave_guest(struct fake_peer *peer, const Sandbox__ClientMessage *m)
{
    if (m->guest->op_case != SANDBOX__GUEST_REQUEST__OP_EXEC) {
        Sandbox__Guest__Result io = SANDBOX__GUEST__RESULT__INIT;
        io.status = SANDBOX__GUEST__STATUS__STATUS_IO;
        fake_guest(peer, m, &io);
        return;
    }
    Sandbox__Guest__ExecResult exec = SANDBOX__GUEST__EXEC_RESULT__INIT;
    exec.out = (ProtobufCBinaryData){.data = (uint8_t *)"out", .len = 3};
    exec.err = (ProtobufCBinaryData){.data = (uint8_t *)"err", .len = 3};
    exec.out_total = exec.err_total = 3;
    Sandbox__Guest__Result result = SANDBOX__GUEST__RESULT__INIT;
    result.result_case = SANDBOX__GUEST__RESULT__RESULT_EXEC;
    result.exec = &exec;
    fake_guest(peer, m, &result);
}

void fake_behave(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    (void)arg;
    Sandbox__CreateResponse create = SANDBOX__CREATE_RESPONSE__INIT;
    Sandbox__Network network = SANDBOX__NETWORK__INIT;
    char *egress[] = {(char *)"index.example.org:443", (char *)"*.example.net"};
    network.n_egress = 2;
    network.egress = egress;
    network.guest_address = (char *)"169.254.7.2";
    network.host_address = (char *)"169.254.7.1";
    network.prefix_bits = 30;
    network.broker_port = 8080;
    Sandbox__DestroyResponse destroy = SANDBOX__DESTROY_RESPONSE__INIT;
    Sandbox__PauseResponse pause = SANDBOX__PAUSE_RESPONSE__INIT;
    Sandbox__ResumeResponse resume = SANDBOX__RESUME_RESPONSE__INIT;
    Sandbox__InspectResponse inspect = SANDBOX__INSPECT_RESPONSE__INIT;
    Sandbox__StatusResponse status = SANDBOX__STATUS_RESPONSE__INIT;
    Sandbox__ServerMessage reply = SANDBOX__SERVER_MESSAGE__INIT;
    reply.request_id = m->request_id;
    // Requests and their answers have the same number.
    reply.response_case = (Sandbox__ServerMessage__ResponseCase)m->request_case;
    switch (m->request_case) {
    case SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE:
        create.sandbox_id = atomic_fetch_add(&next_sandbox, 1);
        create.session_token = (char *)"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        create.isolation = SANDBOX__ISOLATION__ISOLATION_CONTAINER;
        create.start = (char *)"cold";
        if (m->create->n_egress_allow > 0)
            create.network = &network;
        reply.create = &create;
        break;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY:
        atomic_fetch_add(&destroyed, 1);
        reply.destroy = &destroy;
        break;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE:
        reply.pause = &pause;
        break;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_RESUME:
        reply.resume = &resume;
        break;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_INSPECT:
        inspect.sandbox_id = m->inspect->sandbox_id;
        inspect.is_running = true;
        inspect.uptime_ms = 1234;
        inspect.memory_rss_mib = 56;
        inspect.page_faults = 78;
        reply.inspect = &inspect;
        break;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_STATUS:
        status.json = (char *)"{\"version\":\"test\"}";
        reply.status = &status;
        break;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST:
        behave_guest(peer, m);
        return;
    default:
        fake_error(peer, m->request_id, -2, "unknown request");
        return;
    }
    fake_reply(peer, &reply);
}

unsigned fake_destroyed(void)
{
    return atomic_load(&destroyed);
}

void fake_stream(struct fake_peer *peer, const Sandbox__ClientMessage *m, int fd)
{
    Sandbox__StreamResponse response = SANDBOX__STREAM_RESPONSE__INIT;
    response.sandbox_id = m->stream->sandbox_id;
    Sandbox__ServerMessage reply = SANDBOX__SERVER_MESSAGE__INIT;
    reply.request_id = m->request_id;
    reply.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_STREAM;
    reply.stream = &response;
    struct buf frame = BUF_INIT(FRAME_HEAD + IPC_FRAME_MAX);
    int r = pb_append_frame(&frame, &reply, IPC_FRAME_MAX);
    assert(r == 0);
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = frame.data, .iov_len = frame.len};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    pthread_mutex_lock(&peer->send_lock);
    ssize_t n = sendmsg(peer->fd, &message, MSG_NOSIGNAL);
    pthread_mutex_unlock(&peer->send_lock);
    assert(n == (ssize_t)frame.len || n < 0);
    buf_free(&frame);
}

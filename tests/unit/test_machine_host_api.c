// The machine's part of the line to route grants: connections from the agent, each of which becomes one to the host.  Here the
// host is a Unix socket of this test.
#include "agent/machine_host_api.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/fdpass.h"
#include "unit.h"
#include "wire/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000, TURN_MS = 5, QUIET_TURNS = 20, BULK = 3 << 20 };

static struct sockaddr_un host_address;
static unsigned calls;
static unsigned last_port;

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol)
{
    return __real_socket(domain == AF_VSOCK ? AF_UNIX : domain, type, protocol);
}

int __real_connect(int fd, const struct sockaddr *address, socklen_t n);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t n);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t n)
{
    if (address->sa_family != AF_VSOCK)
        return __real_connect(fd, address, n);
    struct sockaddr_vm to;
    assert_int_equal(n, sizeof to);
    memcpy(&to, address, sizeof to);
    assert_int_equal(to.svm_cid, VMADDR_CID_HOST);
    calls++;
    last_port = to.svm_port;
    // As vsock does, it does not say at once that nobody listens.
    if (__real_connect(fd, (const struct sockaddr *)&host_address, sizeof host_address) < 0 && errno != ECONNREFUSED)
        return -1;
    errno = EINPROGRESS;
    return -1;
}

struct world {
    struct loop *loop;
    struct timer turn;
    struct machine_host_api *api;
    int agent, host;
};

static void on_turn(void *arg)
{
    struct world *w = arg;
    loop_stop(w->loop, 0);
}

static void turn(struct world *w)
{
    assert_int_equal(timer_set(w->loop, &w->turn, mono_ns() + TURN_MS * NS_PER_MS), 0);
    assert_int_equal(loop_run(w->loop), 0);
}

static int listen_here(void)
{
    static unsigned number;
    int fd = __real_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    host_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(host_address.sun_path + 1, sizeof host_address.sun_path - 1, "test-machine-host-api-%d-%u", getpid(), number++);
    assert_int_equal(bind(fd, (const struct sockaddr *)&host_address, sizeof host_address), 0);
    assert_int_equal(listen(fd, 128), 0);
    return fd;
}

static int setup(void **state)
{
    static struct world w;
    w = (struct world){.agent = -1, .host = listen_here()};
    calls = 0;
    timer_init(&w.turn, on_turn, &w);
    *state = &w;
    return loop_new(&w.loop) < 0 || machine_host_api_new(w.loop, &w.api, &w.agent) < 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    machine_host_api_free(w->api);
    timer_cancel(w->loop, &w->turn);
    loop_free(w->loop);
    close_fd(&w->agent);
    close_fd(&w->host);
    return 0;
}

// What the agent does with a connection of a process.  The process's end.
static int give(struct world *w)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(fdpass_send(w->agent, "c", 1, &pair[1], 1), 1);
    close(pair[1]);
    return pair[0];
}

// -1: there is none.
static int taken(struct world *w)
{
    return accept4(w->host, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static int await_call(struct world *w)
{
    uint64_t end = mono_ns() + PATIENCE_MS * NS_PER_MS;
    int fd;
    while ((fd = taken(w)) < 0) {
        assert_true(mono_ns() < end);
        turn(w);
    }
    return fd;
}

// Reads until `n` bytes are there, or the end; how many.
static size_t await_bytes(struct world *w, int fd, char *bytes, size_t n)
{
    uint64_t end = mono_ns() + PATIENCE_MS * NS_PER_MS;
    size_t have = 0;
    while (have < n) {
        ssize_t got = read(fd, bytes + have, n - have);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            break;
        assert_true(got > 0 || errno == EAGAIN);
        have += got > 0 ? (size_t)got : 0;
        if (got > 0)
            continue;
        assert_true(mono_ns() < end);
        turn(w);
    }
    return have;
}

static void bytes_go_both_ways_and_each_ends_by_itself(void **state)
{
    struct world *w = *state;
    char bytes[16];
    cleanup_fd int inside = give(w);
    cleanup_fd int outside = await_call(w);
    assert_int_equal(last_port, HOST_API_VSOCK_PORT);
    assert_int_equal(write(inside, "ask", 3), 3);
    assert_int_equal(await_bytes(w, outside, bytes, 3), 3);
    assert_memory_equal(bytes, "ask", 3);
    assert_int_equal(shutdown(inside, SHUT_WR), 0);
    assert_int_equal(await_bytes(w, outside, bytes, 1), 0);
    // The other direction goes on.
    assert_int_equal(write(outside, "answer", 6), 6);
    assert_int_equal(await_bytes(w, inside, bytes, 6), 6);
    assert_memory_equal(bytes, "answer", 6);
    close_fd(&outside);
    assert_int_equal(await_bytes(w, inside, bytes, 1), 0);
}

static unsigned char pattern(size_t at)
{
    return (unsigned char)(at * 2654435761u >> 24);
}

// Far more than is held of a direction: who reads slowly slows the other side down, and gets all of it.
static void much_is_moved_as_fast_as_it_is_read(void **state)
{
    struct world *w = *state;
    static char bytes[BULK];
    cleanup_fd int inside = give(w);
    cleanup_fd int outside = await_call(w);
    size_t sent = 0, had = 0;
    for (uint64_t end = mono_ns() + PATIENCE_MS * NS_PER_MS; had < BULK && mono_ns() < end;) {
        unsigned char part[4096];
        for (size_t i = 0; i < sizeof part; i++)
            part[i] = pattern(sent + i);
        size_t n = BULK - sent < sizeof part ? BULK - sent : sizeof part;
        ssize_t r = n > 0 ? write(outside, part, n) : 0;
        sent += r > 0 ? (size_t)r : 0;
        if (n > 0 && r > 0)
            continue;
        turn(w);
        ssize_t got = read(inside, bytes + had, BULK - had);
        had += got > 0 ? (size_t)got : 0;
    }
    assert_int_equal(had, BULK);
    for (size_t i = 0; i < BULK; i++)
        assert_int_equal((unsigned char)bytes[i], pattern(i));
}

static void a_host_that_does_not_listen_ends_the_connection(void **state)
{
    struct world *w = *state;
    char byte;
    close_fd(&w->host);
    cleanup_fd int inside = give(w);
    assert_int_equal(await_bytes(w, inside, &byte, 1), 0);
    assert_int_equal(calls, 1);
    // The next one is served.
    w->host = listen_here();
    cleanup_fd int again = give(w);
    cleanup_fd int outside = await_call(w);
    assert_int_equal(write(again, "x", 1), 1);
    assert_int_equal(await_bytes(w, outside, &byte, 1), 1);
}

static void no_more_than_so_many_are_open(void **state)
{
    struct world *w = *state;
    int inside[MACHINE_HOST_API_RELAYS_MAX + 1], outside[MACHINE_HOST_API_RELAYS_MAX];
    char byte;
    for (int i = 0; i < MACHINE_HOST_API_RELAYS_MAX + 1; i++)
        inside[i] = give(w);
    for (int i = 0; i < MACHINE_HOST_API_RELAYS_MAX; i++)
        outside[i] = await_call(w);
    for (int i = 0; i < QUIET_TURNS; i++)
        turn(w);
    assert_int_equal(taken(w), -1);
    assert_int_equal(calls, MACHINE_HOST_API_RELAYS_MAX);
    // One ends, and the one that waited is next.
    close_fd(&inside[0]);
    assert_int_equal(await_bytes(w, outside[0], &byte, 1), 0);
    close_fd(&outside[0]);
    cleanup_fd int late = await_call(w);
    assert_int_equal(write(inside[MACHINE_HOST_API_RELAYS_MAX], "l", 1), 1);
    assert_int_equal(await_bytes(w, late, &byte, 1), 1);
    for (int i = 1; i < MACHINE_HOST_API_RELAYS_MAX; i++) {
        close_fd(&inside[i]);
        close_fd(&outside[i]);
    }
    close_fd(&inside[MACHINE_HOST_API_RELAYS_MAX]);
}

// The agent is not trusted: a packet without a descriptor, with one that is no stream, with two.
static void what_is_no_connection_is_dropped(void **state)
{
    struct world *w = *state;
    int pair[2], packets[2];
    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, packets), 0);
    assert_int_equal(fdpass_send(w->agent, "c", 1, NULL, 0), 1);
    assert_int_equal(fdpass_send(w->agent, "c", 1, &pair[0], 1), 1);
    assert_int_equal(fdpass_send(w->agent, "c", 1, &packets[0], 1), 1);
    assert_int_equal(fdpass_send(w->agent, "c", 1, pair, 2), 1);
    cleanup_fd int inside = give(w);
    cleanup_fd int outside = await_call(w);
    assert_int_equal(calls, 1);
    for (int i = 0; i < 2; i++) {
        close(pair[i]);
        close(packets[i]);
    }
}

static void its_end_ends_all(void **state)
{
    struct world *w = *state;
    char byte;
    cleanup_fd int inside = give(w);
    cleanup_fd int outside = await_call(w);
    w->api = machine_host_api_free(w->api);
    assert_null(w->api);
    assert_int_equal(await_bytes(w, inside, &byte, 1), 0);
    assert_int_equal(await_bytes(w, outside, &byte, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_go_both_ways_and_each_ends_by_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(much_is_moved_as_fast_as_it_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(a_host_that_does_not_listen_ends_the_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(no_more_than_so_many_are_open, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_connection_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(its_end_ends_all, setup, teardown),
    };
    return cmocka_run_group_tests_name("machine_host_api", tests, NULL, NULL);
}

// The engine-jailer protocol: what the privileged side lets through, field by field.
#include "base/cleanup.h"
#include "sys/fdpass.h"
#include "sys/jail.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static struct jail_request good_start(void)
{
    return (struct jail_request){
        .op = JAIL_OP_START,
        .id = 1,
        .start = {.template_slot = 0, .vcpus = 1, .memory_mib = 128, .disk_mib = 64, .pids_max = 100, .hostname = "sbx-1"},
    };
}

static void start_fields_have_two_sides(void **state)
{
    struct jail_request q = good_start();
    assert_int_equal(jail_check(&q, true), 0);
    assert_int_equal(jail_check(&q, false), -EPROTO);
#define TRY(field, value, expected)                                                                                            \
    do {                                                                                                                       \
        q = good_start();                                                                                                      \
        q.field = (value);                                                                                                     \
        assert_int_equal(jail_check(&q, true), (expected));                                                                    \
    } while (0)
    TRY(start.template_slot, JAIL_TEMPLATES_MAX - 1, 0);
    TRY(start.template_slot, JAIL_TEMPLATES_MAX, -EPROTO);
    TRY(start.vcpus, 0, -EPROTO);
    TRY(start.vcpus, JAIL_VCPUS_MAX, 0);
    TRY(start.vcpus, JAIL_VCPUS_MAX + 1, -EPROTO);
    TRY(start.memory_mib, JAIL_MEMORY_MIB_MIN - 1, -EPROTO);
    TRY(start.memory_mib, JAIL_MEMORY_MIB_MIN, 0);
    TRY(start.memory_mib, JAIL_MEMORY_MIB_MAX, 0);
    TRY(start.memory_mib, JAIL_MEMORY_MIB_MAX + 1, -EPROTO);
    TRY(start.memory_mib, UINT64_MAX, -EPROTO);
    TRY(start.disk_mib, JAIL_DISK_MIB_MIN - 1, -EPROTO);
    TRY(start.disk_mib, JAIL_DISK_MIB_MAX, 0);
    TRY(start.disk_mib, JAIL_DISK_MIB_MAX + 1, -EPROTO);
    TRY(start.pids_max, 7, -EPROTO);
    TRY(start.pids_max, JAIL_PIDS_MAX, 0);
    TRY(start.pids_max, JAIL_PIDS_MAX + 1, -EPROTO);
    TRY(start.disk_mib_s, JAIL_DISK_MIB_S_MAX, 0);
    TRY(start.disk_mib_s, JAIL_DISK_MIB_S_MAX + 1, -EPROTO);
    TRY(start.disk_iops, JAIL_DISK_IOPS_MAX, 0);
    TRY(start.disk_iops, JAIL_DISK_IOPS_MAX + 1, -EPROTO);
    TRY(volume.id[JAIL_VOLUME_ID - 1], 1, 0);
    TRY(volume.mib, 1, -EPROTO);
    TRY(volume.machine, 1, -EPROTO);
    TRY(volume.reserved, 1, -EPROTO);
    TRY(reserved, 1, -EPROTO);
    TRY(slot, 1, -EPROTO);
    TRY(network.line, JAIL_LINE_ALL_, 0);
    TRY(network.line, JAIL_LINE_ALL_ + 1, -EPROTO);
    TRY(network.line, JAIL_LINE_PUBLISH, 0);
    TRY(network.line, JAIL_LINE_TRANSPARENT, -EPROTO);
    TRY(network.line, JAIL_LINE_TRANSPARENT | JAIL_LINE_PUBLISH, -EPROTO);
    TRY(network.port, JAIL_PORT_MIN, -EPROTO);
    TRY(network.synthetic[3], 1, -EPROTO);
    TRY(network.synthetic_prefix, JAIL_SYNTHETIC_PREFIX_MIN, -EPROTO);
    TRY(network.reserved[4], 1, -EPROTO);
    TRY(id, 0, -EPROTO);
    TRY(op, 0, -EPROTO);
    TRY(op, JAIL_OP_EXITED, -EPROTO);
    TRY(op, JAIL_OP_END_, -EPROTO);
    TRY(op, UINT32_MAX, -EPROTO);
#undef TRY
}

static void host_names_come_from_an_alphabet(void **state)
{
    static const char *const bad[] = {"", "-a", "a-", "A", "a.b", "a_b", "a b", "a/b", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct jail_request q = good_start();
        memset(q.start.hostname, 0, sizeof q.start.hostname);
        memcpy(q.start.hostname, bad[i], strlen(bad[i]));
        assert_int_equal(jail_check(&q, true), -EPROTO);
    }
    struct jail_request q = good_start();
    memset(q.start.hostname, 'a', JAIL_HOSTNAME_MAX);
    q.start.hostname[JAIL_HOSTNAME_MAX] = '\0';
    assert_int_equal(jail_check(&q, true), 0);
    q.start.hostname[JAIL_HOSTNAME_MAX] = 'a';  // no end
    assert_int_equal(jail_check(&q, true), -EPROTO);
}

static void layers_are_named_up_to_the_most(void **state)
{
    for (uint32_t count = 0; count <= JAIL_LAYERS_MAX + 1; count++)
        for (uint32_t named = 0; named <= JAIL_LAYERS_MAX; named++)
            for (uint32_t copy = 0; copy <= 2; copy++) {
                struct jail_request q = good_start();
                q.layers.count = count;
                q.layers.copy = copy;
                for (uint32_t i = 0; i < named; i++)
                    q.layers.id[i][JAIL_VOLUME_ID - 1] = 1;
                bool good = count <= JAIL_LAYERS_MAX && named == count && copy <= (count > 0 ? 1 : 0);
                assert_int_equal(jail_check(&q, true), good ? 0 : -EPROTO);
            }
    static const struct {
        enum jail_op op;
        bool uses_slot, none, one;
    } ops[] = {{JAIL_OP_SNAPSHOT, true, false, true},      {JAIL_OP_SNAPSHOT_CANCEL, true, true, false},
               {JAIL_OP_LAYER_DELETE, false, false, true}, {JAIL_OP_LAYER_LIST, false, true, true},
               {JAIL_OP_STOP, true, true, false},          {JAIL_OP_START_VM, false, false, false}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        struct jail_request q = {.op = ops[i].op, .id = 1};
        assert_int_equal(jail_check(&q, 0), ops[i].none ? 0 : -EPROTO);
        q.layers.count = 1;
        q.layers.id[0][0] = 1;
        assert_int_equal(jail_check(&q, 0), ops[i].one ? 0 : -EPROTO);
        q.slot = 1;
        assert_int_equal(jail_check(&q, 0), ops[i].one && ops[i].uses_slot ? 0 : -EPROTO);
        q.slot = 0;
        q.layers.copy = 1;
        assert_int_equal(jail_check(&q, 0), -EPROTO);
        q.layers.copy = 0;
        q.layers.count = 2;
        q.layers.id[1][0] = 1;
        assert_int_equal(jail_check(&q, 0), -EPROTO);
    }
}

static void other_operations_carry_nothing_else(void **state)
{
    static const struct {
        uint32_t op;
        bool fd;
    } ops[] = {{JAIL_OP_HELLO, false}, {JAIL_OP_PROBE, false},  {JAIL_OP_MOUNT, true}, {JAIL_OP_UNMOUNT, false},
               {JAIL_OP_STOP, false},  {JAIL_OP_FREEZE, false}, {JAIL_OP_THAW, false}, {JAIL_OP_STATS, false}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        struct jail_request q = {.op = ops[i].op, .id = 9};
        assert_int_equal(jail_check(&q, ops[i].fd), 0);
        assert_int_equal(jail_check(&q, !ops[i].fd), -EPROTO);
        q.start.vcpus = 1;
        assert_int_equal(jail_check(&q, ops[i].fd), -EPROTO);
        q = (struct jail_request){.op = ops[i].op, .id = 9, .volume.id[0] = 1};
        assert_int_equal(jail_check(&q, ops[i].fd), -EPROTO);
        q = (struct jail_request){.op = ops[i].op, .id = 9, .volume.mib = JAIL_VOLUME_MIB_MIN};
        assert_int_equal(jail_check(&q, ops[i].fd), -EPROTO);
    }
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        struct jail_request q = {.op = ops[i].op, .id = 9, .network.line = JAIL_LINE_PROXY};
        assert_int_equal(jail_check(&q, ops[i].fd), -EPROTO);
        q.network = (struct jail_network){.port = JAIL_PORT_MIN};
        assert_int_equal(jail_check(&q, ops[i].fd), -EPROTO);
    }
    struct jail_request dial = {.op = JAIL_OP_DIAL, .id = 1, .slot = 7};
    assert_int_equal(jail_check(&dial, 0), 0);
    dial.network.line = JAIL_LINE_PUBLISH;
    assert_int_equal(jail_check(&dial, 0), -EPROTO);
    struct jail_request stop = {.op = JAIL_OP_STOP, .id = 1, .slot = JAIL_SANDBOXES_MAX - 1};
    assert_int_equal(jail_check(&stop, false), 0);
    stop.slot = JAIL_SANDBOXES_MAX;
    assert_int_equal(jail_check(&stop, false), -EPROTO);
    struct jail_request unmount = {.op = JAIL_OP_UNMOUNT, .id = 1, .slot = JAIL_TEMPLATES_MAX};
    assert_int_equal(jail_check(&unmount, false), -EPROTO);
}

static int check_volume(uint32_t op, uint8_t id, uint64_t mib)
{
    struct jail_request q = {.op = op, .id = 1, .volume = {.id = {id}, .mib = mib}};
    int r = jail_check(&q, false);
    assert_int_equal(jail_check(&q, true), -EPROTO);
    q.slot = 1;
    assert_int_equal(jail_check(&q, false), -EPROTO);
    q.slot = 0;
    q.start.vcpus = 1;
    assert_int_equal(jail_check(&q, false), -EPROTO);
    return r;
}

static void volumes_have_an_id_and_when_made_a_size(void **state)
{
    assert_int_equal(check_volume(JAIL_OP_VOLUME_CREATE, 1, JAIL_VOLUME_MIB_MIN - 1), -EPROTO);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_CREATE, 1, JAIL_VOLUME_MIB_MIN), 0);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_CREATE, 1, JAIL_VOLUME_MIB_MAX), 0);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_CREATE, 1, JAIL_VOLUME_MIB_MAX + 1), -EPROTO);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_CREATE, 1, UINT64_MAX), -EPROTO);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_CREATE, 0, JAIL_VOLUME_MIB_MIN), -EPROTO);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_DELETE, 1, 0), 0);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_DELETE, 0, 0), -EPROTO);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_DELETE, 1, JAIL_VOLUME_MIB_MIN), -EPROTO);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_LIST, 0, 0), 0);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_LIST, 255, 0), 0);
    assert_int_equal(check_volume(JAIL_OP_VOLUME_LIST, 0, 1), -EPROTO);
    struct jail_request q = {.op = JAIL_OP_VOLUME_CREATE, .id = 1, .volume = {.id = {1}, .mib = 64, .machine = 1}};
    assert_int_equal(jail_check(&q, 0), 0);
    q.volume.machine = 2;
    assert_int_equal(jail_check(&q, 0), -EPROTO);
    q.volume = (struct jail_volume){.id = {1}, .mib = 64, .reserved = 1};
    assert_int_equal(jail_check(&q, 0), -EPROTO);
    q = (struct jail_request){.op = JAIL_OP_VOLUME_DELETE, .id = 1, .volume = {.id = {1}, .machine = 1}};
    assert_int_equal(jail_check(&q, 0), -EPROTO);
}

static void machines_come_with_their_descriptors(void **state)
{
    struct jail_request q = good_start();
    q.op = JAIL_OP_START_VM;
    for (size_t fds = 0; fds <= JAIL_FDS_MAX + 1; fds++)
        assert_int_equal(jail_check(&q, fds), fds == 3 ? 0 : -EPROTO);
    q.volume.id[0] = 1;
    assert_int_equal(jail_check(&q, 3), 0);
    q.volume.machine = 1;  // which kind a volume is, is said once
    assert_int_equal(jail_check(&q, 3), -EPROTO);
    q.volume = (struct jail_volume){0};
    q.op = JAIL_OP_CLONE_VM;
    for (uint32_t waits = 0; waits <= 2; waits++)
        for (size_t fds = 0; fds <= JAIL_FDS_MAX + 1; fds++) {
            q.start.waits = waits;
            assert_int_equal(jail_check(&q, fds), waits <= 1 && (fds == 6 || fds == 7) ? 0 : -EPROTO);
        }
    q.start.waits = 0;
    q.volume.id[0] = 1;  // of which its template had none, as of a line
    q.network.line = JAIL_LINE_PROXY;
    assert_int_equal(jail_check(&q, 6), 0);
    q.volume.mib = 64;
    assert_int_equal(jail_check(&q, 6), -EPROTO);
    q.volume = (struct jail_volume){0};
    q.network.line = JAIL_LINE_ALL_ + 1;
    assert_int_equal(jail_check(&q, 6), -EPROTO);
    q.network.line = 0;
    q.op = JAIL_OP_START_VM;  // which cannot wait
    q.start.waits = 1;
    assert_int_equal(jail_check(&q, 3), -EPROTO);
    static const struct {
        uint32_t op;
        size_t fds;
    } plain[] = {{JAIL_OP_PROBE_VM, 0}, {JAIL_OP_IMAGE, 1}, {JAIL_OP_KERNEL, 2}};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        for (size_t fds = 0; fds <= JAIL_FDS_MAX; fds++) {
            const struct jail_request r = {.op = plain[i].op, .id = 1};
            assert_int_equal(jail_check(&r, fds), fds == plain[i].fds ? 0 : -EPROTO);
        }
}

static void networks_are_checked_field_by_field(void **state)
{
    static const struct {
        struct jail_network how;
        int expected;
    } cases[] = {
        {{.port = JAIL_PORT_MIN}, 0},
        {{.port = JAIL_PORT_MAX}, 0},
        {{.port = JAIL_PORT_MIN - 1}, -EPROTO},
        {{.port = 0}, -EPROTO},
        {{.port = 8080, .synthetic = {198, 18, 0, 0}, .synthetic_prefix = 15}, 0},
        {{.port = 8080, .synthetic = {10, 0, 0, 0}, .synthetic_prefix = JAIL_SYNTHETIC_PREFIX_MIN}, 0},
        {{.port = 8080, .synthetic = {10, 0, 0, 0}, .synthetic_prefix = JAIL_SYNTHETIC_PREFIX_MIN - 1}, -EPROTO},
        {{.port = 8080, .synthetic = {223, 255, 255, 0}, .synthetic_prefix = JAIL_SYNTHETIC_PREFIX_MAX}, 0},
        {{.port = 8080, .synthetic = {223, 255, 255, 0}, .synthetic_prefix = JAIL_SYNTHETIC_PREFIX_MAX + 1}, -EPROTO},
        {{.port = 8080, .synthetic = {198, 18, 0, 0}}, -EPROTO},
        {{.port = 8080, .synthetic = {198, 19, 0, 0}, .synthetic_prefix = 15}, -EPROTO},
        {{.port = 8080, .synthetic = {198, 18, 0, 1}, .synthetic_prefix = 24}, -EPROTO},
        {{.port = 8080, .synthetic = {0, 0, 0, 0}, .synthetic_prefix = 8}, -EPROTO},
        {{.port = 8080, .synthetic = {127, 0, 0, 0}, .synthetic_prefix = 8}, -EPROTO},
        {{.port = 8080, .synthetic = {224, 0, 0, 0}, .synthetic_prefix = 8}, -EPROTO},
        {{.port = 8080, .line = JAIL_LINE_PROXY}, -EPROTO},
        {{.port = 8080, .reserved = {1}}, -EPROTO},
        {{.port = 8080, .reserved = {0, 0, 0, 0, 1}}, -EPROTO},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct jail_request q = {.op = JAIL_OP_NETWORK, .id = 1, .network = cases[i].how};
        assert_int_equal(jail_check(&q, 0), cases[i].expected);
        assert_int_equal(jail_check(&q, 1), -EPROTO);
    }
}

// ---- descriptors of answers ----

static int taken = -1, others = -1;

static void take_the_second(void *arg, const struct jail_reply *reply, int *fds)
{
    assert_int_equal(reply->line.prefix, 30);
    assert_true(fds[0] >= 0 && fds[1] >= 0);
    assert_true(fds[2] == -1 && fds[3] == -1);
    taken = take_fd(&fds[1]);
    others = fds[0];
    loop_stop(arg, 0);
}

static void never(void *arg)
{
    fail();
}

static void no_event(void *arg, const struct jail_reply *reply, int *fds)
{
    fail();
}

static void descriptors_of_an_answer_are_taken_or_closed(void **state)
{
    int pair[2], fds[JAIL_FDS_MAX];
    struct loop *loop;
    struct jail_client *client;
    struct jail_request q = {.op = JAIL_OP_HELLO}, got;
    assert_int_equal(loop_new(&loop), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(jail_client_new(loop, pair[0], no_event, never, loop, &client), 0);
    assert_int_equal(jail_call(client, &q, -1, take_the_second, loop), 0);
    assert_int_equal(jail_receive(pair[1], &got, fds), 1);
    const struct jail_reply a = {.op = got.op, .id = got.id, .line = {.prefix = 30}};
    const int sent[] = {pair[1], pair[1]};
    assert_int_equal(jail_answer_fds(pair[1], &a, sent, 2), 0);
    assert_int_equal(loop_run(loop), 0);
    assert_int_equal(fcntl(others, F_GETFD), -1);
    assert_int_equal(fcntl(taken, F_GETFD), FD_CLOEXEC);
    close(taken);
    jail_client_free(client);
    close(pair[1]);
    loop_free(loop);
}

static void only_whole_packets_are_received(void **state)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    struct jail_request q = good_start(), got;
    int fds[JAIL_FDS_MAX];
    int sent = open("/dev/null", O_RDONLY | O_CLOEXEC);
    // Whole, with its descriptor.
    assert_int_equal(fdpass_send(pair[0], &q, sizeof q, &sent, 1), sizeof q);
    assert_int_equal(jail_receive(pair[1], &got, fds), 1);
    assert_true(fds[0] >= 0);
    assert_true(fds[1] < 0 && fds[2] < 0);
    close(fds[0]);
    // Cut, lengthened, with two descriptors, with none.
    char longer[sizeof q + 1] = {0};
    memcpy(longer, &q, sizeof q);
    int two[2] = {sent, sent};
    fdpass_send(pair[0], &q, sizeof q - 1, &sent, 1);
    assert_int_equal(jail_receive(pair[1], &got, fds), -EPROTO);
    fdpass_send(pair[0], longer, sizeof longer, &sent, 1);
    assert_int_equal(jail_receive(pair[1], &got, fds), -EPROTO);
    fdpass_send(pair[0], &q, sizeof q, two, 2);
    assert_int_equal(jail_receive(pair[1], &got, fds), -EPROTO);
    fdpass_send(pair[0], &q, sizeof q, NULL, 0);
    assert_int_equal(jail_receive(pair[1], &got, fds), -EPROTO);
    // Refused descriptors were closed: the next one opened has the lowest free number again.
    int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(lowest, sent + 1);
    close(lowest);
    close(pair[0]);
    assert_int_equal(jail_receive(pair[1], &got, fds), 0);
    close(pair[1]);
    close(sent);
}

// Good but for the descriptors that could not be had: it is answered, and the next one is received.
static void a_receiver_without_room_can_still_answer(void **state)
{
    int pair[2], fds[JAIL_FDS_MAX];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    struct jail_request q = good_start(), got = {0};
    int sent = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit full = {.rlim_cur = (rlim_t)sent + 1, .rlim_max = before.rlim_max};
    struct jail_request bad = q;
    bad.start.vcpus = 0;
    fdpass_send(pair[0], &q, sizeof q, &sent, 1);
    fdpass_send(pair[0], &bad, sizeof bad, &sent, 1);
    fdpass_send(pair[0], &q, sizeof q - 1, &sent, 1);
    fdpass_send(pair[0], &q, sizeof q, &sent, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &full), 0);
    int r[3];
    for (int i = 0; i < 3; i++)
        r[i] = jail_receive(pair[1], &got, fds);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(r[0], -EMFILE);
    assert_memory_equal(&got, &q, sizeof q);
    assert_int_equal(r[1], -EPROTO);
    assert_int_equal(r[2], -EPROTO);
    assert_int_equal(jail_receive(pair[1], &got, fds), 1);
    close(fds[0]);
    close(sent);
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(networks_are_checked_field_by_field),  cmocka_unit_test(descriptors_of_an_answer_are_taken_or_closed),
        cmocka_unit_test(machines_come_with_their_descriptors), cmocka_unit_test(start_fields_have_two_sides),
        cmocka_unit_test(host_names_come_from_an_alphabet),     cmocka_unit_test(layers_are_named_up_to_the_most),
        cmocka_unit_test(other_operations_carry_nothing_else),  cmocka_unit_test(volumes_have_an_id_and_when_made_a_size),
        cmocka_unit_test(only_whole_packets_are_received),      cmocka_unit_test(a_receiver_without_room_can_still_answer),
    };
    return cmocka_run_group_tests_name("jail", tests, NULL, NULL);
}

// The line between engine and monitor, over a KVM that is not there: this test is the engine.
#include "base/cleanup.h"
#include "fake_kvm.h"
#include "sys/fdpass.h"
#include "unit.h"
#include "vmm/control.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { DEADLINE_S = 30 };
#define MIB (UINT64_C(1) << 20)

struct rig {
    struct fake_kvm fake;
    struct guest_memory *memory;
    struct machine *machine;
    struct loop *loop;
    struct control *control;
    int engine, channel;
    uint64_t resized;
    bool waits;
    unsigned busy, snapshots;
    size_t snapshot_fds;
    enum vmm_snapshot snapshot_of;
    pthread_t thread;
    bool joined;
    int result;
};

static const char *written = "abc";

static int run_until_kicked(struct fake_kvm *fake, int fd, struct kvm_run *run)
{
    if (__atomic_load_n(&run->immediate_exit, __ATOMIC_SEQ_CST))
        return -EINTR;
    if (__atomic_exchange_n((bool *)fake->run_arg, false, __ATOMIC_SEQ_CST)) {
        run->exit_reason = KVM_EXIT_SHUTDOWN;
        return 0;
    }
    run->exit_reason = KVM_EXIT_IO;
    run->io.direction = KVM_EXIT_IO_OUT;
    run->io.port = 0x3f8;
    run->io.size = 1;
    run->io.count = 3;
    run->io.data_offset = 4096;
    memcpy((uint8_t *)run + 4096, written, 3);
    sched_yield();
    return 0;
}

static int resize(void *arg, uint64_t bytes)
{
    struct rig *rig = arg;
    rig->resized = bytes;
    return -ENOSPC;
}

static int no_snapshot(void *arg, enum vmm_snapshot what, const int *fds, size_t count, struct err *err)
{
    struct rig *rig = arg;
    rig->snapshots++;
    rig->snapshot_fds = count;
    rig->snapshot_of = what;
    unsigned busy = __atomic_load_n(&rig->busy, __ATOMIC_SEQ_CST);
    if (busy > 0) {
        __atomic_compare_exchange_n(&rig->busy, &busy, busy - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        return err_set(err, -EBUSY, "a device has requests in flight");
    }
    return write(fds[0], "state", 5) == 5 ? 0 : err_set(err, -EIO, "no");
}

static int no_working_set(void *arg, int fd)
{
    return write(fd, "pages", 5) == 5 ? 0 : -EIO;
}

static int some_pages(void *arg, struct vmm_stats *stats)
{
    stats->pages_present = 7;
    stats->pages_own = 3;
    return 0;
}

static const struct control_handler handler = {
    .resize = resize, .snapshot = no_snapshot, .record_working_set = no_working_set, .count_pages = some_pages};

static bool faults;

static void *run_loop(void *arg)
{
    struct rig *rig = arg;
    rig->result = loop_run(rig->loop);
    return NULL;
}

static void start_as(struct rig *rig, bool waits)
{
    memset(rig, 0, sizeof *rig);
    rig->waits = waits;
    faults = false;
    fake_kvm_init(&rig->fake);
    rig->fake.run = run_until_kicked;
    rig->fake.run_arg = &faults;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    rig->engine = ends[0];
    rig->channel = ends[1];
    struct timeval deadline = {.tv_sec = DEADLINE_S};
    setsockopt(rig->engine, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
    assert_int_equal(guest_memory_new(128 * MIB, &rig->memory), 0);
    assert_int_equal(loop_new(&rig->loop), 0);
    const struct machine_config machine = {
        .ops = &rig->fake.ops, .kvm = FAKE_KVM_FD, .memory = rig->memory, .vcpus = 2, .entry = gpa(0x100000)};
    struct err err;
    assert_int_equal(machine_new(&machine, &rig->machine, &err), 0);
    const struct control_config config = {.loop = rig->loop,
                                          .channel = rig->channel,
                                          .machine = rig->machine,
                                          .waits = rig->waits,
                                          .handler = &handler,
                                          .arg = rig};
    assert_int_equal(control_new(&config, &rig->control), 0);
    assert_int_equal(control_start(rig->control, &err), 0);
    assert_int_equal(pthread_create(&rig->thread, NULL, run_loop, rig), 0);
}

static void start(struct rig *rig)
{
    start_as(rig, false);
}

static struct vmm_message next(struct rig *rig)
{
    static uint8_t packet[sizeof(struct vmm_message) + 1];
    struct vmm_message m;
    ssize_t n = recv(rig->engine, packet, sizeof packet, 0);
    assert_true(n > 0);
    assert_int_equal(vmm_message_check(packet, (size_t)n, &m), 0);
    return m;
}

static void ask(struct rig *rig, uint32_t op, uint32_t id, uint64_t value)
{
    const struct vmm_request q = {.op = op, .id = id, .value = value};
    assert_int_equal(send(rig->engine, &q, sizeof q, 0), sizeof q);
}

static struct vmm_message answer(struct rig *rig, uint32_t op, uint64_t value)
{
    ask(rig, op, 77, value);
    struct vmm_message m = next(rig);
    assert_int_equal(m.op, op);
    assert_int_equal(m.id, 77);
    return m;
}

// Joins the loop, which must be at its end.
static void stop(struct rig *rig)
{
    if (!rig->joined)
        pthread_join(rig->thread, NULL);
    assert_int_equal(rig->result, 0);
    control_free(rig->control);
    loop_free(rig->loop);
    machine_free(rig->machine);
    guest_memory_free(rig->memory);
    close_fd(&rig->engine);
    close_fd(&rig->channel);
}

static void requests_are_answered(void **state)
{
    static struct rig rig;
    start(&rig);
    struct vmm_message m = next(&rig);
    assert_int_equal(m.op, VMM_OP_STARTED);
    assert_int_equal(answer(&rig, VMM_OP_RESUME, 0).error, -EALREADY);
    do
        m = answer(&rig, VMM_OP_CONSOLE, 0);
    while (m.console_len < VMM_CONSOLE_MAX);
    assert_int_equal(answer(&rig, VMM_OP_PAUSE, 0).error, 0);
    assert_int_equal(answer(&rig, VMM_OP_PAUSE, 0).error, -EALREADY);
    m = answer(&rig, VMM_OP_STATS, 0);
    assert_true(m.stats.exits_pio * 3 == m.stats.console_bytes && m.stats.console_bytes >= VMM_CONSOLE_MAX);
    assert_int_equal(answer(&rig, VMM_OP_STATS, 0).stats.exits_pio, m.stats.exits_pio);
    assert_int_equal(answer(&rig, VMM_OP_DISK_RESIZE, 1 << 20).error, -ENOSPC);
    assert_int_equal(rig.resized, 1 << 20);
    assert_int_equal(answer(&rig, VMM_OP_RESUME, 0).error, 0);
    assert_int_equal(answer(&rig, VMM_OP_SHUTDOWN, 0).error, 0);
    m = next(&rig);
    assert_int_equal(m.op, VMM_OP_ENDED);
    assert_int_equal(m.reason, VMM_REASON_ASKED);
    stop(&rig);
}

static struct vmm_message answer_with(struct rig *rig, uint32_t op, const int *fds, size_t count)
{
    const struct vmm_request q = {.op = op, .id = 78};
    assert_int_equal(fdpass_send(rig->engine, &q, sizeof q, fds, count), sizeof q);
    struct vmm_message m = next(rig);
    assert_int_equal(m.op, op);
    assert_int_equal(m.id, 78);
    return m;
}

static void end(struct rig *rig)
{
    assert_int_equal(answer(rig, VMM_OP_SHUTDOWN, 0).error, 0);
    assert_int_equal(next(rig).op, VMM_OP_ENDED);
    stop(rig);
}

static void snapshots_are_written_while_paused(void **state)
{
    static struct rig rig;
    char text[6] = "";
    start(&rig);
    cleanup_fd int file = memfd_create("file", 0);
    const int fds[] = {file, file, file};
    assert_int_equal(next(&rig).op, VMM_OP_STARTED);
    assert_int_equal(answer_with(&rig, VMM_OP_SNAPSHOT, fds, 3).error, -EALREADY);
    assert_int_equal(answer(&rig, VMM_OP_PAUSE, 0).error, 0);
    assert_int_equal(answer_with(&rig, VMM_OP_SNAPSHOT, fds, 2).error, 0);
    assert_int_equal(rig.snapshot_fds, 2);
    assert_int_equal(pread(file, text, 5, 0), 5);
    assert_string_equal(text, "state");
    // Devices that come to rest in the end are waited for.
    rig.busy = 5;
    assert_int_equal(answer_with(&rig, VMM_OP_SNAPSHOT, fds, 3).error, 0);
    assert_int_equal(rig.snapshots, 1 + 6);
    // Of the memory, what was asked for.
    assert_int_equal(rig.snapshot_of, VMM_SNAPSHOT_WHOLE);
    const struct vmm_request of_own = {.op = VMM_OP_SNAPSHOT, .id = 77, .value = VMM_SNAPSHOT_WRITTEN};
    assert_int_equal(fdpass_send(rig.engine, &of_own, sizeof of_own, fds, 3), sizeof of_own);
    assert_int_equal(next(&rig).id, 77);
    assert_int_equal(rig.snapshot_of, VMM_SNAPSHOT_WRITTEN);
    assert_int_equal(answer_with(&rig, VMM_OP_WORKING_SET, fds, 1).error, 0);
    struct vmm_message m = answer(&rig, VMM_OP_STATS, 0);
    assert_int_equal(m.stats.pages_present, 7);
    assert_int_equal(m.stats.pages_own, 3);
    assert_int_equal(answer(&rig, VMM_OP_CLAIM, 0).error, -EALREADY);
    assert_int_equal(answer(&rig, VMM_OP_RESUME, 0).error, 0);
    end(&rig);
}

// While the devices settle the machine stays as it is, and everything else is answered.
static void nothing_runs_while_devices_settle(void **state)
{
    static struct rig rig;
    start(&rig);
    cleanup_fd int file = memfd_create("file", 0);
    const int fds[] = {file, file};
    assert_int_equal(next(&rig).op, VMM_OP_STARTED);
    assert_int_equal(answer(&rig, VMM_OP_PAUSE, 0).error, 0);
    __atomic_store_n(&rig.busy, 1000000, __ATOMIC_SEQ_CST);
    const struct vmm_request q = {.op = VMM_OP_SNAPSHOT, .id = 5};
    assert_int_equal(fdpass_send(rig.engine, &q, sizeof q, fds, 2), sizeof q);
    assert_int_equal(answer(&rig, VMM_OP_RESUME, 0).error, -EALREADY);
    assert_int_equal(answer_with(&rig, VMM_OP_SNAPSHOT, fds, 2).error, -EALREADY);
    assert_int_equal(answer(&rig, VMM_OP_STATS, 0).error, 0);
    __atomic_store_n(&rig.busy, 0, __ATOMIC_SEQ_CST);
    struct vmm_message m = next(&rig);
    assert_int_equal(m.op, VMM_OP_SNAPSHOT);
    assert_int_equal(m.id, 5);
    assert_int_equal(m.error, 0);
    end(&rig);
}

static void a_waiting_machine_is_claimed_once(void **state)
{
    static struct rig rig;
    start_as(&rig, true);
    cleanup_fd int file = memfd_create("file", 0);
    const int fds[] = {file, file};
    assert_int_equal(next(&rig).op, VMM_OP_READY);
    static const uint32_t refused[] = {VMM_OP_PAUSE, VMM_OP_RESUME};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        assert_int_equal(answer(&rig, refused[i], 0).error, -EALREADY);
    assert_int_equal(answer_with(&rig, VMM_OP_SNAPSHOT, fds, 2).error, -EALREADY);
    assert_int_equal(answer(&rig, VMM_OP_STATS, 0).stats.exits_pio, 0);
    ask(&rig, VMM_OP_CLAIM, 9, 0);
    assert_int_equal(next(&rig).op, VMM_OP_STARTED);
    struct vmm_message m = next(&rig);
    assert_int_equal(m.op, VMM_OP_CLAIM);
    assert_int_equal(m.error, 0);
    assert_int_equal(answer(&rig, VMM_OP_CLAIM, 0).error, -EALREADY);
    while (answer(&rig, VMM_OP_STATS, 0).stats.exits_pio == 0)
        sched_yield();
    end(&rig);
}

static void descriptors_come_only_where_they_belong(void **state)
{
    static const struct {
        uint32_t op;
        size_t count;
    } bad[] = {{VMM_OP_SNAPSHOT, 0},    {VMM_OP_SNAPSHOT, 1}, {VMM_OP_SNAPSHOT, 4}, {VMM_OP_WORKING_SET, 0},
               {VMM_OP_WORKING_SET, 2}, {VMM_OP_PAUSE, 1},    {VMM_OP_CLAIM, 1}};
    static struct rig rig;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        start(&rig);
        const int fds[] = {rig.channel, rig.channel, rig.channel, rig.channel};
        assert_int_equal(next(&rig).op, VMM_OP_STARTED);
        const struct vmm_request q = {.op = bad[i].op, .id = 5};
        assert_int_equal(fdpass_send(rig.engine, &q, sizeof q, fds, bad[i].count), sizeof q);
        stop(&rig);
    }
}

static void as_many_as_agreed_may_wait(void **state)
{
    static struct rig rig;
    start(&rig);
    for (uint32_t i = 1; i <= VMM_REQUESTS_MAX; i++)
        ask(&rig, VMM_OP_CONSOLE, i, 0);
    assert_int_equal(next(&rig).op, VMM_OP_STARTED);
    for (uint32_t i = 1; i <= VMM_REQUESTS_MAX; i++)
        assert_int_equal(next(&rig).id, i);
    // An engine that never reads is given up in the end: its loop stops, whatever else there is to ask.
    void *none;
    while (pthread_tryjoin_np(rig.thread, &none) != 0) {
        const struct vmm_request q = {.op = VMM_OP_CONSOLE, .id = 1};
        if (send(rig.engine, &q, sizeof q, MSG_DONTWAIT) < 0)
            sched_yield();
    }
    rig.joined = true;
    stop(&rig);
}

static void a_fault_is_the_end(void **state)
{
    static struct rig rig;
    start(&rig);
    assert_int_equal(next(&rig).op, VMM_OP_STARTED);
    __atomic_store_n(&faults, true, __ATOMIC_SEQ_CST);
    struct vmm_message m = next(&rig);
    assert_int_equal(m.op, VMM_OP_ENDED);
    assert_int_equal(m.reason, VMM_REASON_TRIPLE_FAULT);
    assert_non_null(strstr(m.detail, "triple fault"));
    stop(&rig);
}

// Two processors write at once, in any order.  Whatever a guest writes last, the engine gets it as text, and no more than it
// has room for.
static void the_consoles_end_is_told(void **state)
{
    static const struct {
        const char *written, *told;
    } cases[] = {{"aaa", "; its console ends with: aaaaaa"},
                 {"a\n\n", "; its console ends with: a"},
                 {"\n\r\n", NULL},
                 {"\x1b\x7f\xff", "; its console ends with: ???"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static struct rig rig;
        written = cases[i].written;
        start(&rig);
        assert_int_equal(next(&rig).op, VMM_OP_STARTED);
        while (answer(&rig, VMM_OP_CONSOLE, 0).console_len < VMM_CONSOLE_MAX)
            ;
        __atomic_store_n(&faults, true, __ATOMIC_SEQ_CST);
        struct vmm_message m = next(&rig);
        assert_int_equal(m.op, VMM_OP_ENDED);
        const char *told = strstr(m.detail, "; its console");
        if (cases[i].told == NULL ? told != NULL : told == NULL || strncmp(told, cases[i].told, strlen(cases[i].told)) != 0)
            fail_msg("%zu: %s", i, m.detail);
        stop(&rig);
    }
    written = "abc";
}

static void nonsense_and_silence_end_it(void **state)
{
    static struct rig rig;
    static const uint8_t zeros[sizeof(struct vmm_request) * 2];
    const struct vmm_request bad = {.op = VMM_OP_PAUSE, .id = 1, .value = 1};
    for (int i = 0; i < 5; i++) {
        start(&rig);
        assert_int_equal(next(&rig).op, VMM_OP_STARTED);
        if (i == 0)
            close_fd(&rig.engine);
        else if (i == 1)
            assert_int_equal(send(rig.engine, &bad, sizeof bad, 0), sizeof bad);
        else
            send(rig.engine, zeros, i == 2 ? 1 : i == 3 ? sizeof bad : sizeof zeros, 0);
        stop(&rig);
    }
}

static void a_failure_is_said_plainly(void **state)
{
    static struct rig rig;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    char text[2 * VMM_DETAIL_MAX];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    memcpy(text, "line\n\x80", 6);
    control_say_failed(ends[1], text);
    rig.engine = ends[0];
    struct vmm_message m = next(&rig);
    assert_int_equal(m.reason, VMM_REASON_SETUP_FAILED);
    assert_int_equal(strlen(m.detail), VMM_DETAIL_MAX - 1);
    assert_memory_equal(m.detail, "line??xx", 8);
    // Nor does it wait for an engine that does not read.
    for (int i = 0; i < 1000; i++)
        control_say_failed(ends[1], text);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_answered),
        cmocka_unit_test(as_many_as_agreed_may_wait),
        cmocka_unit_test(a_fault_is_the_end),
        cmocka_unit_test(the_consoles_end_is_told),
        cmocka_unit_test(nonsense_and_silence_end_it),
        cmocka_unit_test(a_failure_is_said_plainly),
        cmocka_unit_test(snapshots_are_written_while_paused),
        cmocka_unit_test(nothing_runs_while_devices_settle),
        cmocka_unit_test(a_waiting_machine_is_claimed_once),
        cmocka_unit_test(descriptors_come_only_where_they_belong),
    };
    return cmocka_run_group_tests_name("vmm_control", tests, NULL, NULL);
}

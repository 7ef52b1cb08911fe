// vmm/probe over a KVM that is not there: what is said of one that gives up at any point, and of one that shadows page tables.
#include "fake_kvm.h"
#include "unit.h"
#include "vmm/probe.h"
#include "vmm/probe_layout.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

// The guest's progress, as KVM's exits: what it reports, then what ends it.
struct script {
    unsigned reports;  // steps that it gets to
    unsigned next;
    uint32_t last_exit;  // what comes then
    uint32_t written;    // what it writes to the register after the step PROBE_STEP_PORT
    bool wrote, notifies;
};

static void exit_port(struct kvm_run *run, uint8_t step)
{
    run->exit_reason = KVM_EXIT_IO;
    run->io.direction = KVM_EXIT_IO_OUT;
    run->io.port = PROBE_PORT;
    run->io.size = run->io.count = 1;
    run->io.data_offset = 4096;
    *((uint8_t *)run + 4096) = step;
}

static int run_script(struct fake_kvm *fake, int fd, struct kvm_run *run)
{
    struct script *s = fake->run_arg;
    if (s->next == PROBE_STEP_PORT && !s->wrote) {
        s->wrote = true;
        run->exit_reason = KVM_EXIT_MMIO;
        run->mmio.phys_addr = PROBE_MMIO + 4;
        run->mmio.len = 4;
        run->mmio.is_write = 1;
        memcpy(run->mmio.data, &s->written, sizeof s->written);
        return 0;
    }
    if (s->next == PROBE_STEP_NOTIFY - 1 && s->notifies) {
        s->notifies = false;
        const uint64_t one = 1;
        assert_int_equal(write(fake->ioeventfd[0].fd, &one, sizeof one), sizeof one);
    }
    if (s->next < s->reports) {
        exit_port(run, (uint8_t)++s->next);
        return 0;
    }
    run->exit_reason = s->last_exit;
    return s->last_exit == 0 ? -EINTR : 0;
}

static void probe_with(struct fake_kvm *fake, struct script s, struct probe_result *ret_result)
{
    fake->run = run_script;
    fake->run_arg = &s;
    probe_run(&fake->ops, FAKE_KVM_FD, ret_result);
    assert_int_equal(fake->open_fds, 0);
    assert_int_equal(fake->mapped, 0);
}

static const struct script good = {
    .reports = PROBE_STEP_DONE, .last_exit = KVM_EXIT_SHUTDOWN, .written = PROBE_MAGIC, .notifies = true};

static void one_that_can_do_everything_works(void **state)
{
    struct fake_kvm fake;
    struct probe_result result;
    fake_kvm_init(&fake);
    probe_with(&fake, good, &result);
    assert_string_equal(result.detail, "");
    assert_true(result.works && result.nested_paging);
}

static void shadowed_page_tables_are_seen(void **state)
{
    struct fake_kvm fake;
    struct probe_result result;
    fake_kvm_init(&fake);
    fake.shadows = true;
    probe_with(&fake, good, &result);
    assert_true(result.works && !result.nested_paging);
}

// Such as one that runs only kernels made for it, which ends where kernel mode uses vector instructions.
static void it_says_where_a_guest_gave_up(void **state)
{
    static const char *const could_not[PROBE_STEP_DONE] = {
        "start in 64-bit mode",     "device registers in memory",      "notify a device",
        "model-specific registers", "run vector and bit instructions", "take an exception",
        "take an interrupt"};
    static const struct {
        uint32_t exit;
        const char *why;
    } ends[] = {{KVM_EXIT_INTERNAL_ERROR, "internal error"},
                {KVM_EXIT_SHUTDOWN, "triple fault"},
                {KVM_EXIT_FAIL_ENTRY, "refused the guest's state"},
                {0, "did not get there in its time"}};
    for (unsigned step = 0; step < PROBE_STEP_DONE; step++)
        for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
            struct fake_kvm fake;
            struct probe_result result;
            fake_kvm_init(&fake);
            struct script s = good;
            s.reports = step;
            s.last_exit = ends[i].exit;
            probe_with(&fake, s, &result);
            assert_false(result.works);
            if (strstr(result.detail, could_not[step]) == NULL || strstr(result.detail, ends[i].why) == NULL)
                fail_msg("step %u: %s", step, result.detail);
        }
}

static void wrong_results_are_not_good_enough(void **state)
{
    for (int way = 0; way < 2; way++) {
        struct fake_kvm fake;
        struct probe_result result;
        fake_kvm_init(&fake);
        struct script s = good;
        if (way == 0)
            s.written++;
        else
            s.notifies = false;
        probe_with(&fake, s, &result);
        assert_false(result.works);
        assert_non_null(strstr(result.detail, "results were wrong"));
    }
}

// One that goes on for ever is cut off.
static void exits_are_bounded(void **state)
{
    struct fake_kvm fake;
    struct probe_result result;
    fake_kvm_init(&fake);
    struct script s = good;
    s.reports = 2;
    s.last_exit = KVM_EXIT_INTR;
    probe_with(&fake, s, &result);
    assert_false(result.works);
    assert_non_null(strstr(result.detail, "did not get there"));
}

static void what_it_lacks_is_named(void **state)
{
    struct fake_kvm fake;
    struct probe_result result;
    fake_kvm_init(&fake);
    fake.api_version = 11;
    probe_with(&fake, good, &result);
    assert_false(result.works);
    fake_kvm_init(&fake);
    fake.missing = KVM_CAP_IRQFD;
    probe_with(&fake, good, &result);
    assert_false(result.works);
    assert_non_null(strstr(result.detail, "lacks"));
    // Any call may fail; its name and the reason are told.
    fake_kvm_init(&fake);
    probe_with(&fake, good, &result);
    size_t calls = fake.calls;
    for (size_t i = 1; i <= calls; i++) {
        fake_kvm_init(&fake);
        fake.fail_at = i;
        fake.fail_with = -EMFILE;
        probe_with(&fake, good, &result);
        assert_true(result.works || result.detail[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_can_do_everything_works),
        cmocka_unit_test(shadowed_page_tables_are_seen),
        cmocka_unit_test(it_says_where_a_guest_gave_up),
        cmocka_unit_test(wrong_results_are_not_good_enough),
        cmocka_unit_test(exits_are_bounded),
        cmocka_unit_test(what_it_lacks_is_named),
    };
    return cmocka_run_group_tests_name("vmm-probe", tests, NULL, NULL);
}

// vmm/virtio/throttle: what a rate allows, at times that are made up.
#include "base/clock.h"
#include "unit.h"
#include "vmm/virtio/throttle.h"

static const enum throttle_direction R = THROTTLE_READS, W = THROTTLE_WRITES;
#define MIB (UINT64_C(1) << 20)
#define START (1000 * NS_PER_S)

// How many operations of `bytes` can be carried out until `end_ns`, each as soon as it may.
static uint64_t carry_out(struct throttle *t, uint64_t bytes, uint64_t begin_ns, uint64_t end_ns)
{
    uint64_t n = 0;
    for (uint64_t now = begin_ns; now < end_ns; n++) {
        now += throttle_wait(t, R, now);
        if (now >= end_ns)
            break;
        assert_int_equal(throttle_wait(t, R, now), 0);
        throttle_pay(t, R, bytes, now);
    }
    return n;
}

static void no_limit_is_no_wait(void **state)
{
    struct throttle t = {0};
    for (unsigned i = 0; i < 1000; i++) {
        throttle_pay(&t, R, UINT64_C(1) << 40, START);
        assert_int_equal(throttle_wait(&t, R, START), 0);
    }
}

static void bytes_are_no_more_than_allowed(void **state)
{
    struct throttle t = {.bytes_per_s = MIB};
    // Ten seconds, what was saved before, and the one that may begin when all is paid.
    uint64_t n = carry_out(&t, 4096, START, START + 10 * NS_PER_S);
    assert_in_range(n, 10 * 256, 10 * 256 + 256 / 10 + 2);
}

static void operations_are_no_more_than_allowed(void **state)
{
    struct throttle t = {.ops_per_s = 50};
    assert_in_range(carry_out(&t, 0, START, START + 10 * NS_PER_S), 500, 506);
    t = (struct throttle){.ops_per_s = 50, .bytes_per_s = 1000 * MIB};
    assert_in_range(carry_out(&t, 4096, START, START + 10 * NS_PER_S), 500, 506);
    t = (struct throttle){.ops_per_s = 1000000, .bytes_per_s = MIB};
    assert_in_range(carry_out(&t, MIB / 4, START, START + 10 * NS_PER_S), 40, 42);
}

// One of any size may begin; the next one waits until it is paid for.
static void a_large_one_is_paid_for_afterwards(void **state)
{
    struct throttle t = {.bytes_per_s = MIB};
    throttle_pay(&t, R, 32 * MIB, START);
    assert_int_equal(throttle_wait(&t, R, START), 32 * NS_PER_S - THROTTLE_SAVED_NS);
    assert_int_equal(throttle_wait(&t, R, START + 32 * NS_PER_S), 0);
    // The most that a request can move at the lowest rate is a long time, not an overflow.
    t = (struct throttle){.bytes_per_s = 1};
    throttle_pay(&t, R, UINT64_C(1) << 32, START);
    assert_in_range(throttle_wait(&t, R, START) / NS_PER_S, (UINT64_C(1) << 32) - 1, UINT64_C(1) << 32);
}

static void what_is_saved_up_is_little(void **state)
{
    struct throttle t = {.bytes_per_s = MIB, .ops_per_s = 10};
    throttle_pay(&t, R, 4096, START);
    // An hour of nothing is worth THROTTLE_SAVED_NS.
    assert_in_range(carry_out(&t, 4096, START + 3600 * NS_PER_S, START + 3601 * NS_PER_S), 10, 11);
    // So is the machine's first moment.
    t = (struct throttle){.ops_per_s = 10};
    assert_in_range(carry_out(&t, 0, 0, NS_PER_S), 10, 11);
}

static void directions_are_apart(void **state)
{
    struct throttle t = {.bytes_per_s = MIB, .ops_per_s = 10};
    throttle_pay(&t, W, 100 * MIB, START);
    assert_true(throttle_wait(&t, W, START) > 0);
    assert_int_equal(throttle_wait(&t, R, START), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_limit_is_no_wait),
        cmocka_unit_test(bytes_are_no_more_than_allowed),
        cmocka_unit_test(operations_are_no_more_than_allowed),
        cmocka_unit_test(a_large_one_is_paid_for_afterwards),
        cmocka_unit_test(what_is_saved_up_is_little),
        cmocka_unit_test(directions_are_apart),
    };
    return cmocka_run_group_tests_name("throttle", tests, NULL, NULL);
}

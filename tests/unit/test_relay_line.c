// wire/relay_line.h: when to dial into a room, whatever its relay says.
#include "unit.h"
#include "wire/relay_line.h"

#include <stdio.h>
#include <string.h>

static struct relay r;

static void hear(const char *text)
{
    relay_heard(&r, text, strlen(text));
}

static void begin(uint32_t calls)
{
    relay_begin(&r, calls, 1000);
}

static void it_dials_as_often_as_needed(void **state)
{
    (void)state;
    begin(256);
    hear("need\n");
    assert_false(relay_wants(&r, 1000));  // nowhere to dial
    hear("ready 20000\nneed\n");
    assert_int_equal(r.port, 20000);
    for (int i = 0; i < 2; i++) {
        assert_true(relay_wants(&r, 1000));
        relay_dialling(&r);
        relay_dialled(&r, true, 1000);
    }
    assert_false(relay_wants(&r, 1000));
    relay_closed(&r);
    relay_closed(&r);
    assert_int_equal(r.open, 0);
}

static void what_else_it_says_is_nothing(void **state)
{
    (void)state;
    static const char *const lines[] = {"ready\n",
                                        "ready 19999\n",
                                        "ready 60000\n",
                                        "ready 2000\n",
                                        "ready 020000\n",
                                        "ready 20000 \n",
                                        "ready  20000\n",
                                        "READY 20000\n",
                                        "ready -2000\n",
                                        "ready 2000x\n",
                                        "\n",
                                        " need\n",
                                        "need \n",
                                        "needs\n",
                                        "nee\n",
                                        "ready 99999\n",
                                        "ready 18446744073709551616\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        begin(1);
        hear(lines[i]);
        assert_int_equal(r.port, 0);
        assert_int_equal(r.needed, 0);
    }
    begin(1);
    hear("ready 30000\nready 40000\n");
    assert_int_equal(r.port, 30000);
}

static void long_lines_are_dropped(void **state)
{
    (void)state;
    begin(1);
    for (int i = 0; i < RELAY_LINE_MAX - 4; i++)
        hear("x");
    hear("need");  // exactly as long as a line may be
    hear("\nneed\n");
    assert_int_equal(r.needed, 1);
    for (int i = 0; i < 100000; i++)
        hear("need");
    hear("\n");
    assert_int_equal(r.needed, 1);
    // Its end is no line of its own.
    for (int i = 0; i < RELAY_LINE_MAX + 1; i++)
        hear("x");
    hear("need\nneed\n");
    assert_int_equal(r.needed, 2);
}

static void in_whatever_pieces(void **state)
{
    (void)state;
    static const char text[] = "ready 23456\nneed\nxxneed\nneed\n";
    for (size_t cut = 0; cut < sizeof text; cut++) {
        begin(1);
        relay_heard(&r, text, cut);
        relay_heard(&r, text + cut, sizeof text - 1 - cut);
        assert_int_equal(r.port, 23456);
        assert_int_equal(r.needed, 2);
    }
}

static void what_it_can_cost_is_bounded(void **state)
{
    (void)state;
    begin(5);
    hear("ready 20000\n");
    for (int i = 0; i < 1000; i++)
        hear("need\n");
    unsigned open = 0;
    for (; relay_wants(&r, 1000); open++) {
        relay_dialling(&r);
        relay_dialled(&r, true, 1000);
    }
    assert_int_equal(open, RELAY_OPEN_MAX);
    hear("need\nneed\nneed\nneed\nneed\nneed\nneed\n");
    assert_false(relay_wants(&r, 1000));
    for (int i = 0; i < RELAY_OPEN_MAX; i++)
        relay_closed(&r);
    for (open = 0; relay_wants(&r, 1000); open++) {
        relay_dialling(&r);
        relay_dialled(&r, true, 1000);
        relay_closed(&r);
    }
    assert_int_equal(open, 5);  // 18 and the run's calls
}

static void failed_dials_wait_longer_each_time(void **state)
{
    (void)state;
    begin(100);
    hear("ready 20000\nneed\n");
    uint64_t now = 1000;
    static const unsigned waits[] = {100, 200, 400, 800, 1600, 3200, 6400, 6400, 6400};
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        assert_true(relay_wants(&r, now));
        relay_dialling(&r);
        assert_false(relay_wants(&r, now));
        relay_dialled(&r, false, now);
        assert_false(relay_wants(&r, now + waits[i] - 1));
        now += waits[i];
    }
    assert_true(relay_wants(&r, now));
    relay_dialling(&r);
    relay_dialled(&r, true, now);
    hear("need\n");
    relay_dialling(&r);
    relay_dialled(&r, false, now);
    assert_true(relay_wants(&r, now + RELAY_BACKOFF_MIN_MS));
}

static void it_must_be_ready_in_time(void **state)
{
    (void)state;
    begin(1);
    assert_false(relay_late(&r, 1000 + RELAY_READY_MS - 1));
    assert_true(relay_late(&r, 1000 + RELAY_READY_MS));
    hear("ready 20000\n");
    assert_false(relay_late(&r, 1000 + RELAY_READY_MS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_dials_as_often_as_needed), cmocka_unit_test(what_else_it_says_is_nothing),
        cmocka_unit_test(long_lines_are_dropped),      cmocka_unit_test(in_whatever_pieces),
        cmocka_unit_test(what_it_can_cost_is_bounded), cmocka_unit_test(failed_dials_wait_longer_each_time),
        cmocka_unit_test(it_must_be_ready_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

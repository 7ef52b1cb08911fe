// sys/room.h with a platform that the test plays: the order of what is done, and that nothing runs when anything of it is not
// so.
#include "sys/room.h"
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

// What the platform was asked for, a letter each: Create, Policy, read Back, Inject, Variable, Start, Destroy.
static char asked[32];
static struct room_policy in_force;
static char variables[512], injected[256];
static char fails;  // the letter that fails
static void (*lie)(struct room_policy *policy);

static int ask(char what)
{
    size_t n = strlen(asked);
    asked[n] = what;
    asked[n + 1] = '\0';
    return what == fails ? -EIO : 0;
}

static int play_create(void *arg, void **ret_room)
{
    *ret_room = arg;
    return ask('C');
}

static int play_set(void *room, const struct room_policy *policy)
{
    (void)room;
    in_force = *policy;
    return ask('P');
}

static int play_read(void *room, struct room_policy *ret)
{
    (void)room;
    *ret = in_force;
    if (lie != NULL)
        lie(ret);
    return ask('B');
}

static int play_inject(void *room, const char *host, const char *header, const char *value)
{
    (void)room;
    snprintf(injected, sizeof injected, "%s %s: %s", host, header, value);
    return ask('I');
}

static int play_variable(void *room, const char *name, const char *value)
{
    (void)room;
    size_t n = strlen(variables);
    snprintf(variables + n, sizeof variables - n, "%s=%s;", name, value);
    return ask('V');
}

static int play_start(void *room)
{
    (void)room;
    return ask('S');
}

static void play_destroy(void *room)
{
    (void)room;
    ask('D');
}

static struct room_provider provider = {.name = "test",
                                        .create = play_create,
                                        .set_policy = play_set,
                                        .read_policy = play_read,
                                        .inject = play_inject,
                                        .set_variable = play_variable,
                                        .start = play_start,
                                        .destroy = play_destroy};
static const struct room_order without = {.guard_url = "", .guard_host = "", .guard_token = ""};
static const struct room_order with = {.grant = true,
                                       .guard_url = "https://guard.example.org/v1/guard",
                                       .guard_host = "guard.example.org",
                                       .guard_token = "crg_secret"};
static const struct room_order guardless = {.grant = true, .guard_url = "", .guard_host = "", .guard_token = ""};
static enum room_way way;
static struct err err;

static int open_room(unsigned abilities, const struct room_order *order)
{
    void *room = NULL;
    asked[0] = variables[0] = injected[0] = err.text[0] = '\0';
    memset(&in_force, 0, sizeof in_force);
    provider.abilities = abilities;
    int r = room_open(&provider, &in_force, order, &room, &way, &err);
    assert_int_equal(r == 0, room == &in_force);
    return r;
}

static void each_way_in_its_order(void **state)
{
    (void)state;
    fails = '\0';
    assert_int_equal(open_room(0, &without), 0);
    assert_string_equal(asked, "CPBS");
    assert_int_equal(way, ROOM_WAY_NONE);
    assert_int_equal(in_force.n, 0);
    assert_int_equal(open_room(ROOM_CAN_EXIT | ROOM_CAN_INJECT | ROOM_CAN_DIAL, &with), 0);
    assert_string_equal(asked, "CPVIBS");
    assert_int_equal(way, ROOM_WAY_INJECTED);
    assert_int_equal(in_force.n, 1);
    assert_string_equal(in_force.rule[0].host, "guard.example.org");
    assert_int_equal(in_force.rule[0].port, 443);
    assert_string_equal(injected, "guard.example.org X-Sandbox-Guard: crg_secret");
    assert_null(strstr(variables, "crg_"));  // the room is not told
    assert_int_equal(open_room(ROOM_CAN_EXIT, &with), 0);
    assert_string_equal(asked, "CPVVBS");
    assert_int_equal(way, ROOM_WAY_TOKEN);
    assert_string_equal(variables, "SANDBOX_GUARD_URL=https://guard.example.org/v1/guard;SANDBOX_GUARD_TOKEN=crg_secret;");
    assert_int_equal(open_room(ROOM_CAN_DIAL, &with), 0);
    assert_string_equal(asked, "CPBS");
    assert_int_equal(way, ROOM_WAY_RELAY);
    assert_int_equal(in_force.n, 0);
    assert_string_equal(variables, "");
}

static void no_guard_no_grant(void **state)
{
    (void)state;
    fails = '\0';
    assert_int_equal(open_room(ROOM_CAN_EXIT | ROOM_CAN_INJECT, &guardless), -EOPNOTSUPP);
    assert_string_equal(asked, "");  // no room was made
    assert_non_null(strstr(err.text, "guard_url"));
    assert_int_equal(open_room(0, &with), -EOPNOTSUPP);
    assert_string_equal(asked, "");
    assert_int_equal(open_room(ROOM_CAN_DIAL, &guardless), 0);  // needs none
    assert_int_equal(way, ROOM_WAY_RELAY);
}

static void what_fails_runs_nothing(void **state)
{
    (void)state;
    for (const char *f = "CPVIBS"; *f != '\0'; f++) {
        fails = *f;
        assert_int_equal(open_room(ROOM_CAN_EXIT | ROOM_CAN_INJECT, &with), -EIO);
        assert_true(strchr(asked, 'S') == NULL || *f == 'S');
        assert_int_equal(asked[strlen(asked) - 1], *f == 'C' ? 'C' : 'D');
        assert_true(err.text[0] != '\0');
    }
    fails = '\0';
}

static void one_more(struct room_policy *p)
{
    strcpy(p->rule[p->n].host, "elsewhere.example.org");
    p->rule[p->n++].port = 443;
}

static void none(struct room_policy *p)
{
    p->n = 0;
}

static void another_port(struct room_policy *p)
{
    p->rule[0].port = 80;
}

static void another_host(struct room_policy *p)
{
    strcpy(p->rule[0].host, "*.example.org");
}

static void too_many(struct room_policy *p)
{
    p->n = ROOM_RULES_MAX + 1;
}

static void unterminated(struct room_policy *p)
{
    memset(p->rule[0].host, 'x', sizeof p->rule[0].host);
}

static void a_policy_that_is_not_what_was_ordered(void **state)
{
    (void)state;
    void (*lies[])(struct room_policy *) = {one_more, none, another_port, another_host, too_many, unterminated};
    fails = '\0';
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        lie = lies[i];
        assert_int_equal(open_room(ROOM_CAN_EXIT, &with), -EREMOTEIO);
        assert_string_equal(asked, "CPVVBD");
    }
    lie = one_more;
    assert_int_equal(open_room(ROOM_CAN_EXIT, &without), -EREMOTEIO);
    assert_string_equal(asked, "CPBD");
    lie = NULL;
}

// The same set, written in another way.
static void twice_and_in_capitals(struct room_policy *p)
{
    strcpy(p->rule[0].host, "GUARD.example.org");
    p->rule[1] = p->rule[0];
    p->n = 2;
}

static void another_spelling_of_what_was_ordered(void **state)
{
    (void)state;
    fails = '\0';
    lie = twice_and_in_capitals;
    assert_int_equal(open_room(ROOM_CAN_EXIT, &with), 0);
    lie = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_way_in_its_order),
        cmocka_unit_test(no_guard_no_grant),
        cmocka_unit_test(what_fails_runs_nothing),
        cmocka_unit_test(a_policy_that_is_not_what_was_ordered),
        cmocka_unit_test(another_spelling_of_what_was_ordered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

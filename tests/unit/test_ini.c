// wire/ini: what a settings file may look like.
#include "unit.h"
#include "wire/ini.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct seen {
    char text[512];
    int refuse_at;
};

static int on_pair(void *arg, unsigned line, const char *section, const char *key, const char *value)
{
    struct seen *s = arg;
    size_t n = strlen(s->text);
    snprintf(s->text + n, sizeof s->text - n, "%u:%s:%s=%s;", line, section, key, value);
    return s->refuse_at == (int)line ? -EPERM : 0;
}

static int parse(const char *text, size_t n, struct seen *s, struct err *err)
{
    *err = (struct err){.code = 0};
    s->text[0] = '\0';
    return ini_parse(text, n, on_pair, s, err);
}

static void pairs_and_sections(void **state)
{
    struct seen s = {.refuse_at = 0};
    struct err err;
    static const char text[] =
        "# comment\n; another\n\n a = 1 \n[one]\r\nb=\n\tc.d-e_F = x = y # z\n [ two ] \nlast = \xc3\xa9";
    assert_int_equal(parse(text, sizeof text - 1, &s, &err), 0);
    assert_string_equal(s.text, "4::a=1;6:one:b=;7:one:c.d-e_F=x = y # z;9:two:last=\xc3\xa9;");
    assert_int_equal(parse("", 0, &s, &err), 0);
    assert_string_equal(s.text, "");
}

static void bad_lines_are_named(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        const char *expected;
    } bad[] = {
        {"a=1\nb\n", 6, "line 2"},          {"= 1\n", 4, "line 1: a key"},    {"a b = 1", 7, "line 1: a key"},
        {"[x\n", 3, "line 1: a section"},   {"[]\n", 3, "line 1: a section"}, {"[x y]\n", 6, "line 1: a section"},
        {"[\n", 2, "line 1: a section"},    {"a=\0\n", 4, "line 1: control"}, {"\n\na=\x1b[0m\n", 9, "line 3: control"},
        {"a=b\rc\n", 6, "line 1: control"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct seen s = {.refuse_at = 0};
        struct err err;
        assert_int_equal(parse(bad[i].text, bad[i].n, &s, &err), -EBADMSG);
        if (strstr(err.text, bad[i].expected) == NULL)
            fail_msg("case %zu: %s", i, err.text);
    }
}

static void the_owner_may_stop(void **state)
{
    struct seen s = {.refuse_at = 2};
    struct err err;
    assert_int_equal(parse("a=1\nb=2\nc=3\n", 12, &s, &err), -EPERM);
    assert_string_equal(s.text, "1::a=1;2::b=2;");
}

static void ceilings(void **state)
{
    static char text[INI_FILE_MAX + 1];
    struct seen s = {.refuse_at = 0};
    struct err err;
    memset(text, '\n', sizeof text);
    assert_int_equal(parse(text, INI_FILE_MAX, &s, &err), 0);
    assert_int_equal(parse(text, INI_FILE_MAX + 1, &s, &err), -EFBIG);
    memset(text, 'k', INI_NAME_MAX);
    text[INI_NAME_MAX] = '=';
    assert_int_equal(parse(text, INI_NAME_MAX + 1, &s, &err), 0);
    text[INI_NAME_MAX] = 'k';
    text[INI_NAME_MAX + 1] = '=';
    assert_int_equal(parse(text, INI_NAME_MAX + 2, &s, &err), -EBADMSG);
    memset(text, 'v', 2 + INI_VALUE_MAX + 1);
    text[1] = '=';
    assert_int_equal(parse(text, 2 + INI_VALUE_MAX, &s, &err), 0);
    assert_int_equal(parse(text, 2 + INI_VALUE_MAX + 1, &s, &err), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_and_sections),
        cmocka_unit_test(bad_lines_are_named),
        cmocka_unit_test(the_owner_may_stop),
        cmocka_unit_test(ceilings),
    };
    return cmocka_run_group_tests_name("ini", tests, NULL, NULL);
}

// base: buffers, JSON output, numbers, UTF-8, ids.
#include "base/buf.h"
#include "base/id.h"
#include "base/json_out.h"
#include "base/num.h"
#include "base/standard_fds.h"
#include "base/utf8.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void buf_takes_all_or_nothing(void **state)
{
    cleanup_buf struct buf b = BUF_INIT(10);
    assert_int_equal(buf_append(&b, "12345678", 8), 0);
    assert_int_equal(buf_append(&b, "abc", 3), -ENOSPC);
    assert_int_equal(b.len, 8);
    assert_int_equal(buf_error(&b), -ENOSPC);
    buf_clear(&b);
    assert_int_equal(buf_append(&b, "1234567890", 10), 0);
    assert_string_equal(buf_text(&b), "1234567890");
    buf_consume(&b, 7);
    assert_string_equal(buf_text(&b), "890");
}

// However long it is already, and whatever its ceiling: small additions do not copy it each time.
static void buf_grows_a_few_times(void **state)
{
    (void)state;
    static const size_t ceilings[] = {1, 255, 257, 5000, 65536, 100001};
    for (size_t i = 0; i < sizeof ceilings / sizeof ceilings[0]; i++) {
        cleanup_buf struct buf b = BUF_INIT(ceilings[i]);
        int grown = 0;
        for (size_t n = 0, had = 0; n < ceilings[i]; n++, had = b.allocated) {
            assert_int_equal(buf_append(&b, "x", 1), 0);
            grown += b.allocated != had;
            assert_true(b.allocated <= ceilings[i] || n < 256);
        }
        assert_true(grown <= 20);
        assert_int_equal(buf_append(&b, "x", 1), -ENOSPC);
    }
}

static void buf_printf_counts_text_only(void **state)
{
    cleanup_buf struct buf b = BUF_INIT(5);
    assert_int_equal(buf_printf(&b, "%d", 12345), 0);
    assert_string_equal(buf_text(&b), "12345");
    assert_int_equal(buf_printf(&b, "6"), -ENOSPC);
}

static void json_escapes(void **state)
{
    cleanup_buf struct buf b = BUF_INIT(1000);
    struct json_out j = JSON_OUT_INIT(&b);
    json_open(&j, NULL, '{');
    json_str(&j, "a\"b", "line\n\ttab\\ \x01");
    json_bytes(&j, "bad", "x\xff\xe2\x82y", 5);
    json_str(&j, "none", NULL);
    json_u64(&j, "n", UINT64_MAX);
    json_i64(&j, "i", -5);
    json_bool(&j, "t", true);
    json_open(&j, "list", '[');
    json_str(&j, NULL, "é");
    json_close(&j, ']');
    json_close(&j, '}');
    assert_string_equal(buf_text(&b),
                        "{\"a\\\"b\":\"line\\n\\ttab\\\\ \\u0001\",\"bad\":\"x\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDy\","
                        "\"none\":null,\"n\":18446744073709551615,\"i\":-5,\"t\":true,\"list\":[\"é\"]}");
}

static void numbers_whole_or_not_at_all(void **state)
{
    uint64_t v = 7;
    assert_int_equal(parse_u64("0", 0, 10, &v), 0);
    assert_int_equal(v, 0);
    assert_int_equal(parse_u64("18446744073709551615", 0, UINT64_MAX, &v), 0);
    assert_true(v == UINT64_MAX);
    v = 7;
    static const char *const bad[] = {"", "-1", "+1", " 1", "1 ", "0x5", "1e3", "5,5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(parse_u64(bad[i], 0, UINT64_MAX, &v), -EINVAL);
    assert_int_equal(parse_u64("18446744073709551616", 0, UINT64_MAX, &v), -ERANGE);
    assert_int_equal(parse_u64("11", 0, 10, &v), -ERANGE);
    assert_int_equal(v, 7);
}

static void utf8_is_strict(void **state)
{
    static const char *const good[] = {"a", "é", "€", "𐍈", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(utf8_valid((const uint8_t *)good[i], strlen(good[i])));
    static const char *const bad[] = {"\x80",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x80\x80",
                                      "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82",
                                      "\xFF"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(utf8_valid((const uint8_t *)bad[i], strlen(bad[i])));
}

static void ids_differ(void **state)
{
    char a[65], b[65];
    assert_int_equal(random_hex(a, 64), 0);
    assert_int_equal(random_hex(b, 64), 0);
    assert_int_equal(strspn(a, "0123456789abcdef"), 64);
    assert_string_not_equal(a, b);
    assert_int_equal(random_hex(a, 63), -EINVAL);
}

// In a child: closes those of `closed` (a bit each), holds them, and finds that the next open gets another number and that
// using them fails as if they were closed.  What is open stays what it is.
static int hold_with(unsigned closed)
{
    for (int fd = 0; fd < 3; fd++) {
        close(fd);
        if ((closed & 1U << fd) == 0 && (open("/dev/null", O_RDWR) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0))
            return 1;
        if ((closed & 1U << fd) != 0 && open("/", O_RDONLY) != fd)  // a place holder, so that the others get their own numbers
            return 2;
    }
    for (int fd = 0; fd < 3; fd++)
        if ((closed & 1U << fd) != 0)
            close(fd);
    char c = 'x';
    if (standard_fds_hold() != 0 || open("/", O_RDONLY) < 3)
        return 3;
    for (int fd = 0; fd < 3; fd++) {
        ssize_t n = fd == 0 ? read(fd, &c, 1) : write(fd, &c, 1);
        bool failed = n < 0 && errno == EBADF;
        if (failed != ((closed & 1U << fd) != 0) || (fcntl(fd, F_GETFD) == FD_CLOEXEC) == failed)
            return 4;
    }
    return 0;
}

static void closed_standard_streams_are_held(void **state)
{
    for (unsigned closed = 0; closed < 8; closed++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(hold_with(closed));
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_takes_all_or_nothing),
        cmocka_unit_test(buf_grows_a_few_times),
        cmocka_unit_test(buf_printf_counts_text_only),
        cmocka_unit_test(json_escapes),
        cmocka_unit_test(numbers_whole_or_not_at_all),
        cmocka_unit_test(utf8_is_strict),
        cmocka_unit_test(ids_differ),
        cmocka_unit_test(closed_standard_streams_are_held),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}

// Lines of the log on a disk that is full for a while: whoever was cut, the next line is one of its own.
#include "base/cleanup.h"
#include "base/log.h"
#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROOM_MAX = 200 };

// A file that may hold this much and no more is a full disk to who writes.
static void allow(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

// One program writes its line into what room there is, another begins then and goes on when there is room again.
static void write_two(int file, size_t room)
{
    signal(SIGXFSZ, SIG_IGN);
    dup2(file, STDERR_FILENO);
    allow(room);
    pid_t other = fork();
    if (other == 0) {
        log_info("first", log_str("padding", "0123456789012345678901234567890123456789"));
        _exit(0);
    }
    waitpid(other, NULL, 0);
    log_info("lost", log_u64("number", 1));
    allow(RLIM_INFINITY);
    log_info("after", log_u64("number", 2));
    _exit(0);
}

static size_t contents_after(size_t room, char *text, size_t size)
{
    char path[] = "/tmp/sandbox-test-log-XXXXXX";
    cleanup_fd int file = mkostemp(path, O_APPEND | O_CLOEXEC);
    assert_true(file >= 0);
    unlink(path);
    pid_t child = fork();
    if (child == 0)
        write_two(file, room);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ssize_t n = pread(file, text, size - 1, 0);
    assert_true(n > 0);
    text[n] = '\0';
    return (size_t)n;
}

static void a_cut_line_takes_no_other_along(void **state)
{
    (void)state;
    for (size_t room = 0; room < ROOM_MAX; room++) {
        char text[4096];
        size_t n = contents_after(room, text, sizeof text);
        assert_int_equal(text[n - 1], '\n');
        text[n - 1] = '\0';
        const char *last = strrchr(text, '\n');
        last = last ? last + 1 : text;
        if (strncmp(last, "{\"time\"", 7) != 0 || !strstr(last, "\"event\":\"after\",\"number\":2}"))
            fail_msg("with room for %zu bytes the last line is: %s", room, last);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_line_takes_no_other_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// sys/template_store: names, aliases, the manifest's seal, and files that changed.
#include "base/cleanup.h"
#include "sys/digest.h"
#include "sys/template_store.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

struct store {
    char path[64];
    int fd;
};

static void put_file(int dir, const char *name, const void *bytes, size_t n)
{
    cleanup_fd int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
}

static int setup(void **state)
{
    struct store *s = calloc(1, sizeof *s);
    strcpy(s->path, "/tmp/template-test-XXXXXX");
    assert_non_null(mkdtemp(s->path));
    s->fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(s->fd, "debian", 0755), 0);
    cleanup_fd int dir = openat(s->fd, "debian", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    put_file(dir, "rootfs.ext4", "not really a filesystem", 23);
    put_file(dir, "vmstate", "state", 5);
    struct manifest m = {.files = 2};
    strcpy(m.file[0].name, "rootfs.ext4");
    strcpy(m.file[1].name, "vmstate");
    for (int i = 0; i < 2; i++) {
        cleanup_fd int fd = openat(dir, m.file[i].name, O_RDONLY | O_CLOEXEC);
        assert_int_equal(digest_file(fd, &m.file[i].size, m.file[i].digest), 0);
    }
    assert_int_equal(template_write_manifest(dir, &m), 0);
    assert_int_equal(template_write_manifest(dir, &m), -EEXIST);
    assert_int_equal(symlinkat("debian", s->fd, "python-agent"), 0);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct store *s = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", s->path);
    assert_int_equal(system(command), 0);
    close(s->fd);
    free(s);
    return 0;
}

static int open_it(struct store *s, const char *name, struct manifest *m, int *dir, struct err *err)
{
    char real[TEMPLATE_NAME_MAX + 1];
    int r = template_open(s->fd, name, real, m, dir, err);
    if (r == 0)
        assert_string_equal(real, "debian");
    return r;
}

static void names(void **state)
{
    static const char *const good[] = {"a", "0", "debian", "python-agent", "a.b_c-d"};
    static const char *const bad[] = {"", ".", "..", ".lock", "-x", "_x", "A", "a/b", "a b", "\xc3\xa9", "a\n"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(template_name_valid(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(template_name_valid(bad[i]));
    char longest[TEMPLATE_NAME_MAX + 2];
    memset(longest, 'a', sizeof longest);
    longest[TEMPLATE_NAME_MAX + 1] = '\0';
    assert_false(template_name_valid(longest));
    longest[TEMPLATE_NAME_MAX] = '\0';
    assert_true(template_name_valid(longest));
}

static void opens_by_name_and_alias(void **state)
{
    struct err err;
    struct manifest m;
    static const char *const both[] = {"debian", "python-agent"};
    for (size_t i = 0; i < 2; i++) {
        cleanup_fd int dir = -1;
        assert_int_equal(open_it(*state, both[i], &m, &dir, &err), 0);
        assert_int_equal(m.files, 2);
        int fds[MANIFEST_FILES_MAX];
        assert_int_equal(template_verify(dir, &m, fds, &err), 0);
        char text[32] = "";
        assert_int_equal(read(fds[1], text, sizeof text), 5);
        assert_string_equal(text, "state");
        assert_int_equal(write(fds[1], "x", 1), -1);
        assert_int_equal(fds[2], -1);
        close(fds[0]);
        close(fds[1]);
    }
}

static void links_that_lead_elsewhere_are_refused(void **state)
{
    struct store *s = *state;
    struct err err;
    struct manifest m;
    int dir = -7;
    assert_int_equal(symlinkat("python-agent", s->fd, "two-levels"), 0);
    assert_int_equal(symlinkat("/etc", s->fd, "absolute"), 0);
    assert_int_equal(symlinkat("../x", s->fd, "above"), 0);
    assert_int_equal(symlinkat("self", s->fd, "self"), 0);
    assert_int_equal(symlinkat("gone", s->fd, "dangling"), 0);
    char long_target[200];
    memset(long_target, 'a', sizeof long_target - 1);
    long_target[sizeof long_target - 1] = '\0';
    assert_int_equal(symlinkat(long_target, s->fd, "long"), 0);
    put_file(s->fd, "file", "x", 1);
    assert_int_equal(open_it(s, "two-levels", &m, &dir, &err), -ELOOP);
    assert_non_null(strstr(err.text, "another alias"));
    assert_int_equal(open_it(s, "absolute", &m, &dir, &err), -ELOOP);
    assert_int_equal(open_it(s, "above", &m, &dir, &err), -ELOOP);
    assert_int_equal(open_it(s, "self", &m, &dir, &err), -ELOOP);
    assert_int_equal(open_it(s, "long", &m, &dir, &err), -ELOOP);
    assert_int_equal(open_it(s, "dangling", &m, &dir, &err), -ENOENT);
    assert_int_equal(open_it(s, "file", &m, &dir, &err), -ENOTDIR);
    assert_int_equal(open_it(s, "unknown", &m, &dir, &err), -ENOENT);
    assert_non_null(strstr(err.text, "\"unknown\""));
    assert_int_equal(open_it(s, "../debian", &m, &dir, &err), -EINVAL);
    assert_int_equal(dir, -7);
}

static void a_changed_manifest_is_noticed(void **state)
{
    struct store *s = *state;
    struct err err;
    struct manifest m;
    int dir = -1;
    uint8_t bytes[MANIFEST_MAX + 1] = {0};
    int fd = openat(s->fd, "debian/manifest.bin", O_RDWR | O_CLOEXEC);
    ssize_t n = read(fd, bytes, sizeof bytes);
    assert_true(n > 100);
    for (ssize_t at = 0; at < n; at++) {
        uint8_t flipped = bytes[at] ^ 0x10;
        assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
        assert_int_equal(open_it(s, "debian", &m, &dir, &err), -EBADMSG);
        assert_non_null(strstr(err.text, "manifest.bin"));
        assert_int_equal(pwrite(fd, &bytes[at], 1, at), 1);
    }
    assert_int_equal(open_it(s, "debian", &m, &dir, &err), 0);
    close_fd(&dir);
    // One byte over the ceiling, one cut to less than a seal, one that is not there.
    assert_int_equal(ftruncate(fd, MANIFEST_MAX + 1), 0);
    assert_int_equal(open_it(s, "debian", &m, &dir, &err), -EBADMSG);
    assert_int_equal(ftruncate(fd, 31), 0);
    assert_int_equal(open_it(s, "debian", &m, &dir, &err), -EBADMSG);
    assert_int_equal(unlinkat(s->fd, "debian/manifest.bin", 0), 0);
    assert_int_equal(open_it(s, "debian", &m, &dir, &err), -ENOENT);
    close(fd);
}

static void expect_changed(int dir, const struct manifest *m, const char *name)
{
    struct err err = {0};
    int fds[MANIFEST_FILES_MAX] = {-7};
    int lowest_before = dup(0);
    close(lowest_before);
    assert_int_equal(template_verify(dir, m, fds, &err), -EBADMSG);
    assert_non_null(strstr(err.text, name));
    assert_int_equal(fds[0], -7);
    int lowest_after = dup(0);
    close(lowest_after);
    assert_int_equal(lowest_before, lowest_after);  // nothing was left open
}

static void a_changed_file_is_named(void **state)
{
    struct store *s = *state;
    struct err err;
    struct manifest m;
    cleanup_fd int dir = -1;
    assert_int_equal(open_it(s, "debian", &m, &dir, &err), 0);
    put_file(dir, "vmstate", "statE", 5);
    expect_changed(dir, &m, "vmstate");
    put_file(dir, "vmstate", "state ", 6);
    expect_changed(dir, &m, "vmstate");
    put_file(dir, "vmstate", "state", 5);
    int fds[MANIFEST_FILES_MAX];
    assert_int_equal(template_verify(dir, &m, fds, &err), 0);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(unlinkat(dir, "rootfs.ext4", 0), 0);
    expect_changed(dir, &m, "rootfs.ext4");
    assert_int_equal(symlinkat("vmstate", dir, "rootfs.ext4"), 0);
    expect_changed(dir, &m, "rootfs.ext4");
    assert_int_equal(unlinkat(dir, "rootfs.ext4", 0), 0);
    assert_int_equal(mkfifoat(dir, "rootfs.ext4", 0644), 0);
    expect_changed(dir, &m, "rootfs.ext4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test_setup_teardown(opens_by_name_and_alias, setup, teardown),
        cmocka_unit_test_setup_teardown(links_that_lead_elsewhere_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_changed_manifest_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_changed_file_is_named, setup, teardown),
    };
    return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}

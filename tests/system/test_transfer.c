// Transfers: archives and files of any size, to and from any path, and archives that want out.
#include "system.h"
#include "wire/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

// A file of no name with these bytes, to be read from its start.
static int file_of(const void *bytes, size_t n)
{
    int fd = memfd_create("archive", MFD_CLOEXEC);
    assert_true(fd >= 0);
    for (size_t at = 0; at < n;) {
        ssize_t w = write(fd, (const char *)bytes + at, n - at);
        assert_true(w > 0);
        at += (size_t)w;
    }
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

static void add(struct buf *b, enum tar_type type, const char *path, const char *link, const char *data)
{
    const struct tar_entry e = {.type = type,
                                .path = path,
                                .link = link,
                                .size = strlen(data),
                                .mode = type == TAR_DIRECTORY ? 0750 : 0640,
                                .mtime = 1e9};
    static const uint8_t zeros[TAR_BLOCK];
    assert_int_equal(tar_put_header(b, &e), 0);
    buf_append(b, data, strlen(data));
    assert_int_equal(buf_append(b, zeros, tar_padding(strlen(data))), 0);
}

static int archive(struct buf *b)
{
    assert_int_equal(tar_put_end(b), 0);
    int fd = file_of(b->data, b->len);
    buf_clear(b);
    return fd;
}

static void a_tree_goes_out_and_in_again(void **state)
{
    sandbox_handle_t *h = *state;
    assert_int_equal(exit_code(h, "mkdir -p /tmp/a/deep/er && cd /tmp/a && echo one > f && chmod 4755 f && ln f deep/hard &&"
                                  "ln -s ../f deep/link && head -c 1000000 /dev/urandom > deep/er/big && mkfifo p &&"
                                  "n=$(head -c 200 /dev/zero | tr '\\0' n) && echo long > deep/$n && touch -d @5.25 f &&"
                                  "mkdir empty && touch -d @1000000000 deep empty && : > ' sp\\ace'"),
                     0);
    cleanup_fd int fd = memfd_create("tar", MFD_CLOEXEC);
    sandbox_transfer_t out = {0}, in = {0};
    assert_ok(sandbox_tar_out(h, "/tmp/a", fd, 0, &out));
    assert_int_equal(out.skipped, 1);
    assert_int_equal(out.bytes, 4 + 1000000 + 5);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_ok(sandbox_tar_in(h, "/tmp/new/b", fd, &in));
    assert_int_equal(in.entries, out.entries - 1);  // the directory's own
    assert_int_equal(in.bytes, out.bytes);
    assert_int_equal(exit_code(h, "cd /tmp/a && rm p && diff -r --no-dereference /tmp/a /tmp/new/b"), 0);
    static const char look[] = "cd %s && find . -mindepth 1 -printf '%%p %%y %%m %%T@ %%n %%l\\n' | sort | md5sum";
    char *a = output(h, look, "/tmp/a"), *b = output(h, look, "/tmp/new/b");
    assert_string_equal(a, b);
    free(a);
    free(b);
    assert_int_equal(exit_code(h, "cd /tmp/new/b && test f -ef deep/hard"), 0);
    // And the tar of the guest itself reads what is written.
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_ok(sandbox_write_stream(h, "/tmp/a.tar", fd, 0, 0, NULL));
    assert_int_equal(exit_code(h, "mkdir /tmp/c && tar -xpf /tmp/a.tar -C /tmp/c && diff -r --no-dereference /tmp/a /tmp/c"),
                     0);
    // And the other way round.
    assert_int_equal(exit_code(h, "tar -cf /tmp/g.tar -C /tmp/a . && tar --format=gnu -cf /tmp/h.tar -C /tmp/a ."), 0);
    static const char *const made[] = {"/tmp/g.tar", "/tmp/h.tar"};
    for (int i = 0; i < 2; i++) {
        cleanup_fd int theirs = memfd_create("tar", MFD_CLOEXEC);
        assert_ok(sandbox_read_stream(h, made[i], 0, theirs, NULL));
        assert_int_equal(lseek(theirs, 0, SEEK_SET), 0);
        assert_int_equal(exit_code(h, "rm -rf /tmp/d"), 0);
        assert_ok(sandbox_tar_in(h, "/tmp/d", theirs, NULL));
        assert_int_equal(exit_code(h, "diff -r --no-dereference /tmp/a /tmp/d"), 0);
    }
}

static void one_file_can_be_packed(void **state)
{
    sandbox_handle_t *h = *state;
    cleanup_fd int fd = memfd_create("tar", MFD_CLOEXEC);
    sandbox_transfer_t t = {0};
    assert_ok(sandbox_tar_out(h, "/etc/hostname", fd, 0, &t));
    assert_int_equal(t.entries, 1);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_ok(sandbox_tar_in(h, "/tmp/one", fd, NULL));
    assert_int_equal(exit_code(h, "cmp /etc/hostname /tmp/one/hostname"), 0);
}

static void archives_stay_below_their_directory(void **state)
{
    sandbox_handle_t *h = *state;
    cleanup_buf struct buf b = BUF_INIT(1 << 20);
    assert_int_equal(exit_code(h, "mkdir -p /tmp/jail/real /tmp/outside && cd /tmp/jail && ln -s /tmp/outside abs &&"
                                  "ln -s ../outside rel && ln -s real inside && echo safe > /tmp/outside/f"),
                     0);
    static const struct {
        const char *path, *link;
        enum tar_type type;
    } bad[] = {
        {"../evil", "", TAR_FILE},
        {"/tmp/outside/evil", "", TAR_FILE},
        {"a/../../evil", "", TAR_FILE},
        {"abs/evil", "", TAR_FILE},
        {"rel/evil", "", TAR_FILE},
        {"abs/sub/evil", "", TAR_FILE},
        {"hard", "../outside/f", TAR_HARDLINK},
        {"hard", "abs/f", TAR_HARDLINK},
        {"hard", "/etc/passwd", TAR_HARDLINK},
        {"rel/d", "", TAR_DIRECTORY},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        add(&b, bad[i].type, bad[i].path, bad[i].link, bad[i].type == TAR_FILE ? "evil" : "");
        cleanup_fd int fd = archive(&b);
        assert_fails(sandbox_tar_in(h, "/tmp/jail", fd, NULL), SANDBOX_ERR_PATH_DENIED);
    }
    // A link made by the archive itself leads no further.
    add(&b, TAR_SYMLINK, "trap", "/tmp/outside", "");
    add(&b, TAR_FILE, "trap/evil", "", "evil");
    cleanup_fd int trap = archive(&b);
    assert_fails(sandbox_tar_in(h, "/tmp/jail", trap, NULL), SANDBOX_ERR_PATH_DENIED);
    // A file takes a link's place, and does not go through it; a link that stays inside is a way.
    add(&b, TAR_FILE, "abs", "", "new");
    add(&b, TAR_FILE, "inside/f", "", "in");
    cleanup_fd int fine = archive(&b);
    assert_ok(sandbox_tar_in(h, "/tmp/jail", fine, NULL));
    assert_int_equal(exit_code(h, "cd /tmp/jail && test ! -L abs -a \"$(cat abs)\" = new && test \"$(cat real/f)\" = in &&"
                                  "test \"$(ls /tmp/outside)\" = f -a \"$(cat /tmp/outside/f)\" = safe"),
                     0);
    // A file does not take a directory's place.
    add(&b, TAR_FILE, "real", "", "x");
    cleanup_fd int over = archive(&b);
    assert_fails(sandbox_tar_in(h, "/tmp/jail", over, NULL), SANDBOX_ERR_GUEST_IO);
    assert_int_equal(exit_code(h, "test -d /tmp/jail/real"), 0);
}

// Makes the header at `h` one of a character device.
static void make_device(uint8_t h[TAR_BLOCK])
{
    h[156] = '3';
    memset(h + 148, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += h[i];
    char text[16];
    snprintf(text, sizeof text, "%06o", sum);
    memcpy(h + 148, text, 7);
}

static void odd_entries_are_skipped_or_refused(void **state)
{
    sandbox_handle_t *h = *state;
    cleanup_buf struct buf b = BUF_INIT(1 << 20);
    sandbox_transfer_t in = {0};
    // A device is skipped, and said to be; of two entries with one name, the later one stays.
    add(&b, TAR_FILE, "device", "", "");
    make_device(b.data);
    add(&b, TAR_FILE, "twice", "", "first");
    add(&b, TAR_FILE, "twice", "", "second");
    cleanup_fd int fd = archive(&b);
    assert_ok(sandbox_tar_in(h, "/tmp/odd", fd, &in));
    assert_int_equal(in.skipped, 1);
    assert_int_equal(exit_code(h, "cd /tmp/odd && test ! -e device -a \"$(cat twice)\" = second -a $(ls -A | wc -l) = 1"), 0);
    // A way out behind a harmless beginning.
    add(&b, TAR_FILE, "./../escaped", "", "x");
    cleanup_fd int dots = archive(&b);
    assert_fails(sandbox_tar_in(h, "/tmp/odd", dots, NULL), SANDBOX_ERR_PATH_DENIED);
    assert_int_equal(exit_code(h, "test ! -e /tmp/escaped"), 0);
    // What claims a terabyte takes no more than its real bytes, and is no archive.
    const struct tar_entry claim = {.type = TAR_FILE, .path = "huge", .link = "", .size = UINT64_C(1) << 40, .mode = 0640};
    assert_int_equal(tar_put_header(&b, &claim), 0);
    cleanup_fd int huge = file_of(b.data, b.len);
    assert_fails(sandbox_tar_in(h, "/tmp/odd", huge, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(exit_code(h, "test ! -s /tmp/odd/huge"), 0);
    assert_answers(h);
}

static void what_is_no_archive_is_refused(void **state)
{
    sandbox_handle_t *h = *state;
    static char noise[200000];
    memset(noise, 'n', sizeof noise);
    cleanup_fd int fd = file_of(noise, sizeof noise);
    assert_fails(sandbox_tar_in(h, "/tmp/x", fd, NULL), SANDBOX_ERR_INVALID_SPEC);
    cleanup_fd int empty = file_of("", 0);
    assert_fails(sandbox_tar_in(h, "/tmp/x", empty, NULL), SANDBOX_ERR_INVALID_SPEC);
    cleanup_buf struct buf b = BUF_INIT(1 << 20);
    add(&b, TAR_FILE, "f", "", "text");
    cleanup_fd int cut = file_of(b.data, b.len - 10);
    assert_fails(sandbox_tar_in(h, "/tmp/x", cut, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_fails(sandbox_tar_in(h, "relative", cut, NULL), SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_tar_out(h, "/no/such", cut, 0, NULL), SANDBOX_ERR_NOT_FOUND);
    assert_fails(sandbox_tar_in(h, "/tmp/x", -1, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_fails(sandbox_tar_in(h, "/etc/passwd", cut, NULL), SANDBOX_ERR_GUEST_IO);
    assert_int_equal(exit_code(h, "truncate -s 1T /tmp/sparse"), 0);
    cleanup_fd int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_fails(sandbox_tar_out(h, "/tmp/sparse", null, 1 << 20, NULL), SANDBOX_ERR_TOO_LARGE);
    assert_int_equal(exit_code(h, "rm /tmp/sparse"), 0);
}

static void large_files_go_through(void **state)
{
    sandbox_handle_t *h = *state;
    enum { MIB = 300 };
    cleanup_fd int fd = memfd_create("large", MFD_CLOEXEC);
    static char block[1 << 20];
    for (int i = 0; i < MIB; i++) {
        memset(block, i, sizeof block);
        assert_int_equal(write(fd, block, sizeof block), sizeof block);
    }
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    sandbox_transfer_t t = {0};
    assert_ok(sandbox_write_stream(h, "/workspace/large", fd, 0600, 0, &t));
    assert_int_equal(t.bytes, (uint64_t)MIB << 20);
    assert_int_equal(number(h, "stat -c %%s /workspace/large"), (long)MIB << 20);
    cleanup_fd int back = memfd_create("back", MFD_CLOEXEC);
    assert_ok(sandbox_read_stream(h, "/workspace/large", 0, back, &t));
    assert_int_equal(t.bytes, (uint64_t)MIB << 20);
    for (int i = 0; i < MIB; i += 37) {
        assert_int_equal(pread(back, block, sizeof block, (off_t)i << 20), sizeof block);
        assert_true(block[0] == (char)i && memcmp(block, block + 1, sizeof block - 1) == 0);
    }
    assert_int_equal(ftruncate(back, 0), 0);
    assert_int_equal(lseek(back, 0, SEEK_SET), 0);
    assert_ok(sandbox_read_stream(h, "/workspace/large", ((uint64_t)MIB << 20) - 5, back, &t));
    assert_int_equal(t.bytes, 5);
    assert_int_equal(exit_code(h, "rm /workspace/large"), 0);
}

static void files_are_written_whole_or_not_at_all(void **state)
{
    sandbox_handle_t *h = *state;
    cleanup_fd int fd = file_of("new", 3);
    assert_int_equal(exit_code(h, "echo old > /tmp/f; chmod 751 /tmp/f; ln -s f /tmp/link"), 0);
    assert_fails(sandbox_write_stream(h, "/tmp/f", fd, 0, SANDBOX_WRITE_EXCL, NULL), SANDBOX_ERR_EXISTS);
    assert_fails(sandbox_write_stream(h, "/tmp/no/f", fd, 0, 0, NULL), SANDBOX_ERR_NOT_FOUND);
    assert_fails(sandbox_write_stream(h, "/tmp", fd, 0, 0, NULL), SANDBOX_ERR_GUEST_IO);
    assert_fails(sandbox_write_stream(h, "/tmp/f", fd, 0, 32, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_ok(sandbox_write_stream(h, "/tmp/link", fd, 0, 0, NULL));
    assert_int_equal(exit_code(h, "test -L /tmp/link -a \"$(cat /tmp/f)\" = new -a $(stat -c %%a /tmp/f) = 751"), 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_ok(sandbox_write_stream(h, "/tmp/f", fd, 0, SANDBOX_WRITE_APPEND, NULL));
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_ok(sandbox_write_stream(h, "/tmp/p/q/r", fd, 0604, SANDBOX_WRITE_PARENTS | SANDBOX_WRITE_EXCL, NULL));
    assert_int_equal(
        exit_code(h, "test \"$(cat /tmp/f)\" = newnew -a \"$(cat /tmp/p/q/r)\" = new -a $(stat -c %%a /tmp/p/q/r) = 604"), 0);
    // A source that fails half way leaves the old one, and nothing else.
    cleanup_fd int folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_fails(sandbox_write_stream(h, "/tmp/f", folder, 0, 0, NULL), SANDBOX_ERR_INTERNAL);
    uint64_t until = now_ms() + patient(5000);
    while (number(h, "ls -A /tmp | grep -c sandbox- || true") > 0)
        assert_true(now_ms() < until);
    assert_int_equal(exit_code(h, "test \"$(cat /tmp/f)\" = newnew"), 0);
    assert_fails(sandbox_read_stream(h, "/dev/zero", 0, fd, NULL), SANDBOX_ERR_GUEST_IO);
    assert_int_equal(exit_code(h, "mkfifo /tmp/pipe"), 0);
    assert_fails(sandbox_read_stream(h, "/tmp/pipe", 0, fd, NULL), SANDBOX_ERR_GUEST_IO);
    cleanup_fd int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_fails(sandbox_read_stream(h, "/etc/passwd", 0, full, NULL), SANDBOX_ERR_INTERNAL);
    assert_answers(h);
}

// 256 directories in one another, the packed one with them, are packed; one more is an error, and not a part of an archive.
static void trees_have_a_depth(void **state)
{
    sandbox_handle_t *h = *state;
    cleanup_fd int fd = memfd_create("tar", MFD_CLOEXEC);
    sandbox_transfer_t t = {0};
    assert_int_equal(exit_code(h, "mkdir /tmp/deep && cd /tmp/deep && for i in $(seq 255); do mkdir d && cd d; done"), 0);
    assert_ok(sandbox_tar_out(h, "/tmp/deep", fd, 0, &t));
    assert_int_equal(t.entries, 256);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_ok(sandbox_tar_in(h, "/tmp/deep-too", fd, NULL));
    assert_int_equal(number(h, "find /tmp/deep-too -type d | wc -l"), 256);
    assert_int_equal(exit_code(h, "cd /tmp/deep && mkdir one && mv d one"), 0);
    assert_fails(sandbox_tar_out(h, "/tmp/deep", fd, 0, NULL), SANDBOX_ERR_GUEST_IO);
    assert_int_equal(exit_code(h, "rm -rf /tmp/deep /tmp/deep-too"), 0);
}

static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    sandbox_spec_t spec = plain_spec();
    spec.disk_mib = 32;
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    cleanup_fd int fd = memfd_create("large", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 200 << 20), 0);
    assert_fails(sandbox_write_stream(h, "/workspace/f", fd, 0, 0, NULL), SANDBOX_ERR_GUEST_IO);
    assert_non_null(strstr(sandbox_last_error(), "space"));
    assert_answers(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_goes_out_and_in_again),
        cmocka_unit_test(one_file_can_be_packed),
        cmocka_unit_test(archives_stay_below_their_directory),
        cmocka_unit_test(odd_entries_are_skipped_or_refused),
        cmocka_unit_test(what_is_no_archive_is_refused),
        cmocka_unit_test(large_files_go_through),
        cmocka_unit_test(files_are_written_whole_or_not_at_all),
        cmocka_unit_test(trees_have_a_depth),
        cmocka_unit_test(a_full_disk_is_an_error),
    };
    return cmocka_run_group_tests_name("transfer", tests, open_with_sandbox, close_with_sandbox);
}

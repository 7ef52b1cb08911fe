// Files: every function, its limits on both sides, and that no path leads out of /workspace (spec 000, "Guest RPC").
#include "system.h"

#include <stdio.h>
#include <string.h>

#define KIB 1024

static void put(sandbox_handle_t *h, const char *path, const char *text)
{
    assert_ok(sandbox_write_file(h, path, (const uint8_t *)text, strlen(text), 0, 0));
}

static void holds(sandbox_handle_t *h, const char *path, const char *text)
{
    cleanup_free uint8_t *data = NULL;
    size_t len = 0;
    assert_ok(sandbox_read_file(h, path, &data, &len));
    assert_int_equal(len, strlen(text));
    assert_string_equal((const char *)data, text);
}

static void sizes_on_both_sides_of_every_limit(void **state)
{
    sandbox_handle_t *h = *state;
    static const size_t sizes[] = {0,        1,          48 * KIB - 1,         48 * KIB,        48 * KIB + 1, 64 * KIB,
                                   96 * KIB, 1000 * KIB, SANDBOX_MAX_FILE - 1, SANDBOX_MAX_FILE};
    cleanup_free uint8_t *bytes = malloc(SANDBOX_MAX_FILE + 1);
    for (size_t i = 0; i < SANDBOX_MAX_FILE + 1; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 24);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_ok(sandbox_write_file(h, "/workspace/sized", bytes, sizes[i], 0, 0));
        cleanup_free uint8_t *data = NULL;
        size_t len = 1;
        assert_ok(sandbox_read_file(h, "/workspace/sized", &data, &len));
        assert_int_equal(len, sizes[i]);
        assert_memory_equal(data, bytes, len);
        assert_int_equal(data[len], 0);
        assert_int_equal(number(h, "wc -c < sized"), sizes[i]);
    }
    assert_fails(sandbox_write_file(h, "/workspace/sized", bytes, SANDBOX_MAX_FILE + 1, 0, 0), SANDBOX_ERR_TOO_LARGE);
    assert_int_equal(number(h, "wc -c < sized"), SANDBOX_MAX_FILE);
    assert_int_equal(exit_code(h, "echo >> sized"), 0);
    uint8_t *data = NULL;
    size_t len = 7;
    assert_fails(sandbox_read_file(h, "/workspace/sized", &data, &len), SANDBOX_ERR_TOO_LARGE);
    assert_null(data);
    assert_int_equal(len, 7);
}

static void write_flags(void **state)
{
    sandbox_handle_t *h = *state;
    const uint8_t *x = (const uint8_t *)"x";
    put(h, "/workspace/flags", "one");
    assert_ok(sandbox_write_file(h, "/workspace/flags", (const uint8_t *)"+two", 4, 0, SANDBOX_WRITE_APPEND));
    holds(h, "/workspace/flags", "one+two");
    assert_ok(sandbox_write_file(h, "/workspace/appended", x, 1, 0, SANDBOX_WRITE_APPEND));
    holds(h, "/workspace/appended", "x");
    assert_fails(sandbox_write_file(h, "/workspace/flags", x, 1, 0, SANDBOX_WRITE_EXCL), SANDBOX_ERR_EXISTS);
    holds(h, "/workspace/flags", "one+two");
    assert_ok(sandbox_write_file(h, "/workspace/fresh", x, 1, 0, SANDBOX_WRITE_EXCL));
    assert_fails(sandbox_write_file(h, "/workspace/no/such/folder/f", x, 1, 0, 0), SANDBOX_ERR_NOT_FOUND);
    assert_ok(sandbox_write_file(h, "/workspace/made/on/the/way/f", x, 1, 0, SANDBOX_WRITE_PARENTS));
    holds(h, "/workspace/made/on/the/way/f", "x");
    sandbox_fstat_t st = {0};
    assert_ok(sandbox_stat(h, "/workspace/made/on", &st));
    assert_int_equal(st.mode, 0755);
    assert_fails(sandbox_write_file(h, "/workspace/flags", x, 1, 0, 8), SANDBOX_ERR_INVALID_SPEC);
    assert_fails(sandbox_write_file(h, "/workspace/flags", x, 1, 0, 0x80000000u), SANDBOX_ERR_INVALID_SPEC);
    cleanup_free uint8_t *large = calloc(1, 100 * KIB);
    assert_fails(sandbox_write_file(h, "/workspace/flags", large, 100 * KIB, 0, SANDBOX_WRITE_EXCL), SANDBOX_ERR_EXISTS);
    holds(h, "/workspace/flags", "one+two");
    assert_ok(sandbox_write_file(h, "/workspace/flags", large, 100 * KIB, 0, SANDBOX_WRITE_APPEND));
    assert_int_equal(number(h, "wc -c < flags"), 100 * KIB + 7);
}

static void modes(void **state)
{
    sandbox_handle_t *h = *state;
    static const struct {
        uint32_t asked, got;
    } cases[] = {{0, 0644}, {0600, 0600}, {0755, 0755}, {0400, 0400}, {0666, 0666}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[64];
        snprintf(path, sizeof path, "/workspace/mode-%zu", i);
        assert_ok(sandbox_write_file(h, path, (const uint8_t *)"m", 1, cases[i].asked, 0));
        sandbox_fstat_t st = {0};
        assert_ok(sandbox_stat(h, path, &st));
        assert_int_equal(st.mode, cases[i].got);
    }
    assert_ok(sandbox_write_file(h, "/workspace/script", (const uint8_t *)"#!/bin/sh\necho ran\n", 19, 0755, 0));
    cleanup_free char *text = output(h, "./script");
    assert_string_equal(text, "ran");
}

static void names_are_bytes(void **state)
{
    sandbox_handle_t *h = *state;
    char longest[256];
    memset(longest, 'n', 255);
    longest[255] = '\0';
    const char *const names[] = {"report%20name.txt",
                                 "report name.txt",
                                 "%2e%2e",
                                 "100%.txt",
                                 "a+b.txt",
                                 "#?&;",
                                 "new\nline",
                                 "\xff\xfe",
                                 "e\xcc\x81",
                                 "\xc3\xa9",
                                 "\xe6\x97\xa5",
                                 "-rf",
                                 "...",
                                 "..x",
                                 "back\\slash",
                                 " ",
                                 "'",
                                 "*",
                                 longest};
    enum { N = sizeof names / sizeof names[0] };
    assert_ok(sandbox_mkdir(h, "/workspace/names", 0, false));
    for (size_t i = 0; i < N; i++) {
        char path[400], text[16];
        snprintf(path, sizeof path, "/workspace/names/%s", names[i]);
        snprintf(text, sizeof text, "content %zu", i);
        put(h, path, text);
    }
    for (size_t i = 0; i < N; i++) {
        char path[400], text[16];
        snprintf(path, sizeof path, "/workspace/names/%s", names[i]);
        snprintf(text, sizeof text, "content %zu", i);
        holds(h, path, text);
    }
    cleanup_free sandbox_dirent_t *entries = NULL;
    size_t count = 0;
    bool truncated = true;
    assert_ok(sandbox_list_dir(h, "/workspace/names", &entries, &count, &truncated));
    assert_int_equal(count, N);
    assert_false(truncated);
    for (size_t i = 1; i < count; i++)
        assert_true(strcmp(entries[i - 1].name, entries[i].name) < 0);
    char path[400];
    snprintf(path, sizeof path, "/workspace/names/%sx", longest);
    assert_int_not_equal(sandbox_write_file(h, path, (const uint8_t *)"x", 1, 0, 0), SANDBOX_OK);
    cleanup_free char *deep = malloc(6000);
    strcpy(deep, "/workspace");
    while (strlen(deep) < 5000)
        strcat(deep, "/dddddddddd");
    assert_int_not_equal(sandbox_write_file(h, deep, (const uint8_t *)"x", 1, 0, SANDBOX_WRITE_PARENTS), SANDBOX_OK);
    assert_answers(h);
}

// ---- the wall around /workspace ----------------------------------------------------------------------------------------

// Every function refuses `path`.
static void denied(sandbox_handle_t *h, const char *path)
{
    uint8_t *data = NULL;
    size_t len = 0, count = 0;
    bool truncated = false;
    sandbox_dirent_t *entries = NULL;
    sandbox_fstat_t st = {0};
    print_message("# path '%s'\n", path);
    assert_fails(sandbox_read_file(h, path, &data, &len), SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_write_file(h, path, (const uint8_t *)"x", 1, 0, 0), SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_write_file(h, path, (const uint8_t *)"x", 1, 0, SANDBOX_WRITE_APPEND | SANDBOX_WRITE_PARENTS),
                 SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_list_dir(h, path, &entries, &count, &truncated), SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_stat(h, path, &st), SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_mkdir(h, path, 0, true), SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_remove(h, path, true), SANDBOX_ERR_PATH_DENIED);
}

static void paths_that_are_not_inside(void **state)
{
    static const char *const paths[] = {"",
                                        "relative",
                                        "workspace/x",
                                        "/",
                                        "/etc/passwd",
                                        "/tmp/x",
                                        "/workspaces",
                                        "/workspacex/y",
                                        "/workspace/..",
                                        "/workspace/../etc/passwd",
                                        "/workspace/a/../b",
                                        "/workspace/./a",
                                        "/workspace/a/..",
                                        "/workspace/a/.",
                                        "/../workspace/a",
                                        "/proc/1/root/workspace/a",
                                        "/proc/self/environ"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        denied(*state, paths[i]);
}

static void symbolic_links_that_lead_out(void **state)
{
    sandbox_handle_t *h = *state;
    assert_int_equal(exit_code(h, "mkdir -p links/real && cd links && echo inside > real/f && echo outside > /etc/canary && "
                                  "ln -s /etc etc && ln -s ../../etc up && ln -s / root && ln -s real ok && "
                                  "ln -s /workspace/links/real absolute && ln -s /etc/canary file && ln -s gone dangling && "
                                  "ln -s /etc/new-file out-dangling && ln -s loop loop && ln -s /proc/self/root proc"),
                     0);
    static const char *const through[] = {"/workspace/links/etc/canary", "/workspace/links/up/canary",
                                          "/workspace/links/root/etc/canary", "/workspace/links/proc/etc/canary"};
    for (size_t i = 0; i < sizeof through / sizeof through[0]; i++)
        denied(h, through[i]);
    uint8_t *data = NULL;
    size_t len = 0;
    assert_fails(sandbox_read_file(h, "/workspace/links/file", &data, &len), SANDBOX_ERR_PATH_DENIED);
    sandbox_error_t e = sandbox_write_file(h, "/workspace/links/out-dangling", (const uint8_t *)"x", 1, 0, 0);
    assert_true(e == SANDBOX_OK || e == SANDBOX_ERR_PATH_DENIED);  // may replace the link itself; never what it names
    assert_int_not_equal(exit_code(h, "test -e /etc/new-file"), 0);
    assert_fails(sandbox_write_file(h, "/workspace/links/file", (const uint8_t *)"x", 1, 0, SANDBOX_WRITE_APPEND),
                 SANDBOX_ERR_PATH_DENIED);
    cleanup_free char *canary = output(h, "cat /etc/canary");
    assert_string_equal(canary, "outside");
    assert_int_not_equal(sandbox_read_file(h, "/workspace/links/loop", &data, &len), SANDBOX_OK);
    assert_fails(sandbox_read_file(h, "/workspace/links/dangling", &data, &len), SANDBOX_ERR_NOT_FOUND);
    holds(h, "/workspace/links/ok/f", "inside\n");
    holds(h, "/workspace/links/absolute/f", "inside\n");
}

static void stat_and_remove_take_the_link_itself(void **state)
{
    sandbox_handle_t *h = *state;
    assert_int_equal(exit_code(h, "mkdir kept && echo x > kept/f && ln -s kept kept-link && ln -s /etc etc-link"), 0);
    sandbox_fstat_t st = {0};
    assert_ok(sandbox_stat(h, "/workspace/kept-link", &st));
    assert_int_equal(st.type, SANDBOX_FILE_SYMLINK);
    assert_ok(sandbox_stat(h, "/workspace/etc-link", &st));
    assert_int_equal(st.type, SANDBOX_FILE_SYMLINK);
    assert_ok(sandbox_remove(h, "/workspace/kept-link", true));
    assert_ok(sandbox_remove(h, "/workspace/etc-link", true));
    holds(h, "/workspace/kept/f", "x\n");
    assert_int_equal(exit_code(h, "test -e /etc/passwd && ! test -L kept-link && ! test -L etc-link"), 0);
}

static void a_component_swapped_in_between_never_leads_out(void **state)
{
    sandbox_handle_t *h = *state;
    assert_int_equal(exit_code(h, "echo outside > /etc/marker; mkdir -p race/d; echo inside > race/d/marker; cd race; "
                                  "(while [ ! -e stop ]; do mv d d.x; ln -s /etc d; rm d; mv d.x d; done) "
                                  ">/dev/null 2>&1 &"),
                     0);
    int read = 0;
    for (int i = 0; i < 400; i++) {
        cleanup_free uint8_t *data = NULL;
        size_t len = 0;
        if (sandbox_read_file(h, "/workspace/race/d/marker", &data, &len) == SANDBOX_OK) {
            assert_string_equal((const char *)data, "inside\n");
            read++;
        }
        sandbox_error_t e = sandbox_write_file(h, "/workspace/race/d/written", (const uint8_t *)"w", 1, 0, 0);
        assert_true(e == SANDBOX_OK || e == SANDBOX_ERR_PATH_DENIED || e == SANDBOX_ERR_NOT_FOUND || e == SANDBOX_ERR_GUEST_IO);
    }
    assert_true(read > 0);
    assert_int_equal(exit_code(h, "touch race/stop; test ! -e /etc/written && [ \"$(cat /etc/marker)\" = outside ]"), 0);
}

// ---- kinds of files ----------------------------------------------------------------------------------------------------

static void what_is_not_a_regular_file_fails_at_once(void **state)
{
    sandbox_handle_t *h = *state;
    assert_int_equal(exit_code(h, "mkfifo fifo && mkdir folder && touch folder/f"), 0);
    uint8_t *data = NULL;
    size_t len = 0, count = 0;
    sandbox_dirent_t *entries = NULL;
    bool truncated = false;
    uint64_t start = now_ms();
    assert_fails(sandbox_read_file(h, "/workspace/fifo", &data, &len), SANDBOX_ERR_GUEST_IO);
    assert_fails(sandbox_write_file(h, "/workspace/fifo", (const uint8_t *)"x", 1, 0, SANDBOX_WRITE_APPEND),
                 SANDBOX_ERR_GUEST_IO);
    assert_fails(sandbox_read_file(h, "/workspace/folder", &data, &len), SANDBOX_ERR_GUEST_IO);
    assert_fails(sandbox_write_file(h, "/workspace/folder", (const uint8_t *)"x", 1, 0, 0), SANDBOX_ERR_GUEST_IO);
    assert_fails(sandbox_list_dir(h, "/workspace/folder/f", &entries, &count, &truncated), SANDBOX_ERR_GUEST_IO);
    assert_fails(sandbox_read_file(h, "/workspace/folder/f/g", &data, &len), SANDBOX_ERR_GUEST_IO);
    assert_true(now_ms() - start < patient(5000));
    sandbox_fstat_t st = {0};
    assert_ok(sandbox_stat(h, "/workspace/fifo", &st));
    assert_int_equal(st.type, SANDBOX_FILE_FIFO);
}

static void stat_tells_all(void **state)
{
    sandbox_handle_t *h = *state;
    assert_int_equal(exit_code(h,
                               "printf 12345 > st && chmod 640 st && chown 12:34 st && touch -d '2001-02-03 04:05:06 UTC' st "
                               "&& ln st st2"),
                     0);
    sandbox_fstat_t st = {0};
    assert_ok(sandbox_stat(h, "/workspace/st", &st));
    assert_int_equal(st.type, SANDBOX_FILE_REGULAR);
    assert_int_equal(st.size, 5);
    assert_int_equal(st.mode, 0640);
    assert_int_equal(st.uid, 12);
    assert_int_equal(st.gid, 34);
    assert_int_equal(st.mtime, 981173106);
    assert_int_equal(st.nlink, 2);
    assert_int_equal(st.inode, number(h, "stat -c %%i st"));
    assert_ok(sandbox_stat(h, "/workspace", &st));
    assert_int_equal(st.type, SANDBOX_FILE_DIRECTORY);
    assert_fails(sandbox_stat(h, "/workspace/none", &st), SANDBOX_ERR_NOT_FOUND);
}

static void listing_and_its_limit(void **state)
{
    sandbox_handle_t *h = *state;
    assert_int_equal(exit_code(h, "mkdir many && cd many && i=1000; while [ $i -lt 3000 ]; do "
                                  ": > file-with-a-name-that-is-so-long-that-few-of-them-fit-into-one-reply-$i; "
                                  "i=$((i+1)); done; mkdir ../few && cd ../few && mkdir d && echo xyz > f && ln -s f l"),
                     0);
    cleanup_free sandbox_dirent_t *many = NULL, *few = NULL, *none = NULL;
    size_t count = 0;
    bool truncated = false;
    assert_ok(sandbox_list_dir(h, "/workspace/many", &many, &count, &truncated));
    assert_true(truncated);
    assert_in_range(count, 100, 1999);
    assert_ok(sandbox_list_dir(h, "/workspace/few", &few, &count, &truncated));
    assert_false(truncated);
    assert_int_equal(count, 3);
    assert_string_equal(few[0].name, "d");
    assert_int_equal(few[0].type, SANDBOX_FILE_DIRECTORY);
    assert_string_equal(few[1].name, "f");
    assert_int_equal(few[1].type, SANDBOX_FILE_REGULAR);
    assert_int_equal(few[1].size, 4);
    assert_true(few[1].mtime > 1600000000);
    assert_int_equal(few[2].type, SANDBOX_FILE_SYMLINK);
    assert_ok(sandbox_list_dir(h, "/workspace/few/d", &none, &count, &truncated));
    assert_int_equal(count, 0);
    assert_false(truncated);
}

static void making_folders(void **state)
{
    sandbox_handle_t *h = *state;
    sandbox_fstat_t st = {0};
    assert_ok(sandbox_mkdir(h, "/workspace/dir", 0, false));
    assert_ok(sandbox_stat(h, "/workspace/dir", &st));
    assert_int_equal(st.type, SANDBOX_FILE_DIRECTORY);
    assert_int_equal(st.mode, 0755);
    assert_fails(sandbox_mkdir(h, "/workspace/dir", 0, false), SANDBOX_ERR_EXISTS);
    assert_ok(sandbox_mkdir(h, "/workspace/dir", 0, true));
    assert_fails(sandbox_mkdir(h, "/workspace/p/q/r", 0, false), SANDBOX_ERR_NOT_FOUND);
    assert_ok(sandbox_mkdir(h, "/workspace/p/q/r", 0700, true));
    assert_ok(sandbox_stat(h, "/workspace/p/q/r", &st));
    assert_int_equal(st.mode, 0700);
    put(h, "/workspace/dir/file", "f");
    assert_fails(sandbox_mkdir(h, "/workspace/dir/file", 0, false), SANDBOX_ERR_EXISTS);
}

static void removing(void **state)
{
    sandbox_handle_t *h = *state;
    assert_int_equal(exit_code(h, "mkdir -p rm/a/b rm/empty; echo x > rm/a/b/f; ln -s /etc rm/a/etc; mkdir rm/a/locked; "
                                  "touch rm/a/locked/f; chmod 0 rm/a/locked"),
                     0);
    assert_fails(sandbox_remove(h, "/workspace/rm/none", false), SANDBOX_ERR_NOT_FOUND);
    assert_ok(sandbox_remove(h, "/workspace/rm/a/b/f", false));
    assert_ok(sandbox_remove(h, "/workspace/rm/empty", false));
    assert_fails(sandbox_remove(h, "/workspace/rm/a", false), SANDBOX_ERR_GUEST_IO);
    assert_ok(sandbox_remove(h, "/workspace/rm/a", true));
    assert_int_equal(exit_code(h, "test ! -e rm/a && test -e /etc/passwd"), 0);
    assert_fails(sandbox_remove(h, "/workspace", false), SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_remove(h, "/workspace", true), SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_remove(h, "/workspace/", true), SANDBOX_ERR_PATH_DENIED);
    assert_fails(sandbox_remove(h, "//workspace", true), SANDBOX_ERR_PATH_DENIED);
    assert_int_equal(exit_code(h, "test -d rm"), 0);
}

static void a_small_write_replaces_the_file_in_one_step(void **state)
{
    sandbox_handle_t *h = *state;
    cleanup_free char *a = malloc(48 * KIB), *b = malloc(48 * KIB);
    memset(a, 'A', 48 * KIB);
    memset(b, 'B', 48 * KIB);
    assert_ok(sandbox_write_file(h, "/workspace/atomic", (const uint8_t *)a, 48 * KIB, 0, 0));
    assert_int_equal(exit_code(h, "(n=0; while [ ! -e atomic-stop ]; do cat atomic > seen; s=$(tr -d A < seen | wc -c); "
                                  "[ $(wc -c < seen) = 49152 ] || echo short >> torn; "
                                  "[ $s = 0 ] || [ $s = 49152 ] || echo mixed >> torn; n=$((n+1)); echo $n > reads; done) "
                                  ">/dev/null 2>&1 &"),
                     0);
    for (int i = 0; i < 200; i++)
        assert_ok(sandbox_write_file(h, "/workspace/atomic", (const uint8_t *)(i % 2 ? a : b), 48 * KIB, 0, 0));
    assert_int_equal(exit_code(h, "until [ -s reads ]; do sleep 0.05; done; touch atomic-stop; test ! -e torn"), 0);
    assert_int_equal(exit_code(h, "ls -a | grep -v -e '^atomic' -e '^\\.*$' | grep -i -e tmp -e '^\\.'"), 1);
}

static void files_and_commands_see_the_same(void **state)
{
    sandbox_handle_t *h = *state;
    put(h, "/workspace/both", "from outside");
    cleanup_free char *text = output(h, "cat both");
    assert_string_equal(text, "from outside");
    assert_int_equal(exit_code(h, "printf 'from inside' > /workspace/both"), 0);
    holds(h, "/workspace/both", "from inside");
    cleanup_sandbox sandbox_handle_t *other = create(NULL);
    uint8_t *data = NULL;
    size_t len = 0;
    assert_fails(sandbox_read_file(other, "/workspace/both", &data, &len), SANDBOX_ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_on_both_sides_of_every_limit),
        cmocka_unit_test(write_flags),
        cmocka_unit_test(modes),
        cmocka_unit_test(names_are_bytes),
        cmocka_unit_test(paths_that_are_not_inside),
        cmocka_unit_test(symbolic_links_that_lead_out),
        cmocka_unit_test(stat_and_remove_take_the_link_itself),
        cmocka_unit_test(a_component_swapped_in_between_never_leads_out),
        cmocka_unit_test(what_is_not_a_regular_file_fails_at_once),
        cmocka_unit_test(stat_tells_all),
        cmocka_unit_test(listing_and_its_limit),
        cmocka_unit_test(making_folders),
        cmocka_unit_test(removing),
        cmocka_unit_test(a_small_write_replaces_the_file_in_one_step),
        cmocka_unit_test(files_and_commands_see_the_same),
    };
    return cmocka_run_group_tests_name("files", tests, open_with_sandbox, close_with_sandbox);
}

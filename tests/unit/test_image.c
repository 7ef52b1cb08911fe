// The program sandbox-image from outside: builds of small trees, stores, failures.  Needs root, for its user namespaces.
//
// $SANDBOX_IMAGE is the program.  Every test has a folder of its own, with a tree in root/ and a store in store/.
#include "base/cleanup.h"
#include "base/clock.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { OUTPUT_MAX = 64 * 1024, DEADLINE_S = 60 };

static char dir[64];
static char output[OUTPUT_MAX];  // of the last command: both streams

// Runs a shell command in `dir`, with $IMAGE the program; its exit status.
__attribute__((format(printf, 1, 2))) static int run(const char *format, ...)
{
    char command[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    char whole[8192];
    snprintf(whole, sizeof whole, "cd %s && exec 2>&1 && %s", dir, command);
    FILE *f = popen(whole, "re");
    assert_non_null(f);
    size_t n = fread(output, 1, sizeof output - 1, f);
    output[n] = '\0';
    int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void must(const char *command)
{
    if (run("%s", command) != 0)
        fail_msg("%s: %s", command, output);
}

static void expect(int status, const char *words, const char *command)
{
    int got = run("%s", command);
    if (got != status || strstr(output, words) == NULL)
        fail_msg("%s: status %d, wanted %d and \"%s\": %s", command, got, status, words, output);
}

static int setup(void **state)
{
    strcpy(dir, "/tmp/image-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chmod(dir, 0755), 0);
    must("mkdir -p root/bin root/etc root/usr/share/a root/usr/share/b && cp /bin/busybox root/bin/ && ln -s busybox "
         "root/bin/sh &&"
         "ln root/bin/busybox root/usr/share/bb && echo x > root/etc/passwd && chmod 4755 root/bin/busybox && chmod 0640 "
         "root/etc/passwd &&"
         "chown 0:42 root/etc/passwd && mkfifo root/usr/fifo && touch -d @1000000000 root/etc/passwd &&"
         "for i in 9 3 7 1; do echo $i > root/usr/share/b/$i; done && ln -s nowhere root/usr/share/a/l && ln "
         "root/usr/share/a/l root/usr/share/a/m &&"
         "printf x > \"root/$(printf 'latin\\351')\" && touch 'root/new\nline' && truncate -s 300000 root/usr/sparse");
    return 0;
}

static int teardown(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

#define BUILD "$SANDBOX_IMAGE build --store store --headroom-mib 8 "

static void same_tree_same_bytes(void **state)
{
    must(BUILD "one --from-dir root --json");
    // The same tree made in another order, by other means, at another time.
    must("mkdir copy && tar -C root -cf plain.tar . && tar -xpf plain.tar -C copy");
    must(BUILD "two --from-dir copy");
    must(BUILD "three --from-tar plain.tar");
    must("gzip -k plain.tar && zstd -q plain.tar && " BUILD "four --from-tar plain.tar.gz && " BUILD
         "five --from-tar - < plain.tar.zst");
    for (int i = 0; i < 4; i++) {
        static const char *const others[] = {"two", "three", "four", "five"};
        if (run("cmp store/one/rootfs.ext4 store/%s/rootfs.ext4 && cmp store/one/manifest.bin store/%s/manifest.bin", others[i],
                others[i]) != 0)
            fail_msg("%s: %s", others[i], output);
    }
}

static void order_of_an_archive_leaves_no_trace(void **state)
{
    // Children before their folders, names in descending order; folders' own times are given by their entries.
    must("cd root && rm new* && tar -cf ../up.tar --no-recursion --sort=none $(find . | LC_ALL=C sort) && "
         "tar -cf ../down.tar --no-recursion --sort=none $(find . | LC_ALL=C sort -r)");
    must("! cmp -s up.tar down.tar");
    must(BUILD "up --from-tar up.tar");
    must(BUILD "down --from-tar down.tar");
    must("cmp store/up/rootfs.ext4 store/down/rootfs.ext4 && cmp store/up/manifest.bin store/down/manifest.bin");
    must("echo y >> root/etc/passwd && " BUILD "other --from-dir root");
    expect(1, "differ", "cmp store/up/manifest.bin store/other/manifest.bin");
}

static void the_image_is_sound_and_says_what_the_tree_said(void **state)
{
    must(BUILD "one --from-dir root");
    must("e2fsck -fn store/one/rootfs.ext4");
    must("mkdir -p mnt && mount -o ro,loop store/one/rootfs.ext4 mnt");
    int r =
        run("stat -c '%%a %%u:%%g %%X %%Y %%Z %%W' mnt/etc/passwd; stat -c '%%a %%h' mnt/bin/busybox; cmp mnt/bin/busybox "
            "/bin/busybox; "
            "chroot mnt /bin/sh -c 'echo shell-runs'; ls -d mnt/proc mnt/sys mnt/dev mnt/workspace mnt/tmp mnt/latin*; "
            "stat -c %%F mnt/usr/fifo; stat -c '%%s %%b' mnt/usr/sparse; df --output=avail -BM mnt; df --output=iavail mnt");
    char said[OUTPUT_MAX];
    strcpy(said, output);
    must("umount mnt");
    assert_int_equal(r, 0);
    static const char *const words[] = {"640 0:42 1000000000 1000000000 1000000000 1000000000\n",
                                        "4755 2\n",
                                        "shell-runs\n",
                                        "mnt/workspace\n",
                                        "mnt/latin",
                                        "fifo\n",
                                        "300000 0\n"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strstr(said, words[i]) == NULL)
            fail_msg("no \"%s\" in: %s", words[i], said);
    unsigned mib = 0, inodes = 0;
    assert_non_null(strstr(said, "Avail\n"));
    assert_int_equal(sscanf(strstr(said, "Avail\n") + 6, "%uM", &mib), 1);
    assert_int_equal(sscanf(strstr(said, "IFree\n") + 6, "%u", &inodes), 1);
    assert_true(mib >= 8 && mib < 16);
    assert_true(inodes >= 8 * 64);
    // Sparse: on disk it takes little more than what is in it.
    must("test $(stat -c %b store/one/rootfs.ext4) -lt $((2 * $(stat -c %b root/bin/busybox)))");
    must("test \"$(stat -c '%a %u %g' store store/one store/one/rootfs.ext4 | tr '\\n' ,)\" = '755 0 0,755 0 0,644 0 0,'");
}

static void the_result_is_one_json_line(void **state)
{
    must(BUILD "--json one --from-dir root --alias agent");
    json_t *line = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(line);
    assert_string_equal(json_string_value(json_object_get(line, "event")), "built");
    assert_string_equal(json_string_value(json_object_get(line, "template")), "one");
    assert_int_equal(strlen(json_string_value(json_object_get(line, "digest"))), 64);
    assert_true(json_integer_value(json_object_get(line, "bytes")) > 8 << 20);
    assert_true(json_integer_value(json_object_get(line, "files")) > 15);
    assert_true(json_is_real(json_object_get(line, "seconds")));
    json_decref(line);
    must("$SANDBOX_IMAGE show agent --json --store store");
    line = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(line);
    assert_string_equal(json_string_value(json_object_get(line, "template")), "one");
    assert_string_equal(json_string_value(json_array_get(json_object_get(line, "aliases"), 0)), "agent");
    assert_non_null(json_object_get(json_object_get(line, "info"), "created"));
    json_decref(line);
    expect(0, "alias of one", "SANDBOX_TEMPLATES=$PWD/store $SANDBOX_IMAGE list");
}

static void verify_names_what_changed(void **state)
{
    must(BUILD "one --from-dir root --alias agent");
    must("$SANDBOX_IMAGE verify agent --store store && $SANDBOX_IMAGE verify --store store one");
    must("cp --sparse=never store/one/rootfs.ext4 full && cp full store/one/rootfs.ext4 && test $(stat -c %b full) -gt 16384");
    must("$SANDBOX_IMAGE verify one --store store");
    must("printf '\\001' | dd of=store/one/rootfs.ext4 bs=1 seek=5000000 conv=notrunc status=none");
    expect(1, "rootfs.ext4 has changed", "$SANDBOX_IMAGE verify one --store store");
    must("cp full store/one/rootfs.ext4 && $SANDBOX_IMAGE verify one --store store");
    must("printf '\\001' | dd of=store/one/manifest.bin bs=1 seek=40 conv=notrunc status=none");
    expect(1, "manifest.bin", "$SANDBOX_IMAGE verify one --store store");
    expect(1, "none", "$SANDBOX_IMAGE verify none --store store");
}

static void names_aliases_and_removal(void **state)
{
    must(BUILD "one --from-dir root --alias agent --alias other");
    expect(1, "--replace", BUILD "one --from-dir root");
    expect(1, "is an alias", BUILD "agent --from-dir root --replace");
    must("echo changed > root/etc/passwd && cp store/one/manifest.bin old && " BUILD
         "one --from-dir root --replace && ! cmp -s old store/one/manifest.bin");
    must(BUILD "two --from-dir root --alias other && test $(readlink store/other) = two");
    expect(1, "cannot become an alias", BUILD "three --from-dir root --alias one");
    expect(1, "not a template's name", BUILD "Three --from-dir root");
    expect(1, "not a template's name", BUILD "../three --from-dir root");
    expect(1, "\"agent\" points at", "$SANDBOX_IMAGE rm one --store store");
    must("$SANDBOX_IMAGE rm other --store store && $SANDBOX_IMAGE rm two --store store && test ! -e store/two");
    must("$SANDBOX_IMAGE --force rm one --store store");
    expect(1, "no template or alias", "$SANDBOX_IMAGE rm one --store store");
    must("test \"$(ls -A store)\" = .lock");
}

static void command_lines_that_are_wrong(void **state)
{
    expect(2, "command is needed", "$SANDBOX_IMAGE");
    expect(2, "no command", "$SANDBOX_IMAGE make x");
    expect(2, "needs the template's name", "$SANDBOX_IMAGE verify");
    expect(2, "exactly one of", "$SANDBOX_IMAGE build x");
    expect(2, "exactly one of", "$SANDBOX_IMAGE build x --from-dir a --from-tar b");
    expect(2, "go with --mmdebstrap", "$SANDBOX_IMAGE build x --from-dir a --include b");
    expect(2, "cannot be in it", "$SANDBOX_IMAGE build x --mmdebstrap 'a;b'");
    expect(2, "not a name", "$SANDBOX_IMAGE build x --mmdebstrap=-ahook");
    expect(2, "one name at a time", "$SANDBOX_IMAGE show a b");
    expect(2, "--headroom-mib", "$SANDBOX_IMAGE build x --from-dir a --headroom-mib -1");
    expect(2, "--headroom-mib", "$SANDBOX_IMAGE build x --from-dir a --headroom-mib 1048577");
    expect(2, "--staging-mib", "$SANDBOX_IMAGE build x --from-dir a --staging-mib 0");
    expect(2, "more than 16 aliases", "$SANDBOX_IMAGE build x --from-dir a $(for i in $(seq 17); do echo --alias a$i; done)");
    expect(1, "a:", BUILD "x --from-dir a $(for i in $(seq 16); do echo --alias a$i; done)");
    expect(2, "option of build", "$SANDBOX_IMAGE rm x --alias y");
    expect(2, "unrecognized", "$SANDBOX_IMAGE rm x --nosuch");
    expect(0, "Examples:", "$SANDBOX_IMAGE build --help");
    expect(0, "sandbox-image 0", "$SANDBOX_IMAGE --version");
    expect(1, "cannot be opened", "$SANDBOX_IMAGE list --store none");
}

static void nothing_is_left(void)
{
    must("test \"$(ls -A store)\" = .lock");
}

static void failures_leave_nothing(void **state)
{
    expect(1, "none", BUILD "one --from-dir none");
    expect(1, "none.tar", BUILD "one --from-tar none.tar");
    expect(1, "cannot be read", BUILD "one --from-tar /bin/busybox");
    expect(1, "cannot be read", "tar -cf all.tar root && head -c 500000 all.tar > cut.tar && " BUILD "one --from-tar cut.tar");
    expect(1, "absolute", "tar -Pcf abs.tar /bin/busybox && " BUILD "one --from-tar abs.tar");
    expect(1, "--staging-mib", BUILD "one --from-dir root --staging-mib 1");
    expect(1, "/etc of the input is a symlink", "mv root/etc root/e && ln -s e root/etc && " BUILD "one --from-dir root");
    nothing_is_left();
    must("rm root/etc root/bin/sh");
    expect(0, "no /bin/sh", BUILD "one --from-dir root");
}

static void a_full_disk_leaves_nothing(void **state)
{
    must("mkdir store && mount -t tmpfs -o size=1m tmpfs store");
    int r = run(BUILD "one --from-dir root");
    char said[OUTPUT_MAX];
    strcpy(said, output);
    int listed = run("test \"$(ls -A store)\" = .lock");
    must("umount store");
    assert_int_equal(r, 1);
    assert_non_null(strstr(said, "No space left"));
    assert_int_equal(listed, 0);
}

static bool wait_for(const char *condition)
{
    uint64_t deadline = mono_ns() + DEADLINE_S * NS_PER_S;
    while (run("%s", condition) != 0) {
        if (mono_ns() > deadline)
            return false;
        usleep(10 * 1000);
    }
    return true;
}

// Starts a build whose archive never ends: it reads a FIFO that we hold open.
static pid_t start_endless(int *ret_fifo)
{
    must("mkfifo endless.tar; tar -cf head.tar root/bin");
    char path[128];
    snprintf(path, sizeof path, "%s/endless.tar", dir);
    pid_t pid = fork();
    if (pid == 0) {
        if (chdir(dir) == 0)
            execl(getenv("SANDBOX_IMAGE"), "sandbox-image", "build", "one", "--store", "store", "--from-tar", "endless.tar",
                  NULL);
        _exit(99);
    }
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "", 1), 1);
    assert_true(wait_for("ls -A store | grep -q '^.new-'"));
    // What reads the archive is nobody the host knows, cannot gain privilege, and has but the input, the image and the report.
    char confined[512];
    snprintf(confined, sizeof confined,
             "c=$(cat /proc/%d/task/%d/children) && c=${c%% } && grep -qP '^Uid:\\t2130706432\\t' /proc/$c/status && "
             "grep -qP '^NoNewPrivs:\\t1' /proc/$c/status && test -z \"$(ls -l /proc/$c/fd | grep -e store$ -e .lock)\" && "
             "test $(ls /proc/$c/fd | wc -l) -le 8",
             (int)pid, (int)pid);
    assert_true(wait_for(confined));
    *ret_fifo = fd;
    return pid;
}

static void a_killed_build_is_swept_by_the_next(void **state)
{
    cleanup_fd int fifo = -1;
    pid_t pid = start_endless(&fifo);
    assert_int_equal(kill(pid, SIGKILL), 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    must("ls -A store | grep -q '^.new-'");
    expect(0, "", "$SANDBOX_IMAGE list --store store");
    assert_string_equal(output, "");
    // Its confined child dies with it: nobody is left to read the FIFO.
    signal(SIGPIPE, SIG_IGN);
    uint64_t deadline = mono_ns() + DEADLINE_S * NS_PER_S;
    ssize_t n;
    while ((n = write(fifo, "", 1)) == 1 && mono_ns() < deadline)
        usleep(10 * 1000);
    assert_true(n < 0 && errno == EPIPE);
    must(BUILD "two --from-dir root");
    must("test \"$(ls -A store | tr '\\n' ,)\" = .lock,two,");
}

static void an_interrupted_build_tidies_up(void **state)
{
    cleanup_fd int fifo = -1;
    pid_t pid = start_endless(&fifo);
    assert_int_equal(kill(pid, SIGTERM), 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    nothing_is_left();
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    if (geteuid() != 0) {
        puts("1..0 # SKIP building templates needs root");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        CASE(same_tree_same_bytes),
        CASE(order_of_an_archive_leaves_no_trace),
        CASE(the_image_is_sound_and_says_what_the_tree_said),
        CASE(the_result_is_one_json_line),
        CASE(verify_names_what_changed),
        CASE(names_aliases_and_removal),
        CASE(command_lines_that_are_wrong),
        CASE(failures_leave_nothing),
        CASE(a_full_disk_leaves_nothing),
        CASE(a_killed_build_is_swept_by_the_next),
        CASE(an_interrupted_build_tidies_up),
    };
    return cmocka_run_group_tests_name("image", tests, NULL, NULL);
}

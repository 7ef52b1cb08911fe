// Escape: public ways out of containers, tried in harmless form (tests/system/guest/hostile.c), and the numbers that the kernel
// keeps for a whole host, which one sandbox must not be able to use up.
#include "innocent.h"
#include "system.h"

#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

static int start(void **state)
{
    int r = open_with_sandbox(state);
    if (r == 0) {
        put_hostile(*state);
        innocent_start("true");
    }
    return r;
}

static int stop(void **state)
{
    innocent_stop();
    return close_with_sandbox(state);
}

static void no_known_way_leads_out(void **state)
{
    static const char *const commands[] = {HOSTILE " escapes", "chmod 777 /workspace; " PROBE " as 1000 " HOSTILE " escapes"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        cleanup_result sandbox_exec_result_t r = {0};
        run(*state, commands[i], &r);
        if (r.exit_code != 0 || r.out_len > 0)
            fail_msg("ways out as %s (exit code %d, signal %d):\n%s%s", i == 0 ? "root" : "an ordinary user", r.exit_code,
                     r.term_signal, (const char *)r.out, (const char *)r.err);
        assert_answers(*state);
        innocent_look(commands[i]);
    }
}

// Everything in /proc that is not about a process, and all of /sys, is opened for writing without writing.
static void nothing_of_the_kernels_is_writable(void **state)
{
    cleanup_free char *text = output(*state, "find /proc /sys -path '/proc/[0-9]*' -prune -o -path '/proc/self*' -prune -o "
                                             "-path '/proc/thread-self*' -prune -o -type f -print 2>/dev/null | "
                                             "while read -r f; do { : >> \"$f\"; } 2>/dev/null && echo \"$f\"; done; true");
    if (text[0] != '\0')
        fail_msg("can be opened for writing:\n%s", text);
}

static void nothing_names_the_host_or_other_tenants(void **state)
{
    const char *needles[] = {setting()->stack_dir, setting()->instance, "rootfs.ext4", "backing_file"};
    for (size_t i = 0; i < sizeof needles / sizeof needles[0]; i++) {
        // The needle is on standard input: on a command line it would find itself.
        static const char script[] =
            "cat > /tmp/needle; { find /proc -maxdepth 3 -path '/proc/[0-9]*' -prune -o -type f -print; "
            "find /sys -type f; ls -d /proc/self/mount* /proc/self/cgroup /proc/self/maps "
            "/proc/self/environ /proc/1/cmdline /proc/1/mountinfo; } 2>/dev/null | "
            "xargs timeout 20 grep -l -a -s -F -f /tmp/needle; find /sys -name backing_file";
        sandbox_exec_spec_t spec = {0};
        spec.command = script;
        spec.stdin_data = needles[i];
        spec.stdin_len = strlen(needles[i]);
        cleanup_result sandbox_exec_result_t r = {0};
        run_spec(*state, &spec, &r);
        if (r.out_len > 0)
            fail_msg("'%s' can be read in:\n%s", needles[i], (const char *)r.out);
    }
    // Disks of the host, which are those of the other sandboxes too, by how much they are used.
    static const char *const empty[] = {"/proc/diskstats", "/proc/partitions", "/proc/swaps", "/proc/cmdline"};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
        assert_int_equal(number(*state, "cat %s 2>/dev/null | wc -c", empty[i]), 0);
    static const char *const absent[] = {"/sys/block",    "/sys/class/block",           "/sys/dev",         "/sys/fs/ext4",
                                         "/proc/fs/ext4", "/sys/devices/virtual/block", "/sys/kernel/slab", "/sys/module/kvm"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        assert_int_not_equal(exit_code(*state, "test -e %s", absent[i]), 0);
}

static void what_runtimes_ask_of_sys_is_there(void **state)
{
    assert_int_equal(exit_code(*state, "test -s /sys/devices/system/cpu/online && test -d /sys/fs/cgroup && "
                                       "test \"$(ls /sys/class/net)\" = lo && test -s /sys/class/net/lo/address && "
                                       "test \"$(ls /sys/devices/virtual/net)\" = lo"),
                     0);
}

static void commands_are_given_nothing_but_their_own_variables(void **state)
{
    cleanup_free char *names = output(*state, "tr '\\0' '\\n' < /proc/self/environ | cut -d= -f1 | sort | tr '\\n' ' '");
    static const char *const known[] = {"HOME", "PATH", "LANG", "USER", "SHELL", "TERM", "PWD", "LOGNAME", "TMPDIR", "LC_ALL"};
    char *rest = NULL;
    for (char *name = strtok_r(names, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest)) {
        bool fine = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            fine = fine || strcmp(known[i], name) == 0;
        if (!fine)
            fail_msg("the variable %s is set", name);
    }
}

// ---- numbers of the whole host -------------------------------------------------------------------------------------------

// Starts the attack, which goes on after this; how much it says it got.
static long started(sandbox_handle_t *h, const char *attack)
{
    return number(h,
                  "rm -f said; (" HOSTILE " %s > said 2>&1 < /dev/null &); i=0; until grep -q holding said; do "
                  "i=$((i+1)); [ $i -lt 2000 ] || exit 1; sleep 0.02; done; cut -d' ' -f2 said",
                  attack);
}

static long first_number(const char *path, const char *before)
{
    char text[8192] = "";
    cleanup_file FILE *f = fopen(path, "re");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    const char *at = strstr(text, before);
    if (at == NULL)
        fail_msg("no '%s' in %s", before, path);
    return strtol(at + strlen(before), NULL, 10);
}

static sandbox_handle_t *create_with_hostile(void)
{
    sandbox_handle_t *h = create(NULL);
    put_hostile(h);
    return h;
}

static void inotify_instances_are_each_sandboxes_own(void **state)
{
    cleanup_sandbox sandbox_handle_t *a = create_with_hostile(), *b = create_with_hostile();
    long of_a = started(a, "inotify"), of_b = started(b, "inotify");
    assert_true(of_a >= 16);
    assert_in_range(of_b, of_a - 8, of_a + 8);
    int ours = inotify_init1(IN_CLOEXEC);
    assert_true(ours >= 0);
    close(ours);
    innocent_look("inotify");
}

static void terminals_are_limited_for_each(void **state)
{
    cleanup_sandbox sandbox_handle_t *a = create_with_hostile(), *b = create_with_hostile();
    assert_in_range(started(a, "terminals"), 8, 128);
    assert_in_range(started(b, "terminals"), 8, 128);
    innocent_look("terminals");
}

static void queued_signals_are_not_roots(void **state)
{
    if (!setting()->on_host) {
        print_message("# only where the kernel is shared\n");
        skip();
    }
    cleanup_sandbox sandbox_handle_t *h = create_with_hostile();
    long before = first_number("/proc/self/status", "SigQ:");
    assert_true(started(h, "signals") > 2000);
    assert_true(first_number("/proc/self/status", "SigQ:") < before + 1000);
    innocent_look("signals");
}

static void message_queues_are_not_roots(void **state)
{
    cleanup_sandbox sandbox_handle_t *a = create_with_hostile();
    started(a, "queues");
    char name[64];
    snprintf(name, sizeof name, "/sandbox-test-%d", (int)getpid());
    mqd_t ours = mq_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600, NULL);
    assert_true(ours != (mqd_t)-1);
    mq_close(ours);
    mq_unlink(name);
    innocent_look("queues");
}

static void socket_memory_is_the_sandboxs(void **state)
{
    if (!setting()->on_host) {
        print_message("# only where the kernel is shared\n");
        skip();
    }
    cleanup_sandbox sandbox_handle_t *h = create_with_hostile();
    assert_true(started(h, "tcp") > 100);
    // Pages of all TCP sockets of the host.  Every socket may have a few beyond any limit; unlimited it would be gigabytes.
    const char *stat = "/proc/net/sockstat";
    char line[512] = "";
    cleanup_file FILE *f = fopen(stat, "re");
    assert_non_null(f);
    long pages = -1;
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "TCP:", 4) == 0)
            pages = strtol(strstr(line, "mem ") + 4, NULL, 10);
    assert_in_range(pages, 0, (192L << 20) / 4096);
    innocent_look("tcp");
}

// A watch is on an inode: where it is shared, one sandbox sees when others, and the host, use theirs.  Kernels of their own
// share none, and their nodes may have the same numbers.
static void device_nodes_are_each_sandboxes_own(void **state)
{
    static const struct {
        const char *name, *number;
    } nodes[] = {{"null", "1:3"}, {"zero", "1:5"}, {"full", "1:7"}, {"random", "1:8"}, {"urandom", "1:9"}, {"tty", "5:0"}};
    cleanup_sandbox sandbox_handle_t *a = create(NULL), *b = create(NULL);
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++) {
        char want[64], path[64];
        snprintf(want, sizeof want, "character special file %s 666 0 0", nodes[i].number);
        cleanup_free char *kind = output(a, "stat -c '%%F %%t:%%T %%a %%u %%g' /dev/%s", nodes[i].name);
        assert_string_equal(kind, want);
        if (!setting()->on_host)
            continue;
        cleanup_free char *in_a = output(a, "stat -c '%%d %%i' /dev/%s", nodes[i].name);
        cleanup_free char *in_b = output(b, "stat -c '%%d %%i' /dev/%s", nodes[i].name);
        assert_string_not_equal(in_a, in_b);
        struct stat st;
        snprintf(path, sizeof path, "/dev/%s", nodes[i].name);
        if (stat(path, &st) < 0)
            continue;
        char on_host[64];
        snprintf(on_host, sizeof on_host, "%llu %llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
        assert_string_not_equal(in_a, on_host);
    }
    // Root may do there what root does, but for making nodes.
    assert_int_equal(exit_code(a, "ln -s null /dev/other && echo x > /dev/other && rm /dev/other"), 0);
    assert_int_not_equal(exit_code(a, "mknod /dev/kmsg c 1 11"), 0);
}

// No memory limit counts what they hold.
static void netlink_sockets_are_limited_for_each(void **state)
{
    enum { SOCKETS = 64, ROOM = 512 * 1024 };
    cleanup_sandbox sandbox_handle_t *a = create_with_hostile(), *b = create_with_hostile();
    assert_int_equal(started(a, "netlinks"), SOCKETS);
    assert_int_equal(started(b, "netlinks"), SOCKETS);
    long held = number(a, "awk 'NR > 1 { sum += $5 } END { print sum }' /proc/net/netlink");
    assert_in_range(held, 1, SOCKETS * ROOM);
    // Who needs one now is told so, and gets it when there are fewer again.
    put_probe(a);
    assert_int_equal(exit_code(a, PROBE " interfaces"), 1);
    assert_int_equal(exit_code(a, "for p in /proc/[0-9]*; do ! grep -q hostile $p/comm || kill -9 ${p#/proc/}; done; i=0; "
                                  "until " PROBE " interfaces | grep -qx lo; do i=$((i+1)); [ $i -lt 500 ] || exit 1; "
                                  "sleep 0.02; done"),
                     0);
    innocent_look("netlink");
}

// It is made by the agent, and is what the command asked for all the same.
static void a_netlink_socket_is_as_it_was_asked_for(void **state)
{
    static const char script[] = "import ctypes, errno, fcntl, os, resource\n"
                                 "libc = ctypes.CDLL(None, use_errno=True)\n"
                                 "def ask(type, protocol=0):\n"
                                 "    s = libc.socket(16, type, protocol)\n"
                                 "    if s < 0: return errno.errorcode[ctypes.get_errno()]\n"
                                 "    said = fcntl.fcntl(s, 1), bool(fcntl.fcntl(s, 3) & os.O_NONBLOCK)\n"
                                 "    os.close(s)\n"
                                 "    return said\n"
                                 "RAW, DGRAM, STREAM, CLOEXEC, NONBLOCK = 3, 2, 1, os.O_CLOEXEC, os.O_NONBLOCK\n"
                                 "print(ask(RAW), ask(DGRAM), ask(RAW | CLOEXEC), ask(DGRAM | CLOEXEC | NONBLOCK),\n"
                                 "      ask(RAW | NONBLOCK), ask(STREAM))\n"
                                 "full = len(os.listdir('/proc/self/fd')) - 1\n"
                                 "resource.setrlimit(resource.RLIMIT_NOFILE, (full, 64))\n"
                                 "print(ask(RAW))\n"
                                 "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
                                 "print(ask(RAW))\n";
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    const char *argv[] = {"python3", "-c", script, NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    for (int i = 0; i < 15; i++) {  // more sockets than there may be at once: each has been given back
        cleanup_result sandbox_exec_result_t r = {0};
        run_spec(h, &spec, &r);
        assert_int_equal(r.exit_code, 0);
        assert_string_equal((const char *)r.out, "(0, False) (0, False) (1, False) (1, True) (0, True) ESOCKTNOSUPPORT\n"
                                                 "EMFILE\n(0, False)\n");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_known_way_leads_out),
        cmocka_unit_test(nothing_of_the_kernels_is_writable),
        cmocka_unit_test(nothing_names_the_host_or_other_tenants),
        cmocka_unit_test(what_runtimes_ask_of_sys_is_there),
        cmocka_unit_test(commands_are_given_nothing_but_their_own_variables),
        cmocka_unit_test(inotify_instances_are_each_sandboxes_own),
        cmocka_unit_test(terminals_are_limited_for_each),
        cmocka_unit_test(queued_signals_are_not_roots),
        cmocka_unit_test(message_queues_are_not_roots),
        cmocka_unit_test(socket_memory_is_the_sandboxs),
        cmocka_unit_test(device_nodes_are_each_sandboxes_own),
        cmocka_unit_test(netlink_sockets_are_limited_for_each),
        cmocka_unit_test(a_netlink_socket_is_as_it_was_asked_for),
    };
    return cmocka_run_group_tests_name("escape", tests, start, stop);
}

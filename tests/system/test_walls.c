// Walls: what a sandbox can see and reach when everything in it is hostile and runs as its root.
#include "system.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

// ---- network -----------------------------------------------------------------------------------------------------------

static void no_interface_but_loopback_and_no_route(void **state)
{
    cleanup_free char *names = output(*state, PROBE " interfaces");
    assert_string_equal(names, "lo");
    assert_int_equal(number(*state, "tail -n +2 /proc/net/route | wc -l"), 0);
    cleanup_free char *v6 = output(*state, "[ ! -e /proc/net/ipv6_route ] || grep -v ' lo$' /proc/net/ipv6_route | wc -l");
    assert_true(strcmp(v6, "") == 0 || strcmp(v6, "0") == 0);
}

static void no_address_can_be_reached(void **state)
{
    // Addresses kept for documentation, and the usual ones that lead to a host: none has a route.
    static const char *const addresses[] = {"192.0.2.1", "198.51.100.7", "169.254.169.254", "10.0.2.2", "2001:db8::1"};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        uint64_t start = now_ms();
        assert_int_equal(exit_code(*state, PROBE " connect %s 80", addresses[i]), 1);
        assert_true(now_ms() - start < patient(3000));
    }
    cleanup_free char *raw = output(*state, PROBE " raw-sockets");
    assert_null(strstr(raw, "open"));
}

static void the_hosts_own_listeners_are_out_of_reach(void **state)
{
    cleanup_fd int tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof in;
    assert_int_equal(bind(tcp, (struct sockaddr *)&in, size), 0);
    assert_int_equal(listen(tcp, 8), 0);
    assert_int_equal(getsockname(tcp, (struct sockaddr *)&in, &size), 0);
    assert_int_equal(exit_code(*state, PROBE " connect 127.0.0.1 %d", ntohs(in.sin_port)), 1);

    cleanup_fd int local = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int n = snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "sandbox-test-%d", (int)getpid());
    assert_int_equal(bind(local, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)),
                     0);
    assert_int_equal(listen(local, 8), 0);
    assert_int_equal(exit_code(*state, PROBE " connect-abstract %s", un.sun_path + 1), 1);
    cleanup_free char *listeners = output(*state, "grep -c '@sandbox' /proc/net/unix || true");
    assert_string_equal(listeners, "0");
}

// ---- system calls, capabilities -----------------------------------------------------------------------------------------

static void dangerous_calls_are_refused(void **state)
{
    cleanup_free char *text = output(*state, PROBE " denied");
    int wrong = 0, seen = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char name[64];
        int error = 0;
        assert_int_equal(sscanf(line, "%63s %d", name, &error), 2);
        seen++;
        bool refused = error == EPERM || error == ENOSYS || error == EACCES || error > 1000;
        if (strcmp(name, "clone3") == 0)
            refused = error == ENOSYS;  // libraries fall back to clone
        if (!refused) {
            print_message("# %s went through or failed for another reason: errno %d\n", name, error);
            wrong++;
        }
    }
    assert_true(seen >= 40);
    assert_int_equal(wrong, 0);
}

static void other_system_call_tables_are_closed(void **state)
{
    cleanup_free char *text = output(*state, PROBE " other-abis");
    assert_string_equal(text, "i386 closed\nx32 closed");
}

static uint64_t status_hex(sandbox_handle_t *h, const char *key)
{
    cleanup_free char *text = output(h, "grep '^%s:' /proc/self/status | tr -d ' \\t' | cut -d: -f2", key);
    return strtoull(text, NULL, 16);
}

static void no_new_privileges_and_a_filter(void **state)
{
    assert_int_equal(status_hex(*state, "NoNewPrivs"), 1);
    assert_int_equal(status_hex(*state, "Seccomp"), 2);
}

static void capabilities_are_few(void **state)
{
    enum {
        NET_ADMIN = 12,
        NET_RAW = 13,
        SYS_MODULE = 16,
        SYS_RAWIO = 17,
        SYS_PTRACE = 19,
        SYS_PACCT = 20,
        SYS_ADMIN = 21,
        SYS_BOOT = 22,
        SYS_NICE = 23,
        SYS_RESOURCE = 24,
        SYS_TIME = 25,
        MKNOD = 27,
        MAC_ADMIN = 33,
        SYSLOG = 34,
        PERFMON = 38,
        BPF = 39,
        CHECKPOINT_RESTORE = 40
    };
    static const int never[] = {NET_ADMIN, NET_RAW,  SYS_MODULE, SYS_RAWIO,    SYS_PTRACE,        SYS_PACCT,
                                SYS_ADMIN, SYS_BOOT, SYS_NICE,   SYS_RESOURCE, SYS_TIME,          MKNOD,
                                MAC_ADMIN, SYSLOG,   PERFMON,    BPF,          CHECKPOINT_RESTORE};
    static const char *const sets[] = {"CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"};
    for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
        uint64_t caps = status_hex(*state, sets[s]);
        for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
            if (caps >> never[i] & 1)
                fail_msg("%s holds capability %d", sets[s], never[i]);
    }
    assert_int_equal(status_hex(*state, "CapAmb"), 0);
}

static void set_uid_programs_gain_nothing(void **state)
{
    assert_int_equal(exit_code(*state, "cp " PROBE " /tmp/suid && chown 0:0 /tmp/suid && chmod 6755 /tmp/suid && "
                                       "chmod 755 /workspace"),
                     0);
    cleanup_free char *ids = output(*state, PROBE " as 1000 /tmp/suid ids");
    assert_string_equal(ids, "1000 1000");
}

// ---- the agent ---------------------------------------------------------------------------------------------------------

static void the_agent_cannot_be_looked_into(void **state)
{
    static const char *const reads[] = {"cat /proc/1/environ",
                                        "readlink /proc/1/fd/3",
                                        "cat /proc/1/maps",
                                        "ls /proc/1/root/",
                                        "ls /proc/1/cwd/",
                                        "cat /proc/1/auxv",
                                        "dd if=/proc/1/mem bs=1 count=1",
                                        "readlink /proc/1/exe",
                                        "ls /proc/1/map_files/"};
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        cleanup_result sandbox_exec_result_t r = {0};
        run(*state, reads[i], &r);
        if (r.exit_code == 0 && r.out_len > 0)
            fail_msg("'%s' gave '%s'", reads[i], (const char *)r.out);
    }
    assert_int_not_equal(exit_code(*state, "true >> /proc/1/mem"), 0);
    assert_int_not_equal(exit_code(*state, "cat < /proc/1/fd/3"), 0);
    assert_int_equal(exit_code(*state, PROBE " take-descriptor"), 1);
    cleanup_free char *arguments = output(*state, "tr '\\0' ' ' < /proc/1/cmdline");
    assert_null(strstr(arguments, setting()->stack_dir));
    assert_answers(*state);
}

static void commands_inherit_no_descriptors(void **state)
{
    cleanup_free char *fds = output(*state, "ls /proc/self/fd | grep -v -e '^[012]$' | wc -l");
    assert_string_equal(fds, "1");  // the folder ls is reading
}

// ---- /proc, /sys, /dev ---------------------------------------------------------------------------------------------------

// Opens for writing without writing, so that a broken wall harms nobody.
static void not_writable(sandbox_handle_t *h, const char *path)
{
    if (exit_code(h, "[ -e %s ] && [ ! -c %s ] && { true >> %s; } 2>/dev/null", path, path, path) == 0)
        fail_msg("%s can be opened for writing", path);
}

static void kernel_settings_cannot_be_changed(void **state)
{
    static const char *const paths[] = {
        "/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness",   "/proc/sys/kernel/hostname",
        "/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/file-max",     "/proc/sysrq-trigger",
        "/proc/irq/0/smp_affinity",      "/sys/kernel/uevent_helper", "/sys/power/state",
        "/sys/kernel/mm/ksm/run"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        not_writable(*state, paths[i]);
    assert_int_equal(number(*state, "find /sys -type f -writable 2>/dev/null | while read f; do "
                                    "{ true >> \"$f\"; } 2>/dev/null && echo \"$f\"; done | wc -l"),
                     0);
    assert_int_not_equal(exit_code(*state, "mkdir /sys/fs/cgroup/x 2>/dev/null"), 0);
}

static void kernel_memory_and_keys_are_masked(void **state)
{
    static const char *const paths[] = {"/proc/kcore",       "/proc/keys", "/proc/timer_list",
                                        "/proc/sched_debug", "/proc/kmsg", "/sys/firmware/*"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        cleanup_free char *bytes = output(*state, "timeout 2 head -c 16 %s 2>/dev/null | wc -c", paths[i]);
        assert_string_equal(bytes, "0");
    }
}

static void only_harmless_devices(void **state)
{
    cleanup_free char *odd = output(*state, "find /dev -type b; find /dev -type c | grep -v -x -e /dev/null -e /dev/zero "
                                            "-e /dev/full -e /dev/random -e /dev/urandom -e /dev/tty -e /dev/ptmx "
                                            "-e '/dev/pts/.*' -e /dev/console || true");
    assert_string_equal(odd, "");
    assert_int_equal(exit_code(*state, "echo x > /dev/null && head -c 4 /dev/zero >/dev/null && "
                                       "head -c 4 /dev/urandom > /dev/null && test -d /dev/shm && test -e /dev/fd/0"),
                     0);
}

// ---- other sandboxes ---------------------------------------------------------------------------------------------------

// A command that was put into the background has become itself only some time after.
static bool sleeps(void *sandbox)
{
    return guest_processes(sandbox, "sleep 711") == 1;
}

static void another_sandbox_cannot_be_seen(void **state)
{
    cleanup_sandbox sandbox_handle_t *other = create(NULL);
    put_probe(other);
    assert_int_equal(exit_code(other, "echo secret > /workspace/secret; echo secret > /tmp/secret; echo s > /dev/shm/secret; "
                                      "sleep 711 >/dev/null 2>&1 &"),
                     0);
    assert_true(eventually(sleeps, other, 10000));
    assert_int_equal(guest_processes(*state, "sleep 711"), 0);
    assert_int_equal(exit_code(*state, "test ! -e /workspace/secret && test ! -e /tmp/secret && test ! -e /dev/shm/secret"), 0);
    cleanup_free char *a = output(*state, "cat /etc/machine-id /etc/hostname"), *b = output(other, "cat /etc/machine-id "
                                                                                                   "/etc/hostname");
    assert_string_not_equal(a, b);
    cleanup_free char *own = output(*state, "cat /proc/sys/kernel/hostname /etc/hostname");
    char *second = strchr(own, '\n');
    assert_non_null(second);
    *second = '\0';
    assert_string_equal(own, second + 1);
}

static void what_one_writes_never_reaches_the_template(void **state)
{
    sandbox_handle_t *first = create(NULL);
    assert_int_equal(exit_code(first, "echo changed > /etc/issue; rm -rf /usr/bin/env; echo x > /new-file"), 0);
    assert_ok(sandbox_destroy(first));
    cleanup_sandbox sandbox_handle_t *second = create(NULL);
    assert_int_equal(exit_code(second, "test -e /usr/bin/env && test ! -e /new-file"), 0);
    cleanup_free char *issue = output(second, "cat /etc/issue 2>/dev/null || true");
    assert_null(strstr(issue, "changed"));
}

// A process of the sandbox's as the host sees it, and on the vm tier its monitor.
static pid_t host_pid(sandbox_handle_t *h, const char *command)
{
    if (!setting()->on_host)
        return newest_holder();
    assert_int_equal(exit_code(h, "%s >/dev/null 2>&1 &", command), 0);
    return one_host_process(command);
}

static void host_ids(pid_t pid, unsigned long *ret_first, unsigned long *ret_count)
{
    char path[64];
    unsigned long inside = 1;
    snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
    cleanup_file FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu %lu", &inside, ret_first, ret_count), 3);
    assert_int_equal(inside, 0);
}

static void every_sandbox_has_ids_of_its_own(void **state)
{
    cleanup_sandbox sandbox_handle_t *one = create(NULL);
    unsigned long a = 0, an = 0, b = 0, bn = 0;
    host_ids(host_pid(one, "sleep 722001"), &a, &an);
    cleanup_sandbox sandbox_handle_t *other = create(NULL);
    host_ids(host_pid(other, "sleep 722002"), &b, &bn);
    // A machine has its ids inside; its monitor needs one.
    unsigned long least = setting()->on_host ? 65536 : 1;
    assert_true(a > 65535 && b > 65535);
    assert_true(an >= least && bn >= least);
    assert_true(a + an <= b || b + bn <= a);
    cleanup_free char *ids = output(one, "id -u; id -g");
    assert_string_equal(ids, "0\n0");
}

static void on_the_host_it_is_nobody(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    pid_t pid = host_pid(h, "sleep 733003");
    char path[64], a[256] = "", b[256] = "";
    static const char *const spaces[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"};
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, spaces[i]);
        ssize_t n = readlink(path, a, sizeof a - 1);
        snprintf(path, sizeof path, "/proc/self/ns/%s", spaces[i]);
        ssize_t m = readlink(path, b, sizeof b - 1);
        assert_true(n > 0 && m > 0);
        a[n] = b[m] = '\0';
        assert_string_not_equal(a, b);
    }
}

static bool status_has(pid_t pid, const char *line)
{
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    cleanup_file FILE *f = fopen(path, "re");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    return strstr(text, line) != NULL;
}

// A guest may take its monitor over one day: there is nothing there to be had.
static void a_monitor_has_nothing_of_the_hosts(void **state)
{
    if (setting()->tier != SANDBOX_ISOLATION_VM) {
        print_message("# only where there is a monitor\n");
        skip();
    }
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    pid_t monitor = newest_holder();
    static const char *const lines[] = {"\nCapInh:\t0000000000000000\n",
                                        "\nCapPrm:\t0000000000000000\n",
                                        "\nCapEff:\t0000000000000000\n",
                                        "\nCapBnd:\t0000000000000000\n",
                                        "\nCapAmb:\t0000000000000000\n",
                                        "\nNoNewPrivs:\t1\n",
                                        "\nSeccomp:\t2\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!status_has(monitor, lines[i]))
            fail_msg("its status has not: %s", lines[i] + 1);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/root", monitor);
    DIR *root = opendir(path);
    assert_non_null(root);
    int entries = 0;
    while (readdir(root) != NULL)
        entries++;
    closedir(root);
    assert_int_equal(entries, 2);  // "." and ".."
    assert_answers(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_interface_but_loopback_and_no_route),
        cmocka_unit_test(no_address_can_be_reached),
        cmocka_unit_test(the_hosts_own_listeners_are_out_of_reach),
        cmocka_unit_test(dangerous_calls_are_refused),
        cmocka_unit_test(other_system_call_tables_are_closed),
        cmocka_unit_test(no_new_privileges_and_a_filter),
        cmocka_unit_test(capabilities_are_few),
        cmocka_unit_test(set_uid_programs_gain_nothing),
        cmocka_unit_test(the_agent_cannot_be_looked_into),
        cmocka_unit_test(commands_inherit_no_descriptors),
        cmocka_unit_test(kernel_settings_cannot_be_changed),
        cmocka_unit_test(kernel_memory_and_keys_are_masked),
        cmocka_unit_test(only_harmless_devices),
        cmocka_unit_test(another_sandbox_cannot_be_seen),
        cmocka_unit_test(what_one_writes_never_reaches_the_template),
        cmocka_unit_test(every_sandbox_has_ids_of_its_own),
        cmocka_unit_test(on_the_host_it_is_nobody),
        cmocka_unit_test(a_monitor_has_nothing_of_the_hosts),
    };
    return cmocka_run_group_tests_name("walls", tests, open_with_sandbox, close_with_sandbox);
}

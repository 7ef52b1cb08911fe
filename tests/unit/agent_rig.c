#include "agent_rig.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/fdpass.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

bool rig_possible(void)
{
    if (geteuid() == 0)
        return true;
    puts("1..0 # SKIP this needs root: namespaces, mounts and control groups");
    return false;
}

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    dprintf(2, "rig: %s: %s\n", what, strerror(errno));
    _exit(99);
}

static void make_root(const char *root)
{
    must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "private mounts");
    must(mount("root", root, "tmpfs", 0, "size=256m,nr_inodes=0") == 0 && chdir(root) == 0, "root tmpfs");
    static const char *const dirs[] = {"usr", "proc", "dev", "etc", "tmp", "root", "old", "dev/pts"};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        must(mkdir(dirs[i], 0755) == 0, dirs[i]);
    static const char *const links[] = {"bin", "sbin", "lib", "lib64"};
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        char target[32];
        snprintf(target, sizeof target, "usr/%s", links[i]);
        must(symlink(target, links[i]) == 0, links[i]);
    }
    must(mount("/usr", "usr", NULL, MS_BIND, NULL) == 0, "bind /usr");
    must(mount(NULL, "usr", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0, "read-only /usr");
    must(mount("proc", "proc", "proc", 0, NULL) == 0, "proc");
    static const struct {
        const char *name;
        unsigned minor;
    } devices[] = {{"dev/null", 3}, {"dev/zero", 5}, {"dev/urandom", 9}};
    umask(0);
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        must(mknod(devices[i].name, S_IFCHR | 0666, makedev(1, devices[i].minor)) == 0, devices[i].name);
    umask(022);
    must(mount("devpts", "dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620") == 0, "devpts");
    must(symlink("pts/ptmx", "dev/ptmx") == 0, "dev/ptmx");
    const char *extra = getenv("RIG_MAKE");
    must(extra == NULL || system(extra) == 0, "RIG_MAKE");
    must(syscall(SYS_pivot_root, ".", "old") == 0 && chdir("/") == 0, "pivot_root");
    must(umount2("/old", MNT_DETACH) == 0 && rmdir("/old") == 0, "leaving the host");
}

static _Noreturn void run_agent(const char *root, int binary, int control, const char *const *args)
{
    make_root(root);
    char number[16];
    snprintf(number, sizeof number, "%d", control);
    const char *argv[32] = {"sandbox-agent", "--control", number};
    for (size_t i = 0; args != NULL && args[i] != NULL; i++)
        argv[3 + i] = args[i];
    // Without ASan's handlers: a guest's signal to a process 1 that handles it arrives, and the agent itself handles none.
    static const char *const envp[] = {
        "ASAN_OPTIONS=handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0", NULL};
    must(fcntl(control, F_SETFD, 0) == 0, "control");
    syscall(SYS_execveat, binary, "", argv, envp, AT_EMPTY_PATH);
    must(false, "exec");
    _exit(99);
}

void rig_start(struct rig *rig, const char *const *args)
{
    const char *path = getenv("AGENT_BINARY");
    assert_non_null(path);
    cleanup_fd int binary = open(path, O_PATH | O_CLOEXEC);
    assert_true(binary >= 0);
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    strcpy(rig->root, "/tmp/agent-rig-XXXXXX");
    assert_non_null(mkdtemp(rig->root));
    fflush(NULL);
    rig->pid = (pid_t)syscall(SYS_clone, CLONE_NEWNS | CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
    assert_true(rig->pid >= 0);
    if (rig->pid == 0)
        run_agent(rig->root, binary, pair[1], args);
    close(pair[1]);
    rig->control = pair[0];
}

void rig_start_configured(struct rig *rig, const char *const *args)
{
    rig_start(rig, args);
    ProtobufCBinaryData env[] = {bytes_of("SANDBOX_A=1"), bytes_of("SHARED=sandbox")};
    Sandbox__Agent__Configure c = SANDBOX__AGENT__CONFIGURE__INIT;
    c.env = env;
    c.n_env = 2;
    c.machine_id = bytes_of("0123456789abcdef0123456789abcdef");
    c.hostname = bytes_of("box");
    Sandbox__Agent__Report *report = rig_configure(rig, &c);
    assert_int_equal(report->configured->error_number, 0);
    assert_int_equal(report->configured->protocol, AGENT_PROTOCOL_VERSION);
    pb_free(report);
}

void rig_stop(struct rig *rig)
{
    close_fd(&rig->control);
    int status = -1;
    wait_for(waitpid(rig->pid, &status, WNOHANG) == rig->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    rmdir(rig->root);
}

int rig_setup(void **state)
{
    static struct rig rig;
    rig_start_configured(&rig, NULL);
    *state = &rig;
    return 0;
}

int rig_teardown(void **state)
{
    rig_stop(*state);
    return 0;
}

static void wait_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, RIG_WAIT_MS), 1);
}

void rig_send_packet(const struct rig *rig, const void *bytes, size_t n, int fd)
{
    assert_int_equal(fdpass_send(rig->control, bytes, n, &fd, fd >= 0 ? 1 : 0), (ssize_t)n);
}

void rig_command(const struct rig *rig, const Sandbox__Agent__Command *command, int fd)
{
    uint8_t packet[AGENT_CONTROL_MAX];
    size_t n = sandbox__agent__command__get_packed_size(command);
    assert_true(n <= sizeof packet);
    sandbox__agent__command__pack(command, packet);
    rig_send_packet(rig, packet, n, fd);
}

Sandbox__Agent__Report *rig_report(const struct rig *rig)
{
    uint8_t packet[4096];
    wait_readable(rig->control);
    ssize_t n = fdpass_recv(rig->control, packet, sizeof packet, NULL, NULL);
    assert_true(n > 0);
    Sandbox__Agent__Report *report = (void *)pb_unpack(&sandbox__agent__report__descriptor, packet, (size_t)n);
    assert_non_null(report);
    return report;
}

Sandbox__Agent__Report *rig_configure(const struct rig *rig, const Sandbox__Agent__Configure *configure)
{
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_CONFIGURE;
    command.configure = (Sandbox__Agent__Configure *)configure;
    rig_command(rig, &command, -1);
    Sandbox__Agent__Report *report = rig_report(rig);
    assert_int_equal(report->report_case, SANDBOX__AGENT__REPORT__REPORT_CONFIGURED);
    return report;
}

int rig_open(const struct rig *rig)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    Sandbox__Agent__OpenStream open_stream = SANDBOX__AGENT__OPEN_STREAM__INIT;
    open_stream.id = 1;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_OPEN_STREAM;
    command.open_stream = &open_stream;
    rig_command(rig, &command, pair[1]);
    close(pair[1]);
    return pair[0];
}

void rig_request(int line, const Sandbox__Agent__Request *request)
{
    cleanup_buf struct buf b = BUF_INIT(1 << 20);
    assert_int_equal(pb_append_frame(&b, request, 1 << 20), 0);
    for (size_t done = 0; done < b.len;) {
        ssize_t n = send(line, b.data + done, b.len - done, MSG_NOSIGNAL);
        assert_true(n > 0);
        done += (size_t)n;
    }
}

guest_result *rig_answer_or_end(int line)
{
    static uint8_t bytes[AGENT_RESULT_MAX + FRAME_HEAD + 1];
    size_t len = 0;
    for (;;) {
        wait_readable(line);
        ssize_t n = recv(line, bytes + len, sizeof bytes - len, 0);
        if (n <= 0)
            break;
        len += (size_t)n;
        assert_true(len < sizeof bytes);
    }
    if (len == 0)
        return NULL;
    const uint8_t *body;
    size_t n;
    assert_int_equal(frame_find(bytes, len, AGENT_RESULT_MAX, &body, &n), 1);
    assert_int_equal(len, n + FRAME_HEAD);
    guest_result *result = (void *)pb_unpack(&sandbox__guest__result__descriptor, body, n);
    assert_non_null(result);
    return result;
}

guest_result *rig_answer(int line)
{
    guest_result *result = rig_answer_or_end(line);
    assert_non_null(result);
    return result;
}

guest_result *rig_do(const struct rig *rig, const Sandbox__Agent__Request *request)
{
    cleanup_fd int line = rig_open(rig);
    rig_request(line, request);
    return rig_answer(line);
}

ProtobufCBinaryData bytes_of(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
}

void script_init(struct script *s, const char *text)
{
    s->argv[0] = bytes_of(text);
    sandbox__guest__exec__init(&s->exec);
    s->exec.argv = s->argv;
    s->exec.n_argv = 1;
    s->exec.shell = true;
}

guest_result *rig_script(const struct rig *rig, struct script *s)
{
    Sandbox__Agent__Request request = EXEC_REQUEST(&s->exec);
    return rig_do(rig, &request);
}

char *rig_sh(const struct rig *rig, const char *text)
{
    struct script s;
    script_init(&s, text);
    guest_result *r = rig_script(rig, &s);
    assert_int_equal(r->status, STATUS(OK));
    if (r->exec->exit_code != 0 || r->exec->term_signal != 0)
        fail_msg("%s: exit %d, signal %u: %.*s", text, r->exec->exit_code, r->exec->term_signal, (int)r->exec->err.len,
                 (char *)r->exec->err.data);
    char *out = calloc(1, r->exec->out.len + 1);
    assert_non_null(out);
    if (r->exec->out.len > 0)
        memcpy(out, r->exec->out.data, r->exec->out.len);
    pb_free(r);
    return out;
}

bool same_bytes(ProtobufCBinaryData b, const char *text)
{
    if (b.len == strlen(text) && memcmp(b.data, text, b.len) == 0)
        return true;
    print_message("# got \"%.*s\", wanted \"%s\"\n", (int)b.len, (char *)b.data, text);
    return false;
}

size_t rig_fd_count(const struct rig *rig)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)rig->pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    size_t n = 0;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

size_t rig_rss_kib(const struct rig *rig)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)rig->pid);
    cleanup_file FILE *f = fopen(path, "re");
    assert_non_null(f);
    unsigned long kib = 0;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmRSS: %lu", &kib) == 1)
            break;
    assert_true(kib > 0);
    return kib;
}

#include "engine_rig.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_play.h"
#include "sys/digest.h"
#include "sys/jail.h"
#include "sys/template_store.h"
#include "unit.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { ENGINE_UID = 64123 };

void rig_tick(void)
{
    poll(NULL, 0, 2);
}

uint64_t rig_sum(const uint8_t *bytes, size_t n)
{
    uint64_t sum = 14695981039346656037u;  // FNV-1a
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    return sum;
}

void rig_path(const struct rig *rig, const char *name, char *path, size_t size)
{
    assert_true(snprintf(path, size, "%s/%s", rig->dir, name) < (int)size);
}

// ---- folders ----

static void write_file(int dir, const char *name, const char *bytes)
{
    cleanup_fd int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
}

void rig_write_template(struct rig *rig, const char *name, const char *bytes)
{
    char path[128];
    rig_path(rig, "templates/", path, sizeof path);
    strncat(path, name, sizeof path - strlen(path) - 1);
    assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
    cleanup_fd int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    unlinkat(dir, "rootfs.ext4", 0);
    unlinkat(dir, "manifest.bin", 0);
    write_file(dir, "rootfs.ext4", bytes);
    struct manifest m = {.files = 1, .file[0].name = "rootfs.ext4"};
    cleanup_fd int fd = openat(dir, "rootfs.ext4", O_RDONLY | O_CLOEXEC);
    assert_int_equal(digest_file(fd, &m.file[0].size, m.file[0].digest), 0);
    assert_int_equal(template_write_manifest(dir, &m), 0);
}

static void write_part(int dir, struct manifest *m, const char *name, const char *bytes)
{
    write_file(dir, name, bytes);
    cleanup_fd int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    snprintf(m->file[m->files].name, sizeof m->file[0].name, "%s", name);
    assert_int_equal(digest_file(fd, &m->file[m->files].size, m->file[m->files].digest), 0);
    m->files++;
}

void rig_write_kernel(struct rig *rig, const char *bytes)
{
    char path[128];
    rig_path(rig, "templates/kernels/default", path, sizeof path);
    cleanup_fd int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct manifest m = {0};
    write_part(dir, &m, KERNEL_INITRAMFS_FILE, KERNEL_INITRAMFS_FILE);  // in order
    write_part(dir, &m, KERNEL_VMLINUX_FILE, bytes);
    unlinkat(dir, "manifest.bin", 0);
    assert_int_equal(template_write_manifest(dir, &m), 0);
}

void rig_with_machines(struct rig *rig)
{
    char path[128];
    rig_path(rig, "templates/kernels", path, sizeof path);
    assert_int_equal(mkdir(path, 0755), 0);
    rig_path(rig, "templates/kernels/default", path, sizeof path);
    assert_int_equal(mkdir(path, 0755), 0);
    rig_write_kernel(rig, KERNEL_VMLINUX_FILE);
    atomic_store(&rig->play.has_kvm, true);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void make_folders(struct rig *rig)
{
    char path[128];
    strcpy(rig->dir, "/tmp/engine-test-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    rig_path(rig, "run", path, sizeof path);
    assert_int_equal(mkdir(path, 0755), 0);
    if (geteuid() == 0)
        assert_int_equal(chown(path, ENGINE_UID, ENGINE_UID), 0);
    rig_path(rig, "state", path, sizeof path);
    assert_int_equal(mkdir(path, 0700), 0);
    if (geteuid() == 0)
        assert_int_equal(chown(path, ENGINE_UID, ENGINE_UID), 0);
    rig_path(rig, "templates", path, sizeof path);
    assert_int_equal(mkdir(path, 0755), 0);
    rig_write_template(rig, "debian", "not really a filesystem");
    rig_path(rig, "templates/python-agent", path, sizeof path);
    assert_int_equal(symlink("debian", path), 0);
}

// ---- the program ----

static const char *program(void)
{
    const char *path = getenv("SANDBOX_ENGINE");
    assert_non_null(path);
    return path;
}

static void become_engine(void)
{
    if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setresgid(ENGINE_UID, ENGINE_UID, ENGINE_UID) < 0 ||
                           setresuid(ENGINE_UID, ENGINE_UID, ENGINE_UID) < 0))
        _exit(99);
}

static int open_in(const struct rig *rig, const char *name, int flags)
{
    char path[128];
    rig_path(rig, name, path, sizeof path);
    return open(path, flags | O_CLOEXEC, 0644);
}

// Nothing is asserted here: a child whose assertion fails would go on as one more run of all the tests.
static void exec_engine(const struct rig *rig, const char *path, int channel, const char *const *args)
{
    int fds[] = {channel, open_in(rig, "run", O_RDONLY | O_DIRECTORY), open_in(rig, "templates", O_RDONLY | O_DIRECTORY),
                 open_in(rig, "state", O_RDONLY | O_DIRECTORY)};
    int log = open_in(rig, "log", O_WRONLY | O_CREAT | O_APPEND);
    int exe = open(path, O_RDONLY | O_CLOEXEC);
    // A gap above the numbers wanted, so that nothing is overwritten before it has been moved.
    for (int i = 0; i < 4; i++)
        fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 50);
    dup2(fcntl(log, F_DUPFD_CLOEXEC, 50), STDERR_FILENO);
    exe = fcntl(exe, F_DUPFD_CLOEXEC, 50);
    for (int i = 0; i < 4; i++)
        dup2(fds[i], ENGINE_FD_JAILER + i);
    const char *argv[10 + RIG_ARGS_MAX] = {"sandbox-engine",   "--set", "log_level=debug", "--set",
                                           "socket_mode=0666", "--set", "pool_auto=0"};
    for (size_t i = 0; args != NULL && args[i] != NULL && i < RIG_ARGS_MAX; i++)
        argv[7 + i] = args[i];
    become_engine();
    fexecve(exe, (char **)argv, environ);
    _exit(98);
}

static void launch(struct rig *rig, const char *const *args)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    rig->channel = pair[0];
    const char *path = program();
    rig->engine = fork();
    assert_true(rig->engine >= 0);
    if (rig->engine == 0)
        exec_engine(rig, path, pair[1], args);
    close(pair[1]);
    assert_int_equal(pthread_create(&rig->jailer, NULL, play_jailer, rig), 0);
    rig->jailer_runs = true;
}

struct rig *rig_launch(const char *const *args, void (*prepare)(struct rig *rig))
{
    struct rig *rig = calloc(1, sizeof *rig);
    make_folders(rig);
    if (prepare != NULL)
        prepare(rig);
    launch(rig, args);
    return rig;
}

static bool answers(struct rig *rig)
{
    if (waitpid(rig->engine, NULL, WNOHANG) != 0) {
        char *log = rig_log(rig);
        fail_msg("the engine ended at once: %s", log);
    }
    int fd = rig_connect_to(rig, "run/engine.sock");
    if (fd < 0)
        return false;
    close(fd);
    return true;
}

void rig_await_ready(struct rig *rig)
{
    RIG_AWAIT(answers(rig));
    rig->ready = true;
}

struct rig *rig_start(const char *const *args)
{
    struct rig *rig = rig_launch(args, NULL);
    rig_await_ready(rig);
    return rig;
}

static bool ended(struct rig *rig, int *ret_status)
{
    return waitpid(rig->engine, ret_status, WNOHANG) == rig->engine;
}

int rig_wait(struct rig *rig)
{
    int status = 0;
    RIG_AWAIT(ended(rig, &status));
    rig->engine = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void end_jailer(struct rig *rig)
{
    atomic_store(&rig->stop, true);
    if (rig->jailer_runs)
        pthread_join(rig->jailer, NULL);
    rig->jailer_runs = false;
}

void rig_free(struct rig *rig)
{
    if (rig->engine > 0) {
        kill(rig->engine, SIGKILL);
        waitpid(rig->engine, NULL, 0);
    }
    end_jailer(rig);
    nftw(rig->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(rig);
}

static void end_engine(struct rig *rig)
{
    kill(rig->engine, SIGTERM);
    int status = rig_wait(rig);
    if (status != 0) {
        char *log = rig_log(rig);
        fail_msg("the engine ended with %d: %s", status, log);
    }
    assert_false(atomic_load(&rig->play.broken));
    RIG_AWAIT(atomic_load(&rig->play.live) == 0);  // the played jailer may not have come to the end of its line yet
}

void rig_stop(struct rig *rig)
{
    end_engine(rig);
    rig_free(rig);
}

static void launch_again(struct rig *rig, const char *const *args)
{
    char path[128];
    end_jailer(rig);
    atomic_store(&rig->stop, false);
    rig_path(rig, "log", path, sizeof path);
    unlink(path);
    launch(rig, args);
    rig_await_ready(rig);
}

void rig_again(struct rig *rig, const char *const *args)
{
    end_engine(rig);
    launch_again(rig, args);
}

void rig_killed(struct rig *rig, const char *const *args)
{
    kill(rig->engine, SIGKILL);
    rig_wait(rig);
    end_jailer(rig);
    atomic_store(&rig->play.live, 0);  // they ended with it
    launch_again(rig, args);
}

int rig_run_program(const char *const *args, char *out, size_t size)
{
    int pipe_fd[2];
    assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
    const char *path = program();
    pid_t pid = fork();
    if (pid == 0) {
        const char *argv[2 + RIG_ARGS_MAX] = {"sandbox-engine"};
        for (size_t i = 0; args[i] != NULL && i < RIG_ARGS_MAX; i++)
            argv[1 + i] = args[i];
        int exe = open(path, O_RDONLY | O_CLOEXEC);
        dup2(pipe_fd[1], STDOUT_FILENO);
        dup2(pipe_fd[1], STDERR_FILENO);
        if (getenv("RIG_AS_ROOT") == NULL)
            become_engine();
        fexecve(exe, (char **)argv, environ);
        _exit(98);
    }
    close(pipe_fd[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(pipe_fd[0], out + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    out[n] = '\0';
    close(pipe_fd[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

char *rig_log(const struct rig *rig)
{
    struct buf text = BUF_INIT(4 * 1024 * 1024);
    cleanup_fd int fd = open_in(rig, "log", O_RDONLY);
    uint8_t *space;
    ssize_t n;
    while (buf_reserve(&text, 4096, &space) == 0 && (n = read(fd, space, 4096)) > 0)
        buf_commit(&text, (size_t)n);
    buf_text(&text);
    return (char *)text.data;
}

// ---- a client ----

int rig_connect_to(const struct rig *rig, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    rig_path(rig, name, address.sun_path, sizeof address.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

int rig_connect(const struct rig *rig)
{
    int fd = rig_connect_to(rig, "run/engine.sock");
    assert_true(fd >= 0);
    return fd;
}

atomic_uint rig_order;

void rig_send_bytes(int fd, const void *frame, size_t n)
{
    atomic_fetch_add(&rig_order, 1);
    assert_int_equal(send(fd, frame, n, MSG_NOSIGNAL), n);
}

void rig_send_frame(int fd, const void *body, size_t n)
{
    cleanup_free uint8_t *frame = malloc(FRAME_HEAD + n);
    frame_put_head(frame, (uint32_t)n);
    memcpy(frame + FRAME_HEAD, body, n);
    rig_send_bytes(fd, frame, FRAME_HEAD + n);
}

void rig_send(int fd, const Sandbox__ClientMessage *message)
{
    cleanup_buf struct buf frame = BUF_INIT(FRAME_HEAD + IPC_FRAME_MAX);
    assert_int_equal(pb_append_frame(&frame, message, IPC_FRAME_MAX), 0);
    rig_send_bytes(fd, frame.data, frame.len);
}

static bool readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

bool rig_silent(int fd, int ms)
{
    return !readable(fd, ms);
}

static void receive_exactly(int fd, void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        if (!readable(fd, RIG_WAIT_MS))
            fail_msg("no answer came");
        ssize_t got = recv(fd, (char *)bytes + at, n - at, 0);
        if (got <= 0)
            fail_msg("the connection ended where an answer should have come");
        at += (size_t)got;
    }
}

Sandbox__ServerMessage *rig_receive(int fd)
{
    uint8_t head[FRAME_HEAD];
    receive_exactly(fd, head, sizeof head);
    size_t n = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    assert_true(n <= IPC_FRAME_MAX);
    cleanup_free uint8_t *body = malloc(n + 1);
    receive_exactly(fd, body, n);
    atomic_load(&rig_order);
    Sandbox__ServerMessage *message = (Sandbox__ServerMessage *)pb_unpack(&sandbox__server_message__descriptor, body, n);
    assert_non_null(message);
    return message;
}

bool rig_closed(int fd)
{
    char bytes[4096];
    while (readable(fd, RIG_WAIT_MS))
        if (recv(fd, bytes, sizeof bytes, 0) <= 0)
            return true;
    return false;
}

Sandbox__CreateRequest rig_spec(void)
{
    Sandbox__CreateRequest spec = SANDBOX__CREATE_REQUEST__INIT;
    spec.memory_mib = 64;
    spec.vcpu_count = 1;
    spec.template_name = (char *)"debian";
    spec.pool_wait_ms = RIG_WAIT_MS;
    return spec;
}

Sandbox__CreateRequest rig_session_spec(const char *key, uint32_t ttl_s)
{
    Sandbox__CreateRequest spec = rig_spec();
    spec.session_key = (ProtobufCBinaryData){.len = strlen(key), .data = (uint8_t *)key};
    spec.ttl_seconds = ttl_s;
    return spec;
}

void rig_send_renew(int fd, uint64_t id, const char *key, uint32_t extra_s)
{
    Sandbox__SessionRenewRequest renew = SANDBOX__SESSION_RENEW_REQUEST__INIT;
    renew.session_key = (ProtobufCBinaryData){.len = strlen(key), .data = (uint8_t *)key};
    renew.extra_seconds = extra_s;
    Sandbox__ClientMessage message = SANDBOX__CLIENT_MESSAGE__INIT;
    message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_SESSION_RENEW;
    message.session_renew = &renew;
    message.request_id = id;
    rig_send(fd, &message);
}

void rig_send_create(int fd, uint64_t id, const Sandbox__CreateRequest *spec)
{
    Sandbox__ClientMessage message = SANDBOX__CLIENT_MESSAGE__INIT;
    message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE;
    message.create = (Sandbox__CreateRequest *)spec;
    message.request_id = id;
    rig_send(fd, &message);
}

void rig_send_simple(int fd, enum rig_simple kind, uint64_t id, uint32_t sandbox)
{
    Sandbox__DestroyRequest destroy = SANDBOX__DESTROY_REQUEST__INIT;
    Sandbox__PauseRequest pause = SANDBOX__PAUSE_REQUEST__INIT;
    Sandbox__ResumeRequest resume = SANDBOX__RESUME_REQUEST__INIT;
    Sandbox__InspectRequest inspect = SANDBOX__INSPECT_REQUEST__INIT;
    Sandbox__StatusRequest status = SANDBOX__STATUS_REQUEST__INIT;
    destroy.sandbox_id = pause.sandbox_id = resume.sandbox_id = inspect.sandbox_id = sandbox;
    Sandbox__ClientMessage message = SANDBOX__CLIENT_MESSAGE__INIT;
    message.request_id = id;
    switch (kind) {
    case RIG_DESTROY:
        message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY;
        message.destroy = &destroy;
        break;
    case RIG_PAUSE:
        message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE;
        message.pause = &pause;
        break;
    case RIG_RESUME:
        message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_RESUME;
        message.resume = &resume;
        break;
    case RIG_INSPECT:
        message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_INSPECT;
        message.inspect = &inspect;
        break;
    case RIG_STATUS:
        message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_STATUS;
        message.status = &status;
        break;
    }
    rig_send(fd, &message);
}

static void send_guest(int fd, uint64_t id, Sandbox__GuestRequest *guest)
{
    Sandbox__ClientMessage message = SANDBOX__CLIENT_MESSAGE__INIT;
    message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST;
    message.guest = guest;
    message.request_id = id;
    rig_send(fd, &message);
}

void rig_send_stat(int fd, uint64_t id, uint32_t sandbox)
{
    Sandbox__Guest__Stat stat = SANDBOX__GUEST__STAT__INIT;
    stat.path = (ProtobufCBinaryData){.len = 12, .data = (uint8_t *)"/workspace/x"};
    Sandbox__GuestRequest guest = SANDBOX__GUEST_REQUEST__INIT;
    guest.sandbox_id = sandbox;
    guest.op_case = SANDBOX__GUEST_REQUEST__OP_STAT;
    guest.stat = &stat;
    send_guest(fd, id, &guest);
}

void rig_send_exec(int fd, uint64_t id, uint32_t sandbox, uint32_t timeout_ms)
{
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    ProtobufCBinaryData argv[] = {{.len = 4, .data = (uint8_t *)"true"}};
    exec.n_argv = 1;
    exec.argv = argv;
    exec.timeout_ms = timeout_ms;
    Sandbox__GuestRequest guest = SANDBOX__GUEST_REQUEST__INIT;
    guest.sandbox_id = sandbox;
    guest.op_case = SANDBOX__GUEST_REQUEST__OP_EXEC;
    guest.exec = &exec;
    send_guest(fd, id, &guest);
}

void rig_expect_error(int fd, uint64_t id, int code, const char *text)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR)
        fail_msg("expected error %d (%s), got an answer of kind %d", code, text, (int)m->response_case);
    if (m->error->error_code != code || strstr(m->error->message, text) == NULL)
        fail_msg("expected error %d with \"%s\", got %d: %s", code, text, m->error->error_code, m->error->message);
    assert_int_equal(m->request_id, id);
    pb_free(m);
}

void rig_expect(int fd, uint64_t id, Sandbox__ServerMessage__ResponseCase kind)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != kind)
        fail_msg("expected an answer of kind %d, got %d: %s", (int)kind, (int)m->response_case,
                 m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "");
    assert_int_equal(m->request_id, id);
    pb_free(m);
}

uint32_t rig_create(int fd)
{
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, 1000, &spec);
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE)
        fail_msg("the create failed: %s",
                 m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "?");
    uint32_t id = m->create->sandbox_id;
    pb_free(m);
    return id;
}

bool rig_status_has(int fd, const char *text)
{
    rig_send_simple(fd, RIG_STATUS, 2000, 0);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    bool found = strstr(m->status->json, text) != NULL;
    pb_free(m);
    return found;
}

char *rig_http(const struct rig *rig, const char *request)
{
    cleanup_fd int fd = -1;
    RIG_AWAIT((fd = rig_connect_to(rig, "run/metrics.sock")) >= 0);  // it is bound right after the client socket
    rig_send_bytes(fd, request, strlen(request));
    struct buf text = BUF_INIT(256 * 1024);
    for (;;) {
        uint8_t *space;
        assert_int_equal(buf_reserve(&text, 4096, &space), 0);
        assert_true(readable(fd, RIG_WAIT_MS));
        ssize_t n = recv(fd, space, 4096, 0);
        if (n <= 0)
            break;
        buf_commit(&text, (size_t)n);
    }
    buf_text(&text);
    return (char *)text.data;
}

#include "image/kernel_build.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/json_out.h"
#include "image/confine.h"
#include "image/cpio.h"
#include "image/kernel_image.h"
#include "image/kernel_source.h"
#include "image/store.h"
#include "sys/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { INITRAMFS_MAX = 128 * 1024 * 1024, AGENT_MAX = 16 * 1024 * 1024, INFO_MAX = 64 * 1024, RELEASE_MAX = 127 };

struct report {
    uint32_t done;
    uint32_t modules;
    char release[RELEASE_MAX + 1];  // "6.1.0-57-cloud-amd64"
    struct err err;
};

struct job {
    struct kernel_source source;
    int agent_fd, vmlinux_fd, initramfs_fd, report_fd;
};

// ---- the confined child ----

static int write_all(int fd, const struct buf *b, struct err *err)
{
    for (size_t done = 0; done < b->len;) {
        ssize_t n = write(fd, b->data + done, b->len - done);
        if (n < 0 && errno != EINTR)
            return err_set(err, -errno, "the kernel store cannot be written: %s", strerror(errno));
        if (n > 0)
            done += (size_t)n;
    }
    return 0;
}

static int read_agent(int fd, struct buf *out, struct err *err)
{
    struct stat st;
    uint8_t *space;
    if (fstat(fd, &st) < 0 || st.st_size <= 0 || st.st_size > AGENT_MAX || buf_reserve(out, (size_t)st.st_size, &space) < 0 ||
        pread(fd, space, (size_t)st.st_size, 0) != st.st_size)
        return err_set(err, -EIO, "the agent's program cannot be read");
    buf_commit(out, (size_t)st.st_size);
    return 0;
}

static int put_modules(struct cpio *c, const struct module_set *set)
{
    cleanup_buf struct buf order = BUF_INIT(MODULES_MAX * (MODULE_NAME_MAX + 8));
    int r = cpio_folder(c, "modules");
    for (uint32_t i = 0; i < set->order_count && r == 0; i++) {
        const struct module *m = &set->module[set->order[i]];
        char name[MODULE_NAME_MAX + 16];
        snprintf(name, sizeof name, "modules/%s.ko", m->name);
        buf_printf(&order, "%s.ko\n", m->name);
        r = cpio_file(c, name, 0644, m->file.data, m->file.len);
    }
    return r == 0 ? cpio_file(c, "modules/order", 0644, order.data, order.len) : r;
}

static int write_initramfs(const struct job *job, const struct module_set *set, struct err *err)
{
    cleanup_buf struct buf agent = BUF_INIT(AGENT_MAX), out = BUF_INIT(INITRAMFS_MAX);
    struct cpio c = {.out = &out};
    int r = read_agent(job->agent_fd, &agent, err);
    if (r < 0)
        return r;
    cpio_folder(&c, "dev");
    cpio_character_device(&c, "dev/console", 0600, 5, 1);
    cpio_file(&c, "init", 0755, agent.data, agent.len);
    put_modules(&c, set);
    if (cpio_end(&c) < 0)
        return err_set(err, buf_error(&out), "the initramfs is too long");
    return write_all(job->initramfs_fd, &out, err);
}

// For people; the kernel says it of itself.
static void find_release(const struct buf *vmlinux, char release[RELEASE_MAX + 1])
{
    static const char words[] = "Linux version ";
    const char *at = memmem(vmlinux->data, vmlinux->len, words, sizeof words - 1);
    if (at == NULL)
        return;
    at += sizeof words - 1;
    size_t room = vmlinux->len - (size_t)((const uint8_t *)at - vmlinux->data);
    for (size_t n = 0; n < RELEASE_MAX && n < room && at[n] > ' ' && at[n] < 0x7f; n++)
        release[n] = at[n];
}

static int make_files(const struct job *job, struct report *report)
{
    struct err *err = &report->err;
    cleanup_buf struct buf vmlinuz = BUF_INIT(VMLINUZ_MAX), vmlinux = BUF_INIT(VMLINUX_MAX);
    static struct module_set set;
    module_set_begin(&set);
    int r = kernel_source_read(&job->source, &vmlinuz, &set, err);
    if (r == 0)
        r = module_set_order(&set, err);
    if (r == 0)
        r = kernel_image_extract(&vmlinuz, &vmlinux, err);
    if (r == 0)
        r = write_all(job->vmlinux_fd, &vmlinux, err);
    if (r == 0)
        r = write_initramfs(job, &set, err);
    report->modules = set.order_count;
    find_release(&vmlinux, report->release);
    module_set_free(&set);
    return r;
}

static int run_child(void *arg)
{
    const struct job *job = arg;
    struct report report = {0};
    report.done = make_files(job, &report) == 0;
    return write(job->report_fd, &report, sizeof report) == (ssize_t)sizeof report ? 0 : 1;
}

// ---- the parent ----

struct kernel_build {
    const struct options *options;
    struct store store;
    char new_name[16];  // empty when there is nothing to discard
    int dir_fd;
    struct job job;
    struct report report;
    struct manifest manifest;
};

static void cleanup_build(struct kernel_build *b)
{
    int *const fds[] = {&b->dir_fd,       &b->job.source.deb_fd, &b->job.source.vmlinuz_fd, &b->job.source.modules_fd,
                        &b->job.agent_fd, &b->job.vmlinux_fd,    &b->job.initramfs_fd,      &b->job.report_fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        close_fd(fds[i]);
    if (b->new_name[0] != '\0')
        store_discard(&b->store, b->new_name);
    store_close(&b->store);
}

static int open_input(const char *path, int flags, int *ret_fd, struct err *err)
{
    if (path == NULL)
        return 0;
    *ret_fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    return *ret_fd < 0 ? err_set(err, -errno, "%s cannot be opened: %s", path, strerror(errno)) : 0;
}

static int new_file(struct kernel_build *b, const char *name, int *ret_fd, struct err *err)
{
    *ret_fd = openat(b->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return *ret_fd < 0 ? err_set(err, -errno, "no file %s in %s: %s", name, b->options->store, strerror(errno)) : 0;
}

static int prepare(struct kernel_build *b, struct err *err)
{
    const struct options *o = b->options;
    if (geteuid() != 0)
        return err_set(err, -EPERM, "building needs root, for its user namespace; run it with sudo");
    int r = open_input(o->from_deb, 0, &b->job.source.deb_fd, err);
    if (r == 0)
        r = open_input(o->vmlinuz, 0, &b->job.source.vmlinuz_fd, err);
    if (r == 0)
        r = open_input(o->modules, O_DIRECTORY, &b->job.source.modules_fd, err);
    if (r == 0)
        r = open_input(o->agent, 0, &b->job.agent_fd, err);
    if (r == 0)
        r = store_open_writable(o->store, &b->store, err);
    if (r == 0)
        r = store_check_name(&b->store, o->name, o->replace, err);
    if (r == 0)
        r = store_begin(&b->store, b->new_name, &b->dir_fd, err);
    if (r == 0)
        r = new_file(b, KERNEL_VMLINUX_FILE, &b->job.vmlinux_fd, err);
    return r == 0 ? new_file(b, KERNEL_INITRAMFS_FILE, &b->job.initramfs_fd, err) : r;
}

static int hear(struct kernel_build *b, int from, pid_t *child, struct err *err)
{
    ssize_t n = read(from, &b->report, sizeof b->report);
    int status = confine_wait(child);
    if (n != (ssize_t)sizeof b->report)
        return err_set(err, -EIO, "the build's process ended without a word (status %d)", status);
    b->report.release[RELEASE_MAX] = '\0';
    b->report.err.text[ERR_TEXT_MAX - 1] = '\0';
    for (char *p = b->report.err.text; *p != '\0'; p++)
        *p = (unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p;
    if (b->report.done == 0)
        return err_set(err, b->report.err.code < 0 ? b->report.err.code : -EIO, "%s", b->report.err.text);
    return 0;
}

static int run(struct kernel_build *b, struct err *err)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0)
        return err_set(err, -errno, "no pipe: %s", strerror(errno));
    cleanup_fd int from = report[0];
    b->job.report_fd = report[1];
    int keep[8];
    size_t keeps = 0;
    const int all[] = {b->job.source.deb_fd, b->job.source.vmlinuz_fd, b->job.source.modules_fd, b->job.agent_fd,
                       b->job.vmlinux_fd,    b->job.initramfs_fd,      b->job.report_fd};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] >= 0)
            keep[keeps++] = all[i];
    const struct confine how = {.scratch_mib = 1, .fn = run_child, .arg = &b->job, .keep = keep, .keeps = keeps};
    cleanup_child pid_t child = -1;
    int r = confine_start(&how, &child, err);
    close_fd(&b->job.report_fd);
    return r == 0 ? hear(b, from, &child, err) : r;
}

static int seal_file(struct kernel_build *b, const char *name, int fd, struct err *err)
{
    struct manifest_file *file = &b->manifest.file[b->manifest.files++];
    snprintf(file->name, sizeof file->name, "%s", name);
    int r = fchmod(fd, 0644) < 0 || fsync(fd) < 0 ? -errno : digest_file(fd, &file->size, file->digest);
    return r < 0 ? err_set(err, r, "%s cannot be finished: %s", name, strerror(-r)) : 0;
}

// Facts for people: not part of the digests.
static int write_info(struct kernel_build *b, struct err *err)
{
    cleanup_buf struct buf text = BUF_INIT(INFO_MAX);
    struct json_out j = JSON_OUT_INIT(&text);
    char created[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_open(&j, NULL, '{');
    json_str(&j, "created", created);
    json_str(&j, "release", b->report.release);
    json_u64(&j, "modules", b->report.modules);
    json_str(&j, "built_by", "sandbox-image " PROJECT_VERSION);
    json_close(&j, '}');
    buf_append(&text, "\n", 1);
    cleanup_fd int fd = openat(b->dir_fd, TEMPLATE_INFO_FILE, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 || buf_error(&text) != 0)
        return err_set(err, -EIO, "%s cannot be written", TEMPLATE_INFO_FILE);
    int r = write_all(fd, &text, err);
    return r == 0 && (fchmod(fd, 0644) < 0 || fsync(fd) < 0)
               ? err_set(err, -errno, "%s: %s", TEMPLATE_INFO_FILE, strerror(errno))
               : r;
}

static int finish(struct kernel_build *b, struct err *err)
{
    // In the order of their names, as a manifest has them.
    int r = seal_file(b, KERNEL_INITRAMFS_FILE, b->job.initramfs_fd, err);
    if (r == 0)
        r = seal_file(b, KERNEL_VMLINUX_FILE, b->job.vmlinux_fd, err);
    if (r == 0) {
        r = template_write_manifest(b->dir_fd, &b->manifest);
        if (r < 0)
            err_set(err, r, "the manifest cannot be written: %s", strerror(-r));
    }
    if (r == 0)
        r = write_info(b, err);
    if (r == 0 && (fchmod(b->dir_fd, 0755) < 0 || fsync(b->dir_fd) < 0))
        r = err_set(err, -errno, "the kernel cannot be synced: %s", strerror(errno));
    if (r == 0)
        r = store_publish(&b->store, b->new_name, b->options->name, b->options->replace, err);
    if (r == 0)
        b->new_name[0] = '\0';
    return r;
}

static void print_result(const struct kernel_build *b)
{
    const char *name = b->options->name;
    if (!b->options->json) {
        printf("built kernel %s: %s, %" PRIu32 " modules, initramfs %" PRIu64 " KiB\n", name, b->report.release,
               b->report.modules, b->manifest.file[0].size >> 10);
        return;
    }
    cleanup_buf struct buf text = BUF_INIT(INFO_MAX);
    struct json_out j = JSON_OUT_INIT(&text);
    json_open(&j, NULL, '{');
    json_str(&j, "event", "built");
    json_str(&j, "kernel", name);
    json_str(&j, "release", b->report.release);
    json_u64(&j, "modules", b->report.modules);
    for (uint32_t i = 0; i < b->manifest.files; i++) {
        char digest[2 * DIGEST_LEN + 1];
        hex_encode(b->manifest.file[i].digest, DIGEST_LEN, digest);
        json_str(&j, b->manifest.file[i].name, digest);
    }
    json_close(&j, '}');
    puts(buf_text(&text));
}

int build_kernel(const struct options *options, struct err *err)
{
    __attribute__((cleanup(cleanup_build))) struct kernel_build b = {
        .options = options,
        .store = STORE_INIT,
        .dir_fd = -1,
        .job = {.source = {-1, -1, -1}, .agent_fd = -1, .vmlinux_fd = -1, .initramfs_fd = -1, .report_fd = -1},
    };
    int r = prepare(&b, err);
    if (r == 0)
        r = run(&b, err);
    if (r == 0)
        r = finish(&b, err);
    if (r == 0)
        print_result(&b);
    return r;
}

#include "image/build.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/json_out.h"
#include "image/builder.h"
#include "image/confine.h"
#include "image/input.h"
#include "image/store.h"
#include "sys/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

enum { JSON_MAX = 64 * 1024 };

struct build {
    const struct options *options;
    struct store store;
    struct input input;
    bool host_sources;
    char new_name[16];  // empty when there is nothing to discard
    int dir_fd, image_fd;
    struct builder_report result;
    struct manifest manifest;
    uint64_t used_bytes;
    uint64_t started_ns;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    interrupted = number;
}

// Without SA_RESTART: a build that waits for its child comes back and tidies up.
static void catch_signals(void)
{
    const struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static void cleanup_build(struct build *b)
{
    input_close(&b->input);
    close_fd(&b->image_fd);
    close_fd(&b->dir_fd);
    if (b->new_name[0] != '\0')
        store_discard(&b->store, b->new_name);
    store_close(&b->store);
}

static void progress(const char *what)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "sandbox-image: %s\n", what);
}

static int prepare(struct build *b, struct err *err)
{
    const struct options *o = b->options;
    if (geteuid() != 0)
        return err_set(err, -EPERM, "building a template needs root, to map a range of ids for its files; run it with sudo");
    int r = store_open_writable(o->store, &b->store, err);
    if (r == 0)
        r = store_check_name(&b->store, o->name, o->replace, err);
    for (unsigned i = 0; i < o->aliases && r == 0; i++)
        r = store_check_alias(&b->store, o->alias[i], o->name, err);
    if (r == 0)
        r = store_begin(&b->store, b->new_name, &b->dir_fd, err);
    if (r < 0)
        return r;
    b->image_fd = openat(b->dir_fd, TEMPLATE_ROOTFS_FILE, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    // mkfs, which runs as that id, opens it by its descriptor; the folders above stay closed to it.
    if (b->image_fd < 0 || fchown(b->image_fd, CONFINE_HOST_ID, CONFINE_HOST_ID) < 0)
        return err_set(err, -errno, "no image file in %s: %s", o->store, strerror(errno));
    return 0;
}

static int open_input(struct build *b, struct err *err)
{
    const struct options *o = b->options;
    if (o->from_dir != NULL)
        return input_dir(o->from_dir, &b->input, err);
    if (o->from_tar != NULL)
        return input_tar(o->from_tar, &b->input, err);
    const struct debootstrap what = {.suite = o->suite, .include = o->include, .mirror = o->mirror};
    progress("mmdebstrap downloads and installs the packages");
    return input_debootstrap(&what, &b->input, &b->host_sources, err);
}

// Text from the confined child is shown, so it must be text.
static void make_printable(struct err *e)
{
    e->text[ERR_TEXT_MAX - 1] = '\0';
    for (char *p = e->text; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            *p = '?';
}

// 1: *ret_report is one; 0: the child wrote no more; or -EINTR.
static int next_report(int fd, struct builder_report *ret_report)
{
    ssize_t n = read(fd, ret_report, sizeof *ret_report);
    if (n < 0)
        return -errno;
    return n == (ssize_t)sizeof *ret_report;
}

static int watch_builder(int report_fd, struct builder_report *last)
{
    static const char *const phases[] = {[BUILDER_READING] = "reading the input",
                                         [BUILDER_STAGING] = "laying out the files",
                                         [BUILDER_MKFS] = "making the filesystem"};
    struct pollfd readable = {.fd = report_fd, .events = POLLIN};
    for (;;) {
        // A signal that comes just before poll is seen a second later.
        int r = poll(&readable, 1, 1000);
        if (interrupted)
            return -EINTR;
        if (r <= 0)
            continue;
        r = next_report(report_fd, last);
        if (r == -EINTR)
            continue;
        if (r <= 0)
            return r;
        make_printable(&last->err);
        if (last->phase >= BUILDER_READING && last->phase <= BUILDER_MKFS)
            progress(phases[last->phase]);
    }
}

static int conclude(struct build *b, pid_t *child, struct err *err)
{
    int status = confine_wait(child);
    struct err input_err = {0};
    // A writer whose reader has failed is stopped; one whose reader is content must have succeeded.
    if (status == 0) {
        int r = input_finish(&b->input, &input_err);
        if (r < 0)
            return err_set(err, r, "%s", input_err.text);
    }
    if (status == 0 && b->result.phase == BUILDER_DONE)
        return 0;
    if (b->result.phase == BUILDER_FAILED) {
        // If the writer had stopped by itself, its reason is the cause of the reader's.
        if (b->result.err.code == -EBADMSG || b->result.err.code == -ENODATA) {
            close_fd(&b->input.tar_fd);
            int r = input_finish(&b->input, &input_err);
            if (r < 0 && strstr(input_err.text, "killed by signal 13") == NULL)
                return err_set(err, r, "%s", input_err.text);
        }
        return err_set(err, b->result.err.code < 0 ? b->result.err.code : -EIO, "%s", b->result.err.text);
    }
    if (status >= 256)
        return err_set(err, -EIO, "the build's process was killed by signal %d%s", status - 256,
                       status == 256 + SIGKILL ? " (is there enough memory?)" : "");
    return err_set(err, -EIO, "the build's process failed without a word");
}

static int run_builder(struct build *b, struct err *err)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0)
        return err_set(err, -errno, "no pipe: %s", strerror(errno));
    struct builder_job job = {
        .tar_fd = b->input.tar_fd,
        .image_fd = b->image_fd,
        .report_fd = report[1],
        .headroom_mib = b->options->headroom_mib,
        .strip = b->options->suite != NULL,
        .debian_suite = b->host_sources ? b->options->suite : NULL,
    };
    const int keep[] = {job.tar_fd, job.image_fd, job.report_fd};
    const struct confine how = {
        .scratch_mib = b->options->staging_mib, .fn = builder_run, .arg = &job, .keep = keep, .keeps = 3};
    cleanup_child pid_t child = -1;
    int r = confine_start(&how, &child, err);
    close(report[1]);
    if (r == 0)
        r = watch_builder(report[0], &b->result);
    close(report[0]);
    if (r == -EINTR)
        return err_set(err, r, "stopped by signal %d; nothing was kept", (int)interrupted);
    return r < 0 ? r : conclude(b, &child, err);
}

static int seal(struct build *b, struct err *err)
{
    struct stat st;
    if (fchown(b->image_fd, 0, 0) < 0 || fchmod(b->image_fd, 0644) < 0 || fsync(b->image_fd) < 0 || fstat(b->image_fd, &st) < 0)
        return err_set(err, -errno, "the image cannot be finished: %s", strerror(errno));
    progress("hashing the image");
    b->used_bytes = (uint64_t)st.st_blocks * 512;
    b->manifest.files = 1;
    struct manifest_file *file = &b->manifest.file[0];
    snprintf(file->name, sizeof file->name, "%s", TEMPLATE_ROOTFS_FILE);
    int r = digest_file(b->image_fd, &file->size, file->digest);
    if (r == 0)
        r = template_write_manifest(b->dir_fd, &b->manifest);
    return r < 0 ? err_set(err, r, "the manifest cannot be written: %s", strerror(-r)) : 0;
}

static const char *source_of(const struct options *o)
{
    return o->suite != NULL ? "mmdebstrap" : o->from_dir != NULL ? "dir" : "tar";
}

// Facts for people: not part of the template's digest.
static int write_info(struct build *b, struct err *err)
{
    const struct options *o = b->options;
    cleanup_buf struct buf text = BUF_INIT(JSON_MAX);
    struct json_out j = JSON_OUT_INIT(&text);
    char created[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_open(&j, NULL, '{');
    json_str(&j, "created", created);
    json_str(&j, "source", source_of(o));
    if (o->suite != NULL) {
        json_str(&j, "suite", o->suite);
        json_str(&j, "include", o->include);
    }
    json_u64(&j, "files", b->result.files);
    json_u64(&j, "devices_left_out", b->result.devices);
    json_u64(&j, "xattrs_left_out", b->result.xattrs);
    json_bool(&j, "has_shell", b->result.has_shell != 0);
    json_str(&j, "built_by", "sandbox-image " PROJECT_VERSION);
    json_close(&j, '}');
    buf_append(&text, "\n", 1);
    cleanup_fd int fd = openat(b->dir_fd, TEMPLATE_INFO_FILE, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 || buf_error(&text) != 0 || write(fd, text.data, text.len) != (ssize_t)text.len || fchmod(fd, 0644) < 0 ||
        fsync(fd) < 0)
        return err_set(err, errno != 0 ? -errno : -EIO, "%s cannot be written: %s", TEMPLATE_INFO_FILE, strerror(errno));
    return 0;
}

static int publish(struct build *b, struct err *err)
{
    const struct options *o = b->options;
    if (fchmod(b->dir_fd, 0755) < 0 || fsync(b->dir_fd) < 0)
        return err_set(err, -errno, "the template cannot be synced: %s", strerror(errno));
    int r = store_publish(&b->store, b->new_name, o->name, o->replace, err);
    if (r == 0)
        b->new_name[0] = '\0';
    for (unsigned i = 0; i < o->aliases && r == 0; i++)
        r = store_set_alias(&b->store, o->alias[i], o->name, err);
    return r;
}

static void warn(const struct build *b)
{
    const struct builder_report *r = &b->result;
    // mmdebstrap's own /dev is always left out; that is no news.
    if (r->devices > 0 && b->options->suite == NULL)
        fprintf(stderr, "sandbox-image: note: %" PRIu64 " device nodes and sockets were left out\n", r->devices);
    if (r->xattrs > 0)
        fprintf(stderr, "sandbox-image: note: extended attributes of %" PRIu64 " files were left out\n", r->xattrs);
    if (!r->has_shell)
        fprintf(stderr, "sandbox-image: warning: the image has no /bin/sh that can be run; commands by a shell will fail\n");
}

static void print_result(const struct build *b)
{
    const struct manifest_file *rootfs = &b->manifest.file[0];
    char digest[2 * DIGEST_LEN + 1];
    hex_encode(rootfs->digest, DIGEST_LEN, digest);
    double seconds = (double)(mono_ns() - b->started_ns) / (double)NS_PER_S;
    if (!b->options->json) {
        printf("built %s: %" PRIu64 " files, %" PRIu64 " MiB on disk, digest %s, %.1f s\n", b->options->name, b->result.files,
               b->used_bytes >> 20, digest, seconds);
        return;
    }
    cleanup_buf struct buf text = BUF_INIT(JSON_MAX);
    struct json_out j = JSON_OUT_INIT(&text);
    char number[32];
    snprintf(number, sizeof number, "%.3f", seconds);
    json_open(&j, NULL, '{');
    json_str(&j, "event", "built");
    json_str(&j, "template", b->options->name);
    json_u64(&j, "files", b->result.files);
    json_u64(&j, "bytes", rootfs->size);
    json_u64(&j, "used_bytes", b->used_bytes);
    json_str(&j, "digest", digest);
    json_raw(&j, "seconds", number);
    json_close(&j, '}');
    puts(buf_text(&text));
}

int build_template(const struct options *options, struct err *err)
{
    __attribute__((cleanup(cleanup_build))) struct build b = {
        .options = options,
        .store = STORE_INIT,
        .input = INPUT_INIT,
        .dir_fd = -1,
        .image_fd = -1,
        .started_ns = mono_ns(),
    };
    catch_signals();
    int r = prepare(&b, err);
    if (r == 0)
        r = open_input(&b, err);
    if (r == 0)
        r = run_builder(&b, err);
    if (r == 0)
        r = seal(&b, err);
    if (r == 0)
        r = write_info(&b, err);
    if (r == 0 && interrupted)
        r = err_set(err, -EINTR, "stopped by signal %d; nothing was kept", (int)interrupted);
    if (r == 0)
        r = publish(&b, err);
    if (r < 0)
        return r;
    warn(&b);
    print_result(&b);
    return 0;
}

#include "agent/configure.h"

#include "agent/request_check.h"
#include "base/cleanup.h"
#include "wire/limits.h"
#include "wire/path.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MACHINE_ID_DIGITS = 32, HOSTNAME_MAX = 63 };

static bool only(const ProtobufCBinaryData *b, const char *alphabet)
{
    for (size_t i = 0; i < b->len; i++)
        if (b->data[i] == '\0' || strchr(alphabet, b->data[i]) == NULL)
            return false;
    return true;
}

static bool is_address(const ProtobufCBinaryData *b)
{
    char text[INET_ADDRSTRLEN];
    struct in_addr address;
    if (b->len >= sizeof text || memchr(b->data, '\0', b->len) != NULL)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)b->len, (const char *)b->data);
    return inet_pton(AF_INET, text, &address) == 1;
}

static int check(const Sandbox__Agent__Configure *m, struct err *e)
{
    if (m->machine_id.len != 0 && (m->machine_id.len != MACHINE_ID_DIGITS || !only(&m->machine_id, "0123456789abcdef")))
        return err_set(e, -EINVAL, "machine_id must be 32 lower-case hexadecimal digits.");
    if (m->hostname.len > HOSTNAME_MAX || !only(&m->hostname, "abcdefghijklmnopqrstuvwxyz0123456789-"))
        return err_set(e, -EINVAL, "The host name must be at most 63 of a-z, 0-9 and \"-\".");
    if (m->resolver.len > 0 && !is_address(&m->resolver))
        return err_set(e, -EINVAL, "The resolver must be an IPv4 address, four decimal numbers.");
    if (m->n_env > ENV_VARS_MAX + ENV_ENGINE_MAX)
        return err_set(e, -EINVAL, "There are %zu environment entries; at most %d are possible.", m->n_env,
                       ENV_VARS_MAX + ENV_ENGINE_MAX);
    for (size_t i = 0; i < m->n_env; i++)
        if (env_entry_check(&m->env[i], e) < 0)
            return -EINVAL;
    return 0;
}

// A directory of the root, with no link anywhere in its path.  A descriptor or a negative errno.
static int open_root_dir(const char *path)
{
    cleanup_fd int top = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top < 0)
        return -errno;
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    long fd = syscall(SYS_openat2, top, path, &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

static int make_workspace(struct err *e)
{
    int r = mkdir(WORKSPACE_PATH, 0755) < 0 && errno != EEXIST ? -errno : 0;
    cleanup_fd int fd = r == 0 ? open_root_dir(&WORKSPACE_PATH[1]) : r;
    return fd < 0 ? err_set(e, fd, "The sandbox has no usable /workspace: %s.", strerror(-fd)) : 0;
}

static int write_text(int fd, const char *text)
{
    size_t n = strlen(text);
    ssize_t written = write(fd, text, n);
    return written == (ssize_t)n ? 0 : written < 0 ? -errno : -ENOSPC;
}

// For a file that something is mounted on: its bytes are replaced, if it is a regular file.
static int overwrite(int dir, const char *name, const char *text)
{
    cleanup_fd int fd = openat(dir, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EISDIR;
    return ftruncate(fd, 0) < 0 ? -errno : write_text(fd, text);
}

// A fresh file takes the place of whatever has that name; a link there is replaced, not followed.
static int replace(int dir, const char *name, const char *text)
{
    static const char temporary[] = ".sandbox-configure";
    unlinkat(dir, temporary, 0);
    cleanup_fd int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    int r = write_text(fd, text);
    if (r == 0 && renameat(dir, temporary, dir, name) < 0)
        r = -errno;
    if (r < 0)
        unlinkat(dir, temporary, 0);
    return r == -EBUSY ? overwrite(dir, name, text) : r;
}

// An image may be made so that a file cannot be had; that is its own loss.  Other failures mean a broken sandbox.
static bool image_is_odd(int r)
{
    static const int odd[] = {EROFS, ENOENT, ELOOP, ENOTDIR, EISDIR, EACCES, EPERM, EXDEV, ENXIO, ETXTBSY};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++)
        if (r == -odd[i])
            return true;
    return false;
}

static int write_etc(int etc, const char *name, const char *text, struct err *e)
{
    int r = replace(etc, name, text);
    if (r == 0 || image_is_odd(r))
        return 0;
    return err_set(e, r, "Cannot write /etc/%s: %s.", name, strerror(-r));
}

static int write_identity(const Sandbox__Agent__Configure *m, struct err *e)
{
    cleanup_fd int etc = open_root_dir("etc");
    if (etc < 0)
        return image_is_odd(etc) ? 0 : err_set(e, etc, "Cannot open /etc: %s.", strerror(-etc));
    char text[256];
    int r = 0;
    if (m->machine_id.len > 0) {
        snprintf(text, sizeof text, "%.*s\n", (int)m->machine_id.len, (const char *)m->machine_id.data);
        r = write_etc(etc, "machine-id", text, e);
    }
    if (r == 0 && m->hostname.len > 0) {
        int n = (int)m->hostname.len;
        const char *name = (const char *)m->hostname.data;
        snprintf(text, sizeof text, "%.*s\n", n, name);
        r = write_etc(etc, "hostname", text, e);
        snprintf(text, sizeof text, "127.0.0.1 localhost\n127.0.1.1 %.*s\n::1 localhost ip6-localhost ip6-loopback\n", n, name);
        if (r == 0)
            r = write_etc(etc, "hosts", text, e);
    }
    if (r == 0 && m->resolver.len > 0) {
        snprintf(text, sizeof text, "nameserver %.*s\n", (int)m->resolver.len, (const char *)m->resolver.data);
        r = write_etc(etc, "resolv.conf", text, e);
    }
    return r;
}

int configure_apply(const Sandbox__Agent__Configure *message, struct strv *env, struct err *e)
{
    int r = check(message, e);
    if (r == 0)
        r = make_workspace(e);
    if (r == 0)
        r = write_identity(message, e);
    for (size_t i = 0; i < message->n_env && r == 0; i++) {
        r = strv_set_env(env, message->env[i].data, message->env[i].len);
        if (r < 0)
            err_set(e, r, "The agent is out of memory.");
    }
    if (r < 0)
        strv_free(env);
    return r;
}

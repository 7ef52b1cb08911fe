// sandbox-image: builds, lists, verifies and removes templates.  docs/templates.md has the formats and the reasons.
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/json_out.h"
#include "base/standard_fds.h"
#include "image/build.h"
#include "image/kernel_build.h"
#include "image/options.h"
#include "image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <locale.h>
#include <string.h>
#include <sys/stat.h>

enum { JSON_MAX = 1024 * 1024, INFO_MAX = 64 * 1024 };

static void cleanup_json(json_t **json)
{
    json_decref(*json);
}

static void put_aliases(struct json_out *j, const struct store_list *list, const char *name)
{
    json_open(j, "aliases", '[');
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->entry[i].target, name) == 0)
            json_str(j, NULL, list->entry[i].name);
    json_close(j, ']');
}

static void put_files(struct json_out *j, const struct manifest *m)
{
    json_open(j, "files", '[');
    for (uint32_t i = 0; i < m->files; i++) {
        char digest[2 * DIGEST_LEN + 1];
        hex_encode(m->file[i].digest, DIGEST_LEN, digest);
        json_open(j, NULL, '{');
        json_str(j, "name", m->file[i].name);
        json_u64(j, "bytes", m->file[i].size);
        json_str(j, "digest", digest);
        json_close(j, '}');
    }
    json_close(j, ']');
}

// info.json of a template, or NULL: it is only for people, and a template without one is still a template.
static json_t *read_info(int dir_fd)
{
    cleanup_fd int fd = openat(dir_fd, TEMPLATE_INFO_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    char text[INFO_MAX];
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : -1;
    return n > 0 ? json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, NULL) : NULL;
}

static uint64_t used_bytes(int dir_fd)
{
    struct stat st;
    return fstatat(dir_fd, TEMPLATE_ROOTFS_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

// One template as a JSON object, or for people.
static int print_template(const struct store *store, const struct store_list *list, const char *name, bool json, bool whole,
                          struct err *err)
{
    char real[TEMPLATE_NAME_MAX + 1];
    struct manifest m;
    cleanup_fd int dir = -1;
    int r = template_open(store->fd, name, real, &m, &dir, err);
    if (r < 0)
        return r;
    __attribute__((cleanup(cleanup_json))) json_t *info = read_info(dir);
    const char *created = json_string_value(json_object_get(info, "created"));
    cleanup_buf struct buf text = BUF_INIT(JSON_MAX);
    struct json_out j = JSON_OUT_INIT(&text);
    if (json) {
        char *raw = info != NULL ? json_dumps(info, JSON_COMPACT) : NULL;
        json_open(&j, NULL, '{');
        json_str(&j, "template", real);
        put_aliases(&j, list, real);
        json_u64(&j, "used_bytes", used_bytes(dir));
        put_files(&j, &m);
        json_raw(&j, "info", raw != NULL ? raw : "null");
        json_close(&j, '}');
        free(raw);
        puts(buf_text(&text));
        return 0;
    }
    printf("%-24s %8" PRIu64 " MiB  %s\n", real, used_bytes(dir) >> 20, created != NULL ? created : "");
    for (uint32_t i = 0; whole && i < m.files; i++) {
        char digest[2 * DIGEST_LEN + 1];
        hex_encode(m.file[i].digest, DIGEST_LEN, digest);
        printf("  %-22s %12" PRIu64 " bytes  %s\n", m.file[i].name, m.file[i].size, digest);
    }
    for (size_t i = 0; whole && i < list->count; i++)
        if (strcmp(list->entry[i].target, real) == 0)
            printf("  alias %s\n", list->entry[i].name);
    return 0;
}

static int list_or_show(const struct options *o, struct err *err)
{
    __attribute__((cleanup(store_close))) struct store store = STORE_INIT;
    __attribute__((cleanup(store_list_free))) struct store_list list = {0};
    int r = store_open(o->store, &store, err);
    if (r == 0)
        r = store_list(&store, &list, err);
    if (r < 0)
        return r;
    if (o->command == COMMAND_SHOW)
        return print_template(&store, &list, o->name, o->json, true, err);
    for (size_t i = 0; i < list.count; i++) {
        const struct store_entry *e = &list.entry[i];
        if (e->target[0] != '\0') {
            if (!o->json)
                printf("%-24s alias of %s\n", e->name, e->target);
            continue;
        }
        struct err broken;
        if (print_template(&store, &list, e->name, o->json, false, &broken) < 0)
            fprintf(stderr, "sandbox-image: %s\n", broken.text);
    }
    return 0;
}

static int verify(const struct options *o, struct err *err)
{
    __attribute__((cleanup(store_close))) struct store store = STORE_INIT;
    char real[TEMPLATE_NAME_MAX + 1];
    struct manifest m;
    cleanup_fd int dir = -1;
    int fds[MANIFEST_FILES_MAX];
    int r = store_open(o->store, &store, err);
    if (r == 0)
        r = template_open(store.fd, o->name, real, &m, &dir, err);
    if (r == 0)
        r = template_verify(dir, &m, fds, err);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < m.files; i++)
        close_fd(&fds[i]);
    if (o->json)
        printf("{\"event\":\"verified\",\"template\":\"%s\",\"files\":%u}\n", real, m.files);
    else
        printf("%s: %u file%s and the manifest are as they were built\n", real, m.files, m.files == 1 ? "" : "s");
    return 0;
}

static int remove_one(const struct options *o, struct err *err)
{
    __attribute__((cleanup(store_close))) struct store store = STORE_INIT;
    // Not made when it does not exist: there would be nothing to remove.
    int r = store_open(o->store, &store, err);
    store_close(&store);
    if (r == 0)
        r = store_open_writable(o->store, &store, err);
    if (r == 0)
        r = store_remove(&store, o->name, o->force, err);
    if (r == 0 && o->json)
        printf("{\"event\":\"removed\",\"template\":\"%s\"}\n", o->name);
    else if (r == 0)
        printf("removed %s\n", o->name);
    return r;
}

// Whether all that was printed got to standard output; says so if not.
static bool said_all(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    fprintf(stderr, "sandbox-image: standard output cannot be written%s%s\n", errno != 0 ? ": " : "",
            errno != 0 ? strerror(errno) : "");
    return false;
}

int main(int argc, char **argv)
{
    if (standard_fds_hold() < 0)
        return 1;
    // What is made in a store is for the engine to read, which has another uid.
    umask(022);
    // So that names in archives are read as UTF-8, whatever the caller's locale.
    setlocale(LC_CTYPE, "C.UTF-8");
    struct options options;
    options_parse(argc, argv, &options);
    struct err err = {0};
    int r;
    switch (options.command) {
    case COMMAND_BUILD:
        r = options.kernel ? build_kernel(&options, &err) : build_template(&options, &err);
        break;
    case COMMAND_VERIFY:
        r = verify(&options, &err);
        break;
    case COMMAND_RM:
        r = remove_one(&options, &err);
        break;
    default:
        r = list_or_show(&options, &err);
        break;
    }
    if (r < 0)
        fprintf(stderr, "sandbox-image: %s\n", err.text);
    return r < 0 || !said_all() ? 1 : 0;
}

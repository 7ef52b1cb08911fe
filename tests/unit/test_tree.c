// image/tree, image/tree_read, image/neutral, image/apt_sources, image/ext4_times: what an archive may and may not say.
//
// Archives are written header by header, because no tar program would write these.
#include "base/cleanup.h"
#include "image/apt_sources.h"
#include "image/ext4_times.h"
#include "image/neutral.h"
#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <string.h>
#include <sys/mman.h>

enum { TAR_BLOCK = 512 };

struct fixture {
    int tar;
    char spool_path[64];
    int spool;
    struct tree tree;
    struct read_counts counts;
    struct err err;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->tar = memfd_create("tar", MFD_CLOEXEC);
    strcpy(f->spool_path, "/tmp/tree-test-XXXXXX");
    assert_non_null(mkdtemp(f->spool_path));
    f->spool = open(f->spool_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    tree_init(&f->tree);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", f->spool_path);
    assert_int_equal(system(command), 0);
    tree_free(&f->tree);
    close(f->tar);
    close(f->spool);
    free(f);
    return 0;
}

static void put_bytes(struct fixture *f, const void *bytes, size_t n)
{
    static const char zeros[TAR_BLOCK];
    assert_int_equal(write(f->tar, bytes, n), n);
    size_t pad = (TAR_BLOCK - n % TAR_BLOCK) % TAR_BLOCK;
    assert_int_equal(write(f->tar, zeros, pad), pad);
}

// A ustar header; `size` is what it says, not what follows.
static void put_header(struct fixture *f, char type, const char *name, const char *link, uint64_t size, unsigned mode,
                       uint64_t uid)
{
    char h[TAR_BLOCK] = {0};
    memcpy(h, name, strnlen(name, 100));
    snprintf(h + 100, 8, "%07o", mode);
    if (uid <= 07777777)
        snprintf(h + 108, 8, "%07o", (unsigned)uid);
    else
        for (int i = 0; i < 8; i++)  // base 256
            h[108 + i] = (char)(i == 0 ? 0x80 : uid >> (8 * (7 - i)));
    snprintf(h + 116, 8, "%07o", 0);
    snprintf(h + 124, 12, "%011llo", (unsigned long long)size);
    snprintf(h + 136, 12, "%011o", 1000000000);
    h[156] = type;
    if (link != NULL)
        memcpy(h + 157, link, strnlen(link, 100));
    memcpy(h + 257, "ustar\00000", 8);
    memset(h + 148, ' ', 8);
    unsigned sum = 0;
    for (int i = 0; i < TAR_BLOCK; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    put_bytes(f, h, sizeof h);
}

static void put_file(struct fixture *f, const char *name, const char *contents)
{
    put_header(f, '0', name, NULL, strlen(contents), 0644, 0);
    if (contents[0] != '\0')
        put_bytes(f, contents, strlen(contents));
}

static int read_it(struct fixture *f)
{
    char end[2 * TAR_BLOCK] = {0};
    put_bytes(f, end, sizeof end);
    assert_int_equal(lseek(f->tar, 0, SEEK_SET), 0);
    return tree_read(f->tar, f->spool, &f->tree, &f->counts, &f->err);
}

static void expect_refused(struct fixture *f, int code, const char *word)
{
    assert_int_equal(read_it(f), code);
    assert_non_null(strstr(f->err.text, word));
}

static void contents_of(struct fixture *f, const char *path, char *text, size_t room)
{
    const struct node *node = tree_find(&f->tree, path);
    assert_non_null(node);
    char name[16];
    snprintf(name, sizeof name, "%u", node->inode->spool);
    cleanup_fd int fd = openat(f->spool, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, room - 1);
    assert_true(n >= 0);
    text[n] = '\0';
}

static void plain_archives_are_read(void **state)
{
    struct fixture *f = *state;
    put_header(f, '5', "./", NULL, 0, 0755, 0);
    put_header(f, '5', "./bin/", NULL, 0, 0755, 0);
    put_file(f, "./bin/a", "contents");
    put_header(f, '1', "./bin/b", "./bin/a", 0, 0644, 0);
    put_header(f, '2', "bin/sh", "a", 0, 0777, 0);
    put_header(f, '0', "bin/setuid", NULL, 0, 04755, 1000);
    put_header(f, '6', "fifo", NULL, 0, 0600, 0);
    put_file(f, "implied/folder/file", "");
    put_file(f, "caf\xc3\xa9", "utf-8");
    put_file(f, "latin\xe9", "not utf-8");
    assert_int_equal(read_it(f), 0);
    assert_int_equal(f->counts.entries, 10);
    char text[32];
    contents_of(f, "bin/b", text, sizeof text);
    assert_string_equal(text, "contents");
    assert_ptr_equal(tree_find(&f->tree, "bin/a")->inode, tree_find(&f->tree, "bin/b")->inode);
    assert_int_equal(tree_find(&f->tree, "bin/a")->inode->names, 2);
    assert_int_equal(tree_find(&f->tree, "bin/setuid")->inode->mode, S_IFREG | 04755);
    assert_int_equal(tree_find(&f->tree, "bin/setuid")->inode->uid, 1000);
    assert_int_equal(tree_find(&f->tree, "bin/a")->inode->mtime, 1000000000);
    assert_true(node_is_folder(tree_find(&f->tree, "implied/folder")));
    assert_ptr_equal(tree_follow(&f->tree, "bin/sh"), tree_find(&f->tree, "bin/a"));
    assert_non_null(tree_find(&f->tree, "caf\xc3\xa9"));
    assert_non_null(tree_find(&f->tree, "latin\xe9"));
}

static void absolute_paths_are_refused(void **state)
{
    put_file(*state, "/etc/passwd", "x");
    expect_refused(*state, -EINVAL, "/etc/passwd");
}

static void dot_dot_is_refused(void **state)
{
    put_file(*state, "a/../../etc/passwd", "x");
    expect_refused(*state, -EINVAL, "a/../../etc/passwd");
}

static void a_path_through_a_symlink_is_refused(void **state)
{
    put_header(*state, '2', "escape", "/etc", 0, 0777, 0);
    put_file(*state, "escape/passwd", "x");
    expect_refused(*state, -ENOTDIR, "escape/passwd");
}

static void a_path_through_a_file_is_refused(void **state)
{
    put_file(*state, "file", "x");
    put_file(*state, "file/below", "x");
    expect_refused(*state, -ENOTDIR, "file/below");
}

static void a_hard_link_out_of_the_image_is_refused(void **state)
{
    put_header(*state, '1', "link", "/etc/shadow", 0, 0644, 0);
    expect_refused(*state, -EINVAL, "/etc/shadow");
}

static void a_hard_link_above_is_refused(void **state)
{
    put_header(*state, '1', "link", "../etc/shadow", 0, 0644, 0);
    expect_refused(*state, -EINVAL, "..");
}

static void a_hard_link_to_nothing_is_refused(void **state)
{
    put_header(*state, '1', "link", "later", 0, 0644, 0);
    put_file(*state, "later", "x");
    expect_refused(*state, -EINVAL, "link");
}

static void a_hard_link_through_a_symlink_is_refused(void **state)
{
    put_header(*state, '2', "s", "/etc", 0, 0777, 0);
    put_header(*state, '1', "link", "s/shadow", 0, 0644, 0);
    expect_refused(*state, -EINVAL, "link");
}

static void a_folder_replaced_by_a_symlink_is_refused(void **state)
{
    put_header(*state, '5', "d", NULL, 0, 0755, 0);
    put_header(*state, '2', "d", "/etc", 0, 0777, 0);
    expect_refused(*state, -EISDIR, "\"d\"");
}

static void the_root_replaced_is_refused(void **state)
{
    put_header(*state, '2', ".", "/etc", 0, 0777, 0);
    expect_refused(*state, -EISDIR, "\".\"");
}

static void owners_no_sandbox_has_are_refused(void **state)
{
    put_header(*state, '0', "max", NULL, 0, 0644, 65535);
    put_header(*state, '0', "above", NULL, 0, 0644, 65536);
    expect_refused(*state, -ERANGE, "above");
    struct fixture *f = *state;
    assert_int_equal(tree_find(&f->tree, "max")->inode->uid, 65535);
}

static void a_huge_owner_is_refused(void **state)
{
    put_header(*state, '0', "huge", NULL, 0, 0644, UINT64_C(1) << 32);
    expect_refused(*state, -ERANGE, "huge");
}

static void devices_are_left_out(void **state)
{
    struct fixture *f = *state;
    put_header(f, '3', "null", NULL, 0, 0666, 0);
    put_header(f, '4', "disk", NULL, 0, 0666, 0);
    assert_int_equal(read_it(f), 0);
    assert_int_equal(f->counts.devices, 2);
    assert_null(tree_find(&f->tree, "null"));
    assert_null(tree_find(&f->tree, "disk"));
}

static void the_last_of_one_name_wins(void **state)
{
    struct fixture *f = *state;
    put_file(f, "name", "first");
    put_header(f, '1', "other", "name", 0, 0644, 0);
    put_file(f, "name", "second");
    put_header(f, '2', "other2", "x", 0, 0777, 0);
    put_header(f, '5', "other2/", NULL, 0, 0700, 0);
    assert_int_equal(read_it(f), 0);
    char text[32];
    contents_of(f, "name", text, sizeof text);
    assert_string_equal(text, "second");
    contents_of(f, "other", text, sizeof text);
    assert_string_equal(text, "first");
    assert_true(node_is_folder(tree_find(&f->tree, "other2")));
}

// A pax header that gives the next entry a path of `len` bytes, cut into components of 200.
static void put_long_path(struct fixture *f, size_t len)
{
    cleanup_free char *record = malloc(len + 32);
    size_t total = len + 7;  // " path=" and the newline
    for (size_t digits = 1;; digits++) {
        char number[24];
        if ((size_t)snprintf(number, sizeof number, "%zu", total + digits) == digits) {
            total += digits;
            break;
        }
    }
    int head = snprintf(record, len + 32, "%zu path=", total);
    for (size_t i = 0; i < len; i++)
        record[(size_t)head + i] = i % 200 == 199 && i + 1 < len ? '/' : 'p';
    record[total - 1] = '\n';
    put_header(f, 'x', "pax", NULL, total, 0644, 0);
    put_bytes(f, record, total);
    put_file(f, "short", "x");
}

static void the_longest_path_is_taken(void **state)
{
    put_long_path(*state, TREE_PATH_MAX);
    assert_int_equal(read_it(*state), 0);
}

static void longer_paths_are_refused(void **state)
{
    put_long_path(*state, TREE_PATH_MAX + 1);
    expect_refused(*state, -ENAMETOOLONG, "4095");
}

static void megabyte_paths_are_refused(void **state)
{
    put_long_path(*state, 1024 * 1024 * 3 / 2);
    assert_true(read_it(*state) < 0);
}

static void long_names_and_deep_paths_are_refused(void **state)
{
    struct fixture *f = *state;
    const struct inode meta = {.mode = S_IFREG | 0644};
    char name[TREE_NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[TREE_NAME_MAX + 1] = '\0';
    assert_int_equal(tree_put(&f->tree, name, &meta, NULL, &f->err), -ENAMETOOLONG);
    name[TREE_NAME_MAX] = '\0';
    assert_int_equal(tree_put(&f->tree, name, &meta, NULL, &f->err), 0);
    char deep[2 * TREE_DEPTH_MAX + 3];
    for (size_t i = 0; i < sizeof deep; i++)
        deep[i] = i % 2 == 0 ? 'd' : '/';
    deep[2 * TREE_DEPTH_MAX + 1] = '\0';
    assert_int_equal(tree_put(&f->tree, deep, &meta, NULL, &f->err), -ENAMETOOLONG);
    deep[2 * TREE_DEPTH_MAX - 1] = '\0';
    assert_int_equal(tree_put(&f->tree, deep, &meta, NULL, &f->err), 0);
}

static void other_ceilings(void **state)
{
    struct fixture *f = *state;
    struct inode meta = {.mode = S_IFREG | 0644, .size = TREE_FILE_MAX};
    assert_int_equal(tree_put(&f->tree, "large", &meta, NULL, &f->err), 0);
    meta.size++;
    assert_int_equal(tree_put(&f->tree, "larger", &meta, NULL, &f->err), -EFBIG);
    cleanup_free char *target = malloc(TREE_PATH_MAX + 2);
    memset(target, 't', TREE_PATH_MAX + 1);
    target[TREE_PATH_MAX + 1] = '\0';
    const struct inode link = {.mode = S_IFLNK | 0777, .target = target};
    assert_int_equal(tree_put(&f->tree, "link", &link, NULL, &f->err), -EINVAL);
    target[TREE_PATH_MAX] = '\0';
    assert_int_equal(tree_put(&f->tree, "link", &link, NULL, &f->err), 0);
    target[0] = '\0';
    assert_int_equal(tree_put(&f->tree, "link", &link, NULL, &f->err), -EINVAL);
    char name[16];
    for (unsigned i = 1; i < TREE_LINKS_MAX; i++) {
        snprintf(name, sizeof name, "l%u", i);
        assert_int_equal(tree_link(&f->tree, name, "large", &f->err), 0);
    }
    assert_int_equal(tree_link(&f->tree, "one-more", "large", &f->err), -EMLINK);
    f->tree.nodes = TREE_NODES_MAX;  // as if
    meta.size = 0;
    assert_int_equal(tree_put(&f->tree, "full", &meta, NULL, &f->err), -E2BIG);
}

static void a_cut_archive_is_refused(void **state)
{
    struct fixture *f = *state;
    put_header(f, '0', "file", NULL, 100000, 0644, 0);
    put_bytes(f, "only this", 9);
    assert_int_equal(lseek(f->tar, 0, SEEK_SET), 0);
    assert_int_equal(tree_read(f->tar, f->spool, &f->tree, &f->counts, &f->err), -EBADMSG);
}

static void what_is_no_archive_is_refused(void **state)
{
    put_bytes(*state,
              "\x7f"
              "ELF this is no archive",
              23);
    assert_int_equal(read_it(*state), -EBADMSG);
}

static void an_empty_archive_is_refused(void **state)
{
    assert_true(read_it(*state) < 0);
}

static void zeros_become_holes(void **state)
{
    struct fixture *f = *state;
    enum { SIZE = 1024 * 1024 };
    cleanup_free char *bytes = calloc(1, SIZE);
    bytes[SIZE / 2] = 'x';
    put_header(f, '0', "sparse", NULL, SIZE, 0644, 0);
    put_bytes(f, bytes, SIZE);
    assert_int_equal(read_it(f), 0);
    struct stat st;
    char name[16];
    snprintf(name, sizeof name, "%u", tree_find(&f->tree, "sparse")->inode->spool);
    assert_int_equal(fstatat(f->spool, name, &st, 0), 0);
    assert_int_equal(st.st_size, SIZE);
    assert_true(st.st_blocks * 512 <= 8192);
    cleanup_fd int fd = openat(f->spool, name, O_RDONLY | O_CLOEXEC);
    cleanup_free char *back = malloc(SIZE);
    assert_int_equal(read(fd, back, SIZE), SIZE);
    assert_memory_equal(back, bytes, SIZE);
}

static void symlinks_are_followed_inside_the_image_only(void **state)
{
    struct fixture *f = *state;
    put_header(f, '0', "usr/bin/dash", NULL, 0, 0755, 0);
    put_header(f, '2', "bin", "usr/bin", 0, 0777, 0);
    put_header(f, '2', "usr/bin/sh", "../../../../usr/bin/dash", 0, 0777, 0);
    put_header(f, '2', "loop", "loop", 0, 0777, 0);
    put_header(f, '2', "abs", "/bin/sh", 0, 0777, 0);
    put_header(f, '2', "none", "/bin/none", 0, 0777, 0);
    assert_int_equal(read_it(f), 0);
    const struct node *dash = tree_find(&f->tree, "usr/bin/dash");
    assert_non_null(dash);
    assert_ptr_equal(tree_follow(&f->tree, "bin/sh"), dash);
    assert_ptr_equal(tree_follow(&f->tree, "abs"), dash);
    assert_null(tree_follow(&f->tree, "loop"));
    assert_null(tree_follow(&f->tree, "none"));
    assert_null(tree_find(&f->tree, "bin/sh"));
    assert_true(neutral_has_shell(&f->tree));
    tree_find(&f->tree, "usr/bin/dash")->inode->mode = S_IFREG | 0644;
    assert_false(neutral_has_shell(&f->tree));
}

static void folders_sandboxes_need_are_made(void **state)
{
    struct fixture *f = *state;
    put_header(f, '5', "tmp", NULL, 0, 0700, 5);
    assert_int_equal(read_it(f), 0);
    assert_int_equal(neutral_require_folders(&f->tree, &f->err), 0);
    static const char *const folders[] = {"proc", "sys", "dev", "etc", "tmp", "workspace"};
    for (size_t i = 0; i < 6; i++)
        assert_true(node_is_folder(tree_find(&f->tree, folders[i])));
    assert_int_equal(tree_find(&f->tree, "tmp")->inode->mode, S_IFDIR | 0700);  // an input's own stays as it is
}

static void links_in_place_of_those_folders_are_refused(void **state)
{
    static const char *const folders[] = {"proc", "sys", "dev", "etc", "tmp", "workspace"};
    for (size_t i = 0; i < 6; i++)
        for (int link = 0; link < 2; link++) {
            struct tree tree;
            struct err err;
            tree_init(&tree);
            struct inode meta = {.mode = link ? S_IFLNK | 0777 : S_IFREG | 0644, .target = link ? (char *)"/" : NULL};
            assert_int_equal(tree_put(&tree, folders[i], &meta, NULL, &err), 0);
            assert_int_equal(neutral_require_folders(&tree, &err), -ENOTDIR);
            assert_non_null(strstr(err.text, folders[i]));
            tree_free(&tree);
        }
}

static void packages_are_stripped_of_host_and_time(void **state)
{
    struct fixture *f = *state;
    static const char *const gone[] = {"usr/share/locale/de/x",
                                       "usr/share/man/man1/a.1.gz",
                                       "usr/share/doc/p/README",
                                       "var/lib/apt/lists/l",
                                       "var/cache/apt/pkgcache.bin",
                                       "var/log/dpkg.log",
                                       "dev/x",
                                       "etc/ssh/ssh_host_rsa_key",
                                       "etc/apt/sources.list.d/0000x.list",
                                       "etc/passwd-",
                                       "var/cache/ldconfig/aux-cache"};
    static const char *const stay[] = {"usr/share/doc/p/copyright", "usr/bin/python3", "etc/passwd", "var/lib/dpkg/status",
                                       "var/log/apt/.keep-folder-of"};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        put_file(f, gone[i], "x");
    for (size_t i = 0; i + 1 < sizeof stay / sizeof stay[0]; i++)
        put_file(f, stay[i], "x");
    put_header(f, '5', "var/log/apt", NULL, 0, 0755, 0);
    put_file(f, "etc/machine-id", "0123456789abcdef0123456789abcdef\n");
    put_file(f, "etc/resolv.conf", "nameserver 192.0.2.1\n");
    put_file(f, "etc/hostname", "buildhost\n");
    assert_int_equal(read_it(f), 0);
    assert_int_equal(neutral_strip(&f->tree, f->spool, "bookworm", &f->err), 0);
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        assert_null(tree_find(&f->tree, gone[i]));
    for (size_t i = 0; i + 1 < sizeof stay / sizeof stay[0]; i++)
        assert_non_null(tree_find(&f->tree, stay[i]));
    assert_true(node_is_folder(tree_find(&f->tree, "var/log/apt")));
    char text[400];
    contents_of(f, "etc/machine-id", text, sizeof text);
    assert_string_equal(text, "");
    contents_of(f, "etc/resolv.conf", text, sizeof text);
    assert_string_equal(text, "");
    contents_of(f, "etc/hostname", text, sizeof text);
    assert_string_equal(text, "sandbox\n");
    contents_of(f, "etc/apt/sources.list.d/debian.sources", text, sizeof text);
    assert_non_null(strstr(text, "Debian bookworm"));
    assert_null(strstr(text, "://"));  // nobody's host, the build machine's least of all
}

static void host_sources_are_reduced_to_the_suite(void **state)
{
    cleanup_buf struct buf out = BUF_INIT(4096);
    apt_sources_pick(
        "# comment\nTypes: deb deb-src\nURIs: http://d/debian\nSuites: bookworm bookworm-updates trixie bookworm-backports\n"
        "Components: main\nSigned-By:\n -----BEGIN\n .\n\n"
        "Types: deb\nURIs: http://other\nSuites: nodistro\nComponents: main\n\n"
        "Types: deb\nEnabled: no\nURIs: http://off\nSuites: bookworm\n\n"
        "Types: deb-src\nURIs: http://src\nSuites: bookworm\n\n\n"
        "Types: deb\nURIs: http://s\nSuites: bookworm-security",
        "bookworm", &out);
    assert_string_equal(buf_text(&out),
                        "Types: deb\nURIs: http://d/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
                        "Signed-By:\n -----BEGIN\n .\n"
                        "\nTypes: deb\nURIs: http://s\nSuites: bookworm-security\n");
    buf_clear(&out);
    apt_list_pick("# deb http://no bookworm main\ndeb http://a bookworm main\ndeb-src http://a bookworm main\n"
                  "deb [arch=amd64 signed-by=/x y=z] http://b bookworm-security main\ndeb http://c trixie main\n"
                  "deb [open http://d bookworm main\ndeb http://e\ndeb http://f bookworm-updates main",
                  "bookworm", &out);
    assert_string_equal(buf_text(&out),
                        "deb http://a bookworm main\ndeb [arch=amd64 signed-by=/x y=z] http://b bookworm-security main\n"
                        "deb http://f bookworm-updates main\n");
}

// The smallest image ext4_settle_times takes: 1 KiB blocks, one group; and what it must refuse.
static void times_in_an_image_are_settled(void **state)
{
    enum { BLOCK = 1024, BLOCKS = 16, BITMAP = 3, TABLE = 4, INODE = 256, INODES = 32 };
    static uint8_t good[BLOCK * BLOCKS], image[BLOCK * BLOCKS];
    uint8_t *sb = good + 1024, *group = good + 2 * BLOCK, *inode = good + TABLE * BLOCK + INODE;
    sb[0x00] = INODES;
    sb[0x04] = BLOCKS;
    sb[0x14] = 1;     // first block
    sb[0x21] = 0x20;  // 8192 blocks in a group
    sb[0x28] = INODES;
    sb[0x38] = 0x53;
    sb[0x39] = 0xEF;
    sb[0x59] = 1;  // inodes of 256 bytes
    group[0x04] = BITMAP;
    group[0x08] = TABLE;
    good[BITMAP * BLOCK] = 0x02;  // the second inode only
    inode[0x08] = 1, inode[0x0C] = 2, inode[0x10] = 3, inode[0x84] = 4, inode[0x90] = 5;
    good[TABLE * BLOCK + 2 * INODE + 0x0C] = 9;  // one not in use
    memcpy(image, good, sizeof image);
    assert_int_equal(ext4_settle_times(image, sizeof image), 0);
    inode = image + TABLE * BLOCK + INODE;
    assert_true(inode[0x08] == 3 && inode[0x0C] == 3 && inode[0x10] == 3 && inode[0x84] == 0 && inode[0x90] == 3);
    assert_int_equal(image[TABLE * BLOCK + 2 * INODE + 0x0C], 9);
    static const struct {
        size_t at;
        uint8_t value;
    } bad[] = {{1024 + 0x38, 0},         {1024 + 0x18, 7}, {1024 + 0x60, 0x80},        {1024 + 0x65, 0x04},
               {1024 + 0x64, 0x10},      {1024 + 0x59, 0}, {1024 + 0x04, BLOCKS + 1},  {1024 + 0x28, 0},
               {1024 + 0x00, 31},        {1024 + 0x21, 0}, {2 * BLOCK + 0x04, BLOCKS}, {2 * BLOCK + 0x08, BLOCKS - 1},
               {2 * BLOCK + 0x0B, 0xFF}, {1024 + 0x16, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memcpy(image, good, sizeof image);
        image[bad[i].at] = bad[i].value;
        assert_int_equal(ext4_settle_times(image, sizeof image), -EBADMSG);
    }
    memcpy(image, good, sizeof image);
    for (size_t n = 0; n < sizeof image; n += 512)
        assert_int_equal(ext4_settle_times(image, n), -EBADMSG);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    setlocale(LC_CTYPE, "C.UTF-8");  // as the program does
    const struct CMUnitTest tests[] = {
        CASE(plain_archives_are_read),
        CASE(absolute_paths_are_refused),
        CASE(dot_dot_is_refused),
        CASE(a_path_through_a_symlink_is_refused),
        CASE(a_path_through_a_file_is_refused),
        CASE(a_hard_link_out_of_the_image_is_refused),
        CASE(a_hard_link_above_is_refused),
        CASE(a_hard_link_to_nothing_is_refused),
        CASE(a_hard_link_through_a_symlink_is_refused),
        CASE(a_folder_replaced_by_a_symlink_is_refused),
        CASE(the_root_replaced_is_refused),
        CASE(owners_no_sandbox_has_are_refused),
        CASE(a_huge_owner_is_refused),
        CASE(devices_are_left_out),
        CASE(the_last_of_one_name_wins),
        CASE(the_longest_path_is_taken),
        CASE(longer_paths_are_refused),
        CASE(megabyte_paths_are_refused),
        CASE(long_names_and_deep_paths_are_refused),
        CASE(other_ceilings),
        CASE(a_cut_archive_is_refused),
        CASE(what_is_no_archive_is_refused),
        CASE(an_empty_archive_is_refused),
        CASE(zeros_become_holes),
        CASE(symlinks_are_followed_inside_the_image_only),
        CASE(folders_sandboxes_need_are_made),
        cmocka_unit_test(links_in_place_of_those_folders_are_refused),
        CASE(packages_are_stripped_of_host_and_time),
        cmocka_unit_test(host_sources_are_reduced_to_the_suite),
        cmocka_unit_test(times_in_an_image_are_settled),
    };
    return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}

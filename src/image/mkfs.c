#include "image/mkfs.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "image/ext4_times.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum {
    BLOCK = 4096,
    INODE_SIZE = 256,
    BLOCKS_PER_MIB = 256,
    HEADROOM_BYTES_PER_INODE = 16 * 1024,
    PUNCH_BLOCK = 64 * 1024,
    MKFS_WORDS_MAX = 4096,
};

// Any constant will do; it only must be the same every time.
#define FIXED_UUID "5a4d0b0e-7e3a-4c1b-9a55-73616e64626f"
// "none" first: the features are those named here, whatever the host's defaults are.
#define FEATURES "none,ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize"

struct numbers {
    char inodes[24];
    char blocks[24];
    char image[32];
};

static struct numbers numbers_for(const struct stage_size *size, uint64_t headroom_mib, int image_fd)
{
    struct numbers n;
    uint64_t headroom = headroom_mib * BLOCKS_PER_MIB;
    uint64_t inodes = size->inodes + 16 + headroom * BLOCK / HEADROOM_BYTES_PER_INODE;
    // Bitmaps and descriptors: less than 1 block in 100; and what every filesystem has.
    uint64_t blocks = size->blocks + headroom + inodes * INODE_SIZE / BLOCK;
    blocks += blocks / 100 + 4 * BLOCKS_PER_MIB;
    blocks = (blocks + BLOCKS_PER_MIB - 1) / BLOCKS_PER_MIB * BLOCKS_PER_MIB;
    snprintf(n.inodes, sizeof n.inodes, "%" PRIu64, inodes);
    snprintf(n.blocks, sizeof n.blocks, "%" PRIu64, blocks);
    snprintf(n.image, sizeof n.image, "/proc/self/fd/%d", image_fd);
    return n;
}

static void exec_mkfs(int stage_fd, int words_fd, const struct numbers *n)
{
    static const char *const environment[] = {
        "PATH=/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "MKE2FS_CONFIG=/dev/null",
        "E2FSPROGS_FAKE_TIME=1704067200",     NULL};
    const char *const args[] = {"mkfs.ext4",
                                "-q",
                                "-F",
                                "-O",
                                FEATURES,
                                "-b",
                                "4096",
                                "-I",
                                "256",
                                "-N",
                                n->inodes,
                                "-m",
                                "0",
                                "-U",
                                FIXED_UUID,
                                "-E",
                                "hash_seed=" FIXED_UUID ",lazy_itable_init=1,root_owner=0:0",
                                "-d",
                                ".",
                                n->image,
                                n->blocks,
                                NULL};
    if (fchdir(stage_fd) == 0 && dup2(words_fd, STDOUT_FILENO) >= 0 && dup2(words_fd, STDERR_FILENO) >= 0)
        execvpe("mkfs.ext4", (char *const *)args, (char *const *)environment);
    dprintf(words_fd, "mkfs.ext4: %s (is e2fsprogs installed?)\n", strerror(errno));
    _exit(127);
}

// The last line that says something.
static const char *last_line(struct buf *words)
{
    while (words->len > 0 && (words->data[words->len - 1] == '\n' || words->data[words->len - 1] == ' '))
        words->len--;
    const char *text = buf_text(words);
    const char *line = text != NULL ? strrchr(text, '\n') : NULL;
    return line != NULL ? line + 1 : text != NULL && text[0] != '\0' ? text : "no reason given";
}

static void read_words(int fd, struct buf *words)
{
    char part[512];
    for (ssize_t n; (n = read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR);) {
        if (n <= 0)
            continue;
        // What counts is the end.
        if (words->len + (size_t)n > words->max)
            buf_consume(words, (size_t)n);
        buf_append(words, part, (size_t)n);
    }
}

static int run_mkfs(int stage_fd, int image_fd, const struct numbers *n, struct err *err)
{
    int words[2];
    if (pipe2(words, O_CLOEXEC) < 0)
        return err_set(err, -errno, "no pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        exec_mkfs(stage_fd, words[1], n);
    close(words[1]);
    cleanup_buf struct buf said = BUF_INIT(MKFS_WORDS_MAX);
    read_words(words[0], &said);
    close(words[0]);
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pid < 0 || status != 0)
        return err_set(err, -EIO, "mkfs.ext4 failed: %.200s", last_line(&said));
    return 0;
}

static void punch(int fd, size_t from, size_t to)
{
    if (to > from)
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(to - from));
}

// mkfs reserves space for its inode tables or writes out their zeros: make holes of both.  Only saves space; a filesystem
// that cannot is no error.
static void punch_zeros(const uint8_t *image, size_t size, int image_fd)
{
    for (size_t at = 0; at + PUNCH_BLOCK <= size; at += PUNCH_BLOCK) {
        off_t found = lseek(image_fd, (off_t)at, SEEK_DATA);
        size_t data = found < 0 ? size : (size_t)found;
        data -= data % PUNCH_BLOCK;
        punch(image_fd, at, data);
        at = data;
        if (at + PUNCH_BLOCK <= size && image[at] == 0 && memcmp(image + at, image + at + 1, PUNCH_BLOCK - 1) == 0)
            punch(image_fd, at, at + PUNCH_BLOCK);
    }
}

static int settle(int image_fd, struct err *err)
{
    off_t size = lseek(image_fd, 0, SEEK_END);
    void *image = size > 0 ? mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, image_fd, 0) : MAP_FAILED;
    if (image == MAP_FAILED)
        return err_set(err, -EIO, "the image cannot be mapped: %s", strerror(errno));
    int r = ext4_settle_times(image, (size_t)size);
    if (r == 0)
        punch_zeros(image, (size_t)size, image_fd);
    munmap(image, (size_t)size);
    return r < 0 ? err_set(err, r, "mkfs.ext4 made an image of another shape than was asked for") : 0;
}

int mkfs_image(int stage_fd, int image_fd, const struct stage_size *size, uint64_t headroom_mib, struct err *err)
{
    struct numbers n = numbers_for(size, headroom_mib, image_fd);
    // mkfs opens the image by this number; only it must inherit it.
    if (fcntl(image_fd, F_SETFD, 0) < 0)
        return err_set(err, -errno, "fcntl: %s", strerror(errno));
    int r = run_mkfs(stage_fd, image_fd, &n, err);
    return r == 0 ? settle(image_fd, err) : r;
}

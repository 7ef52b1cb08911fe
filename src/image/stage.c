#include "image/stage.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum { BLOCK = 4096, SHORT_SYMLINK = 60 };

struct stage {
    int spool_fd;
    int folder_fd;        // where entries are being made
    uint64_t name_bytes;  // of that folder's entries, as ext4 stores them
    struct stage_size size;
    struct err *err;
};

static int make_entry(struct node *node, void *arg);

static int failed(struct stage *s, const struct node *node)
{
    return err_set(s->err, -errno, "\"%.120s\" cannot be staged: %s", node->name, strerror(errno));
}

static uint64_t blocks_of(uint64_t bytes)
{
    return (bytes + BLOCK - 1) / BLOCK;
}

// The file itself, in the spool and under its number, with everything but its names.
static int make_inode(struct stage *s, const struct inode *inode, const char *spool_name)
{
    const struct timespec times[2] = {{.tv_sec = inode->mtime}, {.tv_sec = inode->mtime}};
    // mkfs.ext4 keeps hard links of regular files only: other types become one inode for each name.
    uint32_t copies = S_ISREG(inode->mode) ? 1 : inode->names;
    s->size.inodes += copies;
    if (S_ISLNK(inode->mode)) {
        s->size.blocks += strlen(inode->target) >= SHORT_SYMLINK ? copies : 0;
        if (symlinkat(inode->target, s->spool_fd, spool_name) < 0)
            return -1;
    } else if (S_ISFIFO(inode->mode)) {
        if (mkfifoat(s->spool_fd, spool_name, 0600) < 0)
            return -1;
    } else {
        // One block in four hundred for extents is more than a file of any shape needs here.
        s->size.blocks += blocks_of(inode->size) + blocks_of(inode->size) / 400 + (inode->size > 4 * BLOCK);
    }
    if (fchownat(s->spool_fd, spool_name, inode->uid, inode->gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    // After the change of owner, which clears the set-user-id bit.
    if (!S_ISLNK(inode->mode) && fchmodat(s->spool_fd, spool_name, inode->mode & 07777, 0) < 0)
        return -1;
    return utimensat(s->spool_fd, spool_name, times, AT_SYMLINK_NOFOLLOW);
}

static int make_file(struct stage *s, const struct node *node)
{
    struct inode *inode = node->inode;
    char spool_name[16];
    snprintf(spool_name, sizeof spool_name, "%u", inode->spool);
    if (inode->staged == 0 && make_inode(s, inode, spool_name) < 0)
        return failed(s, node);
    inode->staged++;
    // Every name but the last is a link, the last one takes it out of the spool: link counts come out right.
    int r = inode->staged < inode->names ? linkat(s->spool_fd, spool_name, s->folder_fd, node->name, 0)
                                         : renameat(s->spool_fd, spool_name, s->folder_fd, node->name);
    return r < 0 ? failed(s, node) : 0;
}

static int fill_folder(struct stage *s, const struct node *node, int fd)
{
    const struct inode *inode = node->inode;
    int outer_fd = s->folder_fd;
    uint64_t outer_bytes = s->name_bytes;
    s->folder_fd = fd;
    s->name_bytes = 24;  // "." and ".."
    int r = tree_each(node, make_entry, s);
    s->size.inodes++;
    // An entry never crosses a block's end; a third more covers what that leaves empty.
    s->size.blocks += blocks_of(s->name_bytes + s->name_bytes / 3 + 12);
    s->folder_fd = outer_fd;
    s->name_bytes = outer_bytes;
    if (r < 0)
        return r;
    const struct timespec times[2] = {{.tv_sec = inode->mtime}, {.tv_sec = inode->mtime}};
    if (fchown(fd, inode->uid, inode->gid) < 0 || fchmod(fd, inode->mode & 07777) < 0 || futimens(fd, times) < 0)
        return failed(s, node);
    return 0;
}

static int make_folder(struct stage *s, const struct node *node)
{
    if (mkdirat(s->folder_fd, node->name, 0700) < 0)
        return failed(s, node);
    cleanup_fd int fd = openat(s->folder_fd, node->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return failed(s, node);
    return fill_folder(s, node, fd);
}

static int make_entry(struct node *node, void *arg)
{
    struct stage *s = arg;
    s->size.files++;
    s->name_bytes += 8 + ((strlen(node->name) + 3) & ~(size_t)3);
    return node_is_folder(node) ? make_folder(s, node) : make_file(s, node);
}

int stage_tree(const struct tree *tree, int spool_fd, int stage_fd, struct stage_size *ret_size, struct err *err)
{
    struct node root = tree->root;
    root.name = (char *)"/";
    struct stage s = {.spool_fd = spool_fd, .folder_fd = -1, .err = err};
    int r = fill_folder(&s, &root, stage_fd);
    if (r == 0)
        *ret_size = s.size;
    return r;
}

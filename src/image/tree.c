#include "image/tree.h"

#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FOLLOW_MAX = 40 };  // as the kernel's limit of symlinks in one path

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct node *)a)->name, ((const struct node *)b)->name);
}

static void inode_release(struct inode *inode)
{
    if (inode == NULL || --inode->names > 0)
        return;
    free(inode->target);
    free(inode);
}

static void node_free(void *p)
{
    struct node *node = p;
    tdestroy(node->children, node_free);
    inode_release(node->inode);
    free(node->name);
    free(node);
}

static struct inode *inode_new(struct tree *tree, const struct inode *meta)
{
    struct inode *inode = malloc(sizeof *inode);
    if (inode == NULL)
        return NULL;
    *inode = *meta;
    inode->names = 1;
    inode->staged = 0;
    inode->spool = tree->next_spool++;
    if (meta->target != NULL && (inode->target = strdup(meta->target)) == NULL) {
        free(inode);
        return NULL;
    }
    return inode;
}

void tree_init(struct tree *tree)
{
    *tree = (struct tree){.next_spool = 0};
    tree->root.inode = inode_new(tree, &(struct inode){.mode = S_IFDIR | 0755, .mtime = TREE_EPOCH});
    if (tree->root.inode == NULL)
        abort();
}

void tree_free(struct tree *tree)
{
    tdestroy(tree->root.children, node_free);
    inode_release(tree->root.inode);
    *tree = (struct tree){0};
}

static struct node *child_of(const struct node *folder, const char *name)
{
    const struct node key = {.name = (char *)name};
    void *slot = tfind(&key, &folder->children, by_name);
    return slot != NULL ? *(struct node **)slot : NULL;
}

static int add_child(struct tree *tree, struct node *folder, const char *name, struct inode *inode, struct node **ret_node)
{
    if (tree->nodes >= TREE_NODES_MAX)
        return -E2BIG;
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL || (node->name = strdup(name)) == NULL || tsearch(node, &folder->children, by_name) == NULL) {
        if (node != NULL)
            free(node->name);
        free(node);
        return -ENOMEM;
    }
    node->inode = inode;
    tree->nodes++;
    *ret_node = node;
    return 0;
}

// The next component of *path into `name`: 1, 0 at the end, or a negative errno.  "." and empty ones are passed over.
static int next_component(const char **path, char name[TREE_NAME_MAX + 1])
{
    for (;;) {
        *path += strspn(*path, "/");
        size_t n = strcspn(*path, "/");
        if (n == 0) {
            name[0] = '\0';
            return 0;
        }
        if (n > TREE_NAME_MAX)
            return -ENAMETOOLONG;
        memcpy(name, *path, n);
        name[n] = '\0';
        *path += n;
        if (strcmp(name, ".") != 0)
            return 1;
    }
}

static int refuse(struct err *err, int code, const char *path, const char *why)
{
    return err_set(err, code, "\"%.120s\"%s: %s", path, strlen(path) > 120 ? "..." : "", why);
}

// Checks a path by its text alone: the one place where that is done.
static int check_path(const char *path, struct err *err)
{
    const char *whole = path;
    if (path[0] == '/')
        return refuse(err, -EINVAL, path, "absolute paths are refused; make the archive with relative ones (tar -C ROOT -c .)");
    if (strlen(path) > TREE_PATH_MAX)
        return refuse(err, -ENAMETOOLONG, path, "the path is longer than 4095 bytes");
    char name[TREE_NAME_MAX + 1];
    int depth = 0, r;
    while ((r = next_component(&path, name)) > 0) {
        if (strcmp(name, "..") == 0)
            return refuse(err, -EINVAL, whole, "a path with \"..\" is refused: it could lead out of the image");
        if (++depth > TREE_DEPTH_MAX)
            return refuse(err, -ENAMETOOLONG, whole, "a path of more than 128 folders is refused");
    }
    if (r < 0)
        return refuse(err, r, whole, "a file name is longer than 255 bytes");
    return 0;
}

static int memory_or_limit(struct err *err, int r, const char *path)
{
    return refuse(err, r, path, r == -E2BIG ? "more than 1000000 files in one image" : "out of memory");
}

// The folder that holds the last component of `path`, made if need be; that component is in `name` (empty for the root).
static int parent_of(struct tree *tree, const char *path, char name[TREE_NAME_MAX + 1], struct node **ret_parent,
                     struct err *err)
{
    const char *rest = path;
    char next[TREE_NAME_MAX + 1];
    struct node *at = &tree->root;
    name[0] = '\0';
    if (next_component(&rest, name) == 0) {
        *ret_parent = at;
        return 0;
    }
    for (; next_component(&rest, next) > 0; memcpy(name, next, sizeof next)) {
        struct node *child = child_of(at, name);
        if (child == NULL) {
            struct inode *inode = inode_new(tree, &(struct inode){.mode = S_IFDIR | 0755, .mtime = TREE_EPOCH});
            int r = inode == NULL ? -ENOMEM : add_child(tree, at, name, inode, &child);
            if (r < 0) {
                inode_release(inode);
                return memory_or_limit(err, r, path);
            }
        } else if (!node_is_folder(child)) {
            return refuse(err, -ENOTDIR, path,
                          S_ISLNK(child->inode->mode) ? "the path leads through a symlink, which could lead anywhere"
                                                      : "the path leads through something that is not a folder");
        }
        at = child;
    }
    *ret_parent = at;
    return 0;
}

// Gives the node at `path` this inode (whose reference it takes, also on failure).
static int attach(struct tree *tree, const char *path, struct inode *inode, struct err *err)
{
    struct node *parent = NULL, *node;
    char name[TREE_NAME_MAX + 1];
    int r = parent_of(tree, path, name, &parent, err);
    if (r < 0) {
        inode_release(inode);
        return r;
    }
    node = name[0] == '\0' ? &tree->root : child_of(parent, name);
    if (node == NULL) {
        r = add_child(tree, parent, name, inode, &node);
        if (r < 0) {
            inode_release(inode);
            return memory_or_limit(err, r, path);
        }
        return 0;
    }
    if (node_is_folder(node) && !S_ISDIR(inode->mode)) {
        inode_release(inode);
        return refuse(err, -EISDIR, path, "the input has a folder of this name and then something else");
    }
    inode_release(node->inode);
    node->inode = inode;
    return 0;
}

int tree_put(struct tree *tree, const char *path, const struct inode *meta, struct inode **ret_inode, struct err *err)
{
    int r = check_path(path, err);
    if (r < 0)
        return r;
    if (meta->uid > TREE_ID_MAX || meta->gid > TREE_ID_MAX)
        return refuse(err, -ERANGE, path, "its owner or group is above 65535, which a sandbox does not have");
    if (meta->size > TREE_FILE_MAX)
        return refuse(err, -EFBIG, path, "larger than 1 TiB");
    if (S_ISLNK(meta->mode) && (meta->target == NULL || meta->target[0] == '\0' || strlen(meta->target) > TREE_PATH_MAX))
        return refuse(err, -EINVAL, path, "a symlink with no target, or one of more than 4095 bytes");
    struct inode *inode = inode_new(tree, meta);
    if (inode == NULL)
        return memory_or_limit(err, -ENOMEM, path);
    r = attach(tree, path, inode, err);
    if (r == 0 && ret_inode != NULL)
        *ret_inode = inode;
    return r;
}

int tree_link(struct tree *tree, const char *path, const char *target, struct err *err)
{
    int r = check_path(path, err);
    if (r == 0)
        r = check_path(target, err);
    if (r < 0)
        return r;
    struct node *node = tree_find(tree, target);
    if (node == NULL || node_is_folder(node))
        return refuse(err, -EINVAL, path, "a hard link to what is not a file of this image before it");
    if (node->inode->names >= TREE_LINKS_MAX)
        return refuse(err, -EMLINK, path, "more than 65000 names of one file");
    node->inode->names++;
    return attach(tree, path, node->inode, err);
}

struct node *tree_find(struct tree *tree, const char *path)
{
    struct node *at = &tree->root;
    char name[TREE_NAME_MAX + 1];
    int r;
    while (at != NULL && (r = next_component(&path, name)) != 0) {
        if (r < 0 || !node_is_folder(at))
            return NULL;
        at = child_of(at, name);
    }
    return at;
}

struct node *tree_follow(struct tree *tree, const char *path)
{
    struct node *above[TREE_DEPTH_MAX + 1] = {&tree->root};
    int depth = 0;
    char rest[2 * TREE_PATH_MAX + 2], name[TREE_NAME_MAX + 1];
    snprintf(rest, sizeof rest, "%s", path);
    const char *p = rest;
    int r;
    for (int links = 0; (r = next_component(&p, name)) > 0;) {
        if (strcmp(name, "..") == 0) {
            depth -= depth > 0;
            continue;
        }
        struct node *child = node_is_folder(above[depth]) ? child_of(above[depth], name) : NULL;
        if (child == NULL)
            return NULL;
        if (S_ISLNK(child->inode->mode)) {
            char joined[sizeof rest];
            int n = snprintf(joined, sizeof joined, "%s/%s", child->inode->target, p);
            if (++links > FOLLOW_MAX || n < 0 || (size_t)n >= sizeof joined)
                return NULL;
            memcpy(rest, joined, (size_t)n + 1);
            p = rest;
            if (rest[0] == '/')
                depth = 0;
        } else if (++depth > TREE_DEPTH_MAX) {
            return NULL;
        } else {
            above[depth] = child;
        }
    }
    return r == 0 ? above[depth] : NULL;
}

struct each {
    int (*fn)(struct node *child, void *arg);
    void *arg;
    int result;
};

static void each_visit(const void *slot, VISIT visit, void *closure)
{
    struct each *each = closure;
    if ((visit == postorder || visit == leaf) && each->result == 0)
        each->result = each->fn(*(struct node *const *)slot, each->arg);
}

int tree_each(const struct node *folder, int (*fn)(struct node *child, void *arg), void *arg)
{
    struct each each = {.fn = fn, .arg = arg};
    twalk_r(folder->children, each_visit, &each);
    return each.result;
}

struct prune {
    bool (*fn)(const char *path, const struct node *node, void *arg);
    void *arg;
    char path[TREE_PATH_MAX + TREE_NAME_MAX + 2];
    size_t len;
    struct node **doomed;  // of the folder being walked
    size_t count, allocated;
};

static int prune_visit(struct node *child, void *arg);

static void prune_folder(struct prune *p, struct node *folder)
{
    struct node **outer = p->doomed;
    size_t outer_count = p->count, outer_allocated = p->allocated;
    p->doomed = NULL;
    p->count = p->allocated = 0;
    tree_each(folder, prune_visit, p);
    for (size_t i = 0; i < p->count; i++) {
        tdelete(p->doomed[i], &folder->children, by_name);
        node_free(p->doomed[i]);
    }
    free(p->doomed);
    p->doomed = outer;
    p->count = outer_count;
    p->allocated = outer_allocated;
}

static int prune_visit(struct node *child, void *arg)
{
    struct prune *p = arg;
    size_t len = p->len;
    int n = snprintf(p->path + len, sizeof p->path - len, "%s%s", len > 0 ? "/" : "", child->name);
    if (n < 0 || (size_t)n >= sizeof p->path - len)
        return 0;
    if (p->fn(p->path, child, p->arg)) {
        if (p->count == p->allocated) {
            size_t grown = p->allocated * 2 + 16;
            struct node **list = reallocarray(p->doomed, grown, sizeof *list);
            if (list == NULL)
                abort();
            p->doomed = list;
            p->allocated = grown;
        }
        p->doomed[p->count++] = child;
    } else if (node_is_folder(child)) {
        p->len = len + (size_t)n;
        prune_folder(p, child);
        p->len = len;
    }
    p->path[len] = '\0';
    return 0;
}

void tree_prune(struct tree *tree, bool (*fn)(const char *path, const struct node *node, void *arg), void *arg)
{
    struct prune *p = calloc(1, sizeof *p);
    if (p == NULL)
        abort();
    p->fn = fn;
    p->arg = arg;
    prune_folder(p, &tree->root);
    free(p);
}

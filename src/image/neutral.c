#include "image/neutral.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

int neutral_require_folders(struct tree *tree, struct err *err)
{
    static const struct {
        const char *path;
        mode_t mode;
    } folders[] = {{"proc", 0555}, {"sys", 0555}, {"dev", 0755}, {"etc", 0755}, {"tmp", 01777}, {"workspace", 0755}};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        const struct node *node = tree_find(tree, folders[i].path);
        if (node != NULL && !node_is_folder(node))
            return err_set(err, -ENOTDIR, "/%s of the input is %s; a sandbox needs a real folder there", folders[i].path,
                           S_ISLNK(node->inode->mode) ? "a symlink" : "not a folder");
        const struct inode meta = {.mode = S_IFDIR | folders[i].mode, .mtime = TREE_EPOCH};
        int r = node != NULL ? 0 : tree_put(tree, folders[i].path, &meta, NULL, err);
        if (r < 0)
            return r;
    }
    return 0;
}

bool neutral_has_shell(struct tree *tree)
{
    const struct node *shell = tree_follow(tree, "bin/sh");
    return shell != NULL && S_ISREG(shell->inode->mode) && (shell->inode->mode & 0111) != 0;
}

struct strip {
    bool host_sources;
};

// "*" in these patterns matches "/" too: a pattern covers everything below a folder.
static bool matches(const char *const *patterns, const char *path)
{
    for (; *patterns != NULL; patterns++)
        if (fnmatch(*patterns, path, 0) == 0)
            return true;
    return false;
}

static bool unwanted(const char *path, const struct node *node, void *arg)
{
    static const char *const everything[] = {
        "dev/*",
        "proc/*",
        "sys/*",
        "run/*",
        "tmp/*",
        "var/tmp/*",
        "root/.cache*",
        "usr/share/locale/*",
        "usr/share/man/*",
        "usr/share/info/*",
        "usr/share/lintian/*",
        "usr/share/gnome/help/*",
        "var/lib/apt/lists/*",
        "var/cache/apt/*",
        "var/cache/ldconfig/*",
        "var/cache/man/*",
        "var/cache/debconf/*-old",
        "var/lib/dpkg/*-old",
        "etc/*-",
        "etc/machine-id",
        "etc/hostname",
        "etc/resolv.conf",
        "var/lib/dbus/machine-id",
        "var/lib/systemd/random-seed",
        "etc/ssh/ssh_host_*",
        NULL,
    };
    static const char *const sources[] = {"etc/apt/sources.list", "etc/apt/sources.list.d/*", NULL};
    static const char *const files_only[] = {"var/log/*", NULL};
    const struct strip *strip = arg;
    if (matches(everything, path) || (strip->host_sources && matches(sources, path)))
        return true;
    if (fnmatch("usr/share/doc/*", path, 0) == 0)
        return S_ISREG(node->inode->mode) && fnmatch("*/copyright", path, 0) != 0;
    return !node_is_folder(node) && matches(files_only, path);
}

// Where packages come from is the operator's to say: the image names nobody's host.
static int put_sources(struct tree *tree, int spool_fd, const char *suite, struct err *err)
{
    char text[256];
    snprintf(text, sizeof text, "# No package source is set.  This is Debian %s: name a mirror of it here, in deb822 form.\n",
             suite);
    return tree_put_text(tree, spool_fd, "etc/apt/sources.list.d/debian.sources", text, TREE_EPOCH, err);
}

int neutral_strip(struct tree *tree, int spool_fd, const char *debian_suite, struct err *err)
{
    struct strip strip = {.host_sources = debian_suite != NULL};
    tree_prune(tree, unwanted, &strip);
    int r = tree_put_text(tree, spool_fd, "etc/machine-id", "", TREE_EPOCH, err);
    if (r == 0)
        r = tree_put_text(tree, spool_fd, "etc/resolv.conf", "", TREE_EPOCH, err);
    if (r == 0)
        r = tree_put_text(tree, spool_fd, "etc/hostname", "sandbox\n", TREE_EPOCH, err);
    if (r == 0 && debian_suite != NULL)
        r = put_sources(tree, spool_fd, debian_suite, err);
    return r;
}

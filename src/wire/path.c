#include "wire/path.h"

#include "wire/limits.h"

#include <errno.h>
#include <string.h>

static bool is_dots(const char *name, size_t n)
{
    return (n == 1 && name[0] == '.') || (n == 2 && name[0] == '.' && name[1] == '.');
}

int path_check(const uint8_t *bytes, size_t n)
{
    if (n == 0 || memchr(bytes, '\0', n) != NULL)
        return -EINVAL;
    if (n > PATH_BYTES_MAX)
        return -ENAMETOOLONG;
    if (bytes[0] != '/')
        return -EACCES;
    for (size_t i = 0; i < n;) {
        size_t start = i;
        while (i < n && bytes[i] != '/')
            i++;
        if (i - start > NAME_BYTES_MAX)
            return -ENAMETOOLONG;
        if (is_dots((const char *)bytes + start, i - start))
            return -EACCES;
        i++;
    }
    return 0;
}

bool path_below(const char *path, const char *root, const char **ret_rest)
{
    size_t n = strlen(root);
    if (path[0] != '/' || strncmp(path, root, n) != 0 || (path[n] != '/' && path[n] != '\0'))
        return false;
    *ret_rest = path + n + strspn(path + n, "/");
    return true;
}

const char *path_next(const char **path, size_t *ret_len)
{
    const char *start = *path + strspn(*path, "/");
    size_t n = strcspn(start, "/");
    if (n == 0)
        return NULL;
    *ret_len = n;
    *path = start + n + strspn(start + n, "/");
    return start;
}

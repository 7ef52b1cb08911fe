#include "broker/guard_url.h"

#include "wire/route_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The form that the route check wants of a target is the form that is wanted here: a route of nothing but this path allows it.
static bool path_ok(const char *path)
{
    char text[GUARD_PATH_MAX + 8];
    struct route_list *list = calloc(1, sizeof *list);
    enum route_problem why;
    if (list == NULL)
        return false;
    int n = snprintf(text, sizeof text, "POST %s", path);
    bool good = route_list_add(list, text, (size_t)n, &why) == 0 && strchr(path, '*') == NULL;
    free(list);
    return good;
}

int guard_url_parse(const char *text, struct guard_url *ret, struct err *err)
{
    struct guard_url url = {0};
    const char *rest = strncmp(text, "https://", 8) == 0 ? text + 8 : NULL;
    if (rest == NULL)
        return err_set(err, -EINVAL, "guard_url is \"%.100s\"; it must start with https://", text);
    size_t n = strcspn(rest, "/?#@\\");
    enum host_problem why;
    uint16_t port;
    if (rest[n] == '@' || host_port_parse(rest, n, &(struct host_idna){0}, &url.host, &port, &why) < 0)
        return err_set(err, -EINVAL, "guard_url \"%.100s\" has no host that can be used", text);
    if (port != 0 && port != 443)
        return err_set(err, -EINVAL, "guard_url \"%.100s\" must be at port 443", text);
    bool loopback = url.host.is_address ? ip_classify(&url.host.addr) == IP_LOOPBACK : strcmp(url.host.name, "localhost") == 0;
    if (loopback)
        return err_set(err, -EINVAL, "guard_url \"%.100s\" leads a sandbox to itself", text);
    if (strlen(rest + n) < 2 || strlen(rest + n) > GUARD_PATH_MAX || strpbrk(rest + n, " \t\r\n") != NULL || !path_ok(rest + n))
        return err_set(err, -EINVAL, "guard_url \"%.100s\" must have a plain path of at most %d bytes, and nothing behind it",
                       text, (int)GUARD_PATH_MAX);
    memcpy(url.path, rest + n, strlen(rest + n) + 1);
    *ret = url;
    return 0;
}

// There is no way out: no interface, no route, no connection.
#include "agent/self_test_walls.h"
#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static void interfaces_free(struct if_nameindex **list)
{
    if (*list != NULL)
        if_freenameindex(*list);
}

static void addresses_free(struct ifaddrs **list)
{
    if (*list != NULL)
        freeifaddrs(*list);
}

static bool only_lo_exists(struct err *why)
{
    __attribute__((cleanup(interfaces_free))) struct if_nameindex *list = if_nameindex();
    if (list == NULL && errno != ENOENT && errno != EACCES && errno != EPERM && errno != EAFNOSUPPORT)
        return err_set(why, errno, "the interfaces cannot be listed: %s", strerror(errno)), false;
    for (size_t i = 0; list != NULL && list[i].if_index != 0; i++)
        if (strcmp(list[i].if_name, "lo") != 0)
            return err_set(why, 0, "there is an interface %s", list[i].if_name), false;
    return true;
}

bool wall_interfaces(struct err *why)
{
    if (!only_lo_exists(why))
        return false;
    __attribute__((cleanup(addresses_free))) struct ifaddrs *list = NULL;
    // Where the filter allows no netlink socket there is nothing to ask; the other walls of the network are tried all the same.
    if (getifaddrs(&list) < 0)
        return true;
    for (const struct ifaddrs *a = list; a != NULL; a = a->ifa_next)
        if (strcmp(a->ifa_name, "lo") != 0)
            return err_set(why, 0, "interface %s has an address", a->ifa_name), false;
    return true;
}

// The interface is the last word of a line in ipv6_route, and the first in route.
static bool lo_line(const char *line, bool last_word)
{
    char word[32] = "";
    if (last_word) {
        const char *end = line + strcspn(line, "\n");
        while (end > line && end[-1] == ' ')
            end--;
        const char *start = end;
        while (start > line && start[-1] != ' ' && start[-1] != '\t')
            start--;
        snprintf(word, sizeof word, "%.*s", (int)(end - start), start);
    } else {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(line, " \t\n"), line);
    }
    return strcmp(word, "lo") == 0;
}

static bool table_is_empty(const char *path, bool ipv6, struct err *why)
{
    cleanup_file FILE *f = fopen(path, "re");
    if (f == NULL)  // masked, or no such protocol
        return true;
    char line[512];
    for (int n = 0; fgets(line, sizeof line, f) != NULL; n++) {
        bool heading = !ipv6 && n == 0;
        if (!heading && !lo_line(line, ipv6))
            return err_set(why, 0, "%s has a route: %.120s", path, line), false;
    }
    return true;
}

bool wall_routes(struct err *why)
{
    return table_is_empty("/proc/net/route", false, why) && table_is_empty("/proc/net/ipv6_route", true, why);
}

static bool refused_at_once(int error)
{
    static const int good[] = {ENETUNREACH, EADDRNOTAVAIL, EHOSTUNREACH, EAFNOSUPPORT, EPERM, EACCES, ENETDOWN};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (error == good[i])
            return true;
    return false;
}

static bool cannot_connect(const char *name, int type, const struct sockaddr *address, socklen_t size, struct err *why)
{
    cleanup_fd int fd = socket(address->sa_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return true;
    if (connect(fd, address, size) == 0)
        return err_set(why, 0, "%s: a connection can be made", name), false;
    if (!refused_at_once(errno))
        return err_set(why, errno, "%s: not refused at once but: %s", name, strerror(errno)), false;
    return true;
}

bool wall_connections(struct err *why)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
    inet_pton(AF_INET, "192.0.2.1", &v4.sin_addr);
    inet_pton(AF_INET6, "2001:db8::1", &v6.sin6_addr);
    v4.sin_port = htons(80);
    if (!cannot_connect("TCP to 192.0.2.1:80", SOCK_STREAM, (struct sockaddr *)&v4, sizeof v4, why))
        return false;
    v4.sin_port = htons(53);
    if (!cannot_connect("UDP to 192.0.2.1:53", SOCK_DGRAM, (struct sockaddr *)&v4, sizeof v4, why))
        return false;
    return cannot_connect("TCP to [2001:db8::1]:80", SOCK_STREAM, (struct sockaddr *)&v6, sizeof v6, why) &&
           cannot_connect("UDP to [2001:db8::1]:80", SOCK_DGRAM, (struct sockaddr *)&v6, sizeof v6, why);
}

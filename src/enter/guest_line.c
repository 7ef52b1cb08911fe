#include "enter/guest_line.h"

#include "base/cleanup.h"

#include <errno.h>
#include <net/if.h>
#include <string.h>

static struct in_addr in(const uint8_t address[4])
{
    struct in_addr in;
    memcpy(&in, address, sizeof in);
    return in;
}

int guest_line_up(const struct guest_line *line)
{
    const struct rtnetlink_device device = {.name = GUEST_LINE_DEVICE, .mac = guest_line_guest_mac};
    const struct in_addr guest = in(line->address.guest), host = in(line->address.host);
    unsigned index = if_nametoindex(GUEST_LINE_DEVICE);
    if (index == 0)
        return -errno;
    cleanup_fd int fd = rtnetlink_open();
    if (fd < 0)
        return fd;
    int r = rtnetlink_set_up(fd, (int)index, &device, false);
    if (r == 0)
        r = rtnetlink_add_address(fd, (int)index, guest, guest, line->address.prefix);
    if (r == 0)
        r = rtnetlink_add_neighbour(fd, (int)index, host, guest_line_host_mac);
    // Without one, what the proxy is not asked for fails at once.
    if (r == 0 && (line->kind & JAIL_LINE_TRANSPARENT) != 0)
        r = rtnetlink_add_default_route(fd, (int)index, host);
    return r;
}

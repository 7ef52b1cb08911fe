// vmm/virtio/net: any headers and frames from the guest, any datagrams from the tap; nothing but whole frames gets through.
#include "base/cleanup.h"
#include "virtio_rig.h"
#include "vmm/virtio/net.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RX = 0, TX = 1, HEAD = 12 };

static const uint8_t guest_mac[6] = {2, 0, 0, 0, 0, 1};
static int host_fd;

static void host(struct rig *rig)
{
    uint8_t bytes[2048] = {0};
    size_t n = rig_take(rig, 2) % sizeof bytes;
    bytes[HEAD] = (uint8_t)rig_take(rig, 1);
    (void)!send(host_fd, bytes, n, MSG_DONTWAIT);
}

static void guest(struct rig *rig)
{
    if (rig_take(rig, 1) & 1) {
        rig_submit(rig, RX, 0x4000, 1530 + (uint32_t)rig_take(rig, 1), 1);
        return;
    }
    uint8_t *at = rig_data(rig, 0, 64);
    memset(at, 0, 64);
    rig_poke(rig, 0, 2);
    memcpy(at + HEAD + 6, guest_mac, 6);
    rig_submit(rig, TX, 0, (uint32_t)rig_take(rig, 2) % 1600, 0);
}

static void check_host(void)
{
    static const uint8_t head[HEAD];
    uint8_t bytes[4096];
    for (ssize_t n; (n = recv(host_fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
        if (n < HEAD + 14 || n > HEAD + NET_FRAME_MAX || memcmp(bytes, head, HEAD) != 0 ||
            memcmp(bytes + HEAD + 6, guest_mac, 6) != 0)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rig rig;
    struct net *net;
    int pair[2];
    rig_begin(&rig, data, size);
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        abort();
    cleanup_fd int tap = pair[0];
    cleanup_fd int other = pair[1];
    host_fd = other;
    struct net_config config = {.tap = tap, .mtu = 1500};
    memcpy(config.mac, guest_mac, sizeof guest_mac);
    if (net_new(rig.loop, rig.memory, &config, &net) < 0)
        abort();
    rig.mmio = net_mmio(net);
    rig.host = host;
    rig.guest = guest;
    rig_play(&rig);
    check_host();
    net_free(net);
    return 0;
}

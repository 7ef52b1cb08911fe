// The container tier: sandbox-jailer does the work, this driver speaks to it.  Its channel is also the vm tier's (vm.h).
#ifndef ENGINE_ISOLATION_CONTAINER_H
#define ENGINE_ISOLATION_CONTAINER_H

#include "engine/isolation/driver.h"
#include "sys/jail.h"
#include "sys/loop.h"

struct container;

extern const struct driver container_driver;  // its `self` is a struct container

// Takes over the jailer's channel on success.  `on_lost(arg)` is called once if the jailer goes away or breaks the protocol:
// its sandboxes are dead then.
int container_new(struct loop *loop, int channel, driver_exited_fn *exited, void (*on_lost)(void *arg), void *arg,
                  struct container **ret_container);
// NULL is fine; returns NULL.
struct container *container_free(struct container *c);

// ---- for drivers of other tiers that the jailer works for ----

// Asks the jailer; `fds` stay the caller's; `done` may be NULL when nobody needs the answer.
int container_ask(struct container *c, struct jail_request *request, const int *fds, size_t count, driver_done_fn *done,
                  void *arg);

// A request that starts a sandbox, whose end is told like any other's, after on_gone.
struct container_sandbox {
    void *owner;
    void (*on_gone)(void *arg, struct driver_exit *how);  // may fill in the reason
    void *gone_arg;
    bool internal;              // a driver's own (`owner` is not NULL all the same): only on_gone is told
    enum network_kind network;  // what the request asks for, and the answer brings
};
int container_start_with(struct container *c, struct jail_request *request, const int *fds, size_t count,
                         const struct container_sandbox *sandbox, driver_done_fn *done, void *arg);
// 0, or -EINVAL for a host name that is too long.
int container_describe(const struct driver_start *what, struct jail_start *ret_start);
// What a network is to the jailer: `network.line` of its request.
uint32_t container_line(enum network_kind kind);

// Asks the jailer for the version of its protocol, which comes as answer->handle.
int container_hello(struct container *c, driver_done_fn *done, void *arg);

// What lines are like from here on, once: the broker's port at the host's end, and the first and the number of bits of the
// range of addresses that transparent ones redirect; 0 bits: none is transparent.
int container_network(struct container *c, uint16_t port, const uint8_t synthetic[4], uint8_t bits, driver_done_fn *done,
                      void *arg);

// The files of volumes, which the jailer has (sys/jail.h); `machine`: one for the vm tier.  A list comes as answer->volumes, in
// parts of JAIL_VOLUMES_LISTED.
int container_volume_create(struct container *c, const uint8_t id[static JAIL_VOLUME_ID], uint64_t mib, bool machine,
                            driver_done_fn *done, void *arg);
int container_volume_delete(struct container *c, const uint8_t id[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg);
int container_volume_list(struct container *c, const uint8_t after[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg);

// Layers (sys/jail.h); a list comes as that of volumes.
int container_layer_delete(struct container *c, const uint8_t id[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg);
int container_layer_list(struct container *c, const uint8_t after[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg);

#endif

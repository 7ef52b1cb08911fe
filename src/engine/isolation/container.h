// The container tier: sandbox-jailer does the work, this driver speaks to it.
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

// Asks the jailer for the version of its protocol, which comes as answer->handle.
int container_hello(struct container *c, driver_done_fn *done, void *arg);

// The files of volumes, which the jailer has (sys/jail.h).  A list comes as answer->volumes, in parts of JAIL_VOLUMES_LISTED.
int container_volume_create(struct container *c, const uint8_t id[static JAIL_VOLUME_ID], uint64_t mib, driver_done_fn *done,
                            void *arg);
int container_volume_delete(struct container *c, const uint8_t id[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg);
int container_volume_list(struct container *c, const uint8_t after[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg);

#endif

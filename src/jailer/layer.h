// Layers: what snapshots keep of sandboxes' disks.
//
// A layer is an ext4 image in a file of its own below "snapshots" in the state folder, which only root can enter.  Only this
// program and the host's ext4 ever write one, before it has its name; from then on it is only read.  That is why the host's
// kernel may mount it again, and why nobody can have put another in its place.  There is no half-made layer: the file gets its
// name when all of it is on the disk, and until then vanishes with the process that holds it.
//
// A sandbox over a layer sees the folder of its overlay's upper layer, read-only and id-mapped.  A layer is mounted once, for
// all sandboxes that are over it, until the last of them is gone; deleting it takes only its name away.
#ifndef JAILER_LAYER_H
#define JAILER_LAYER_H

#include "jailer/release.h"
#include "sys/jail.h"

struct layers;
struct layer;

// `state_fd` and `mounts_fd` (where mounts are attached) stay the caller's and outlive it, as does `releases`, which may be
// NULL.  0 or a negative errno.
int layers_open(int state_fd, int mounts_fd, struct layers **ret_layers);
// NULL is fine; returns NULL.  Nothing may be taken any more.
struct layers *layers_close(struct layers *layers);
// Who closes what is let go; NULL: nobody, it is closed at once.
void layers_release_with(struct layers *layers, struct releases *releases);

// An empty file without a name, `bytes` long.  The descriptor is the caller's, or a negative errno.
int layer_begin(struct layers *layers, uint64_t bytes);
// Gives it its name, durably.  What is in it is on the disk already.  -EEXIST or another negative errno: then it has none.
int layer_commit(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID], int file);
// -ENOENT or another negative errno.
int layer_delete(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID]);
// As id_files_list.
int layer_list(struct layers *layers, const uint8_t after[static JAIL_VOLUME_ID],
               uint8_t ret_ids[static JAIL_VOLUMES_LISTED][JAIL_VOLUME_ID]);

// Opens one that is `bytes` long, for reading.  -EINVAL: it is not.
int layer_open(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID], uint64_t bytes);

// Mounts it, if it is not; to be given back.  0 or a negative errno.
int layer_take(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID], struct layer **ret_layer);
// NULL is fine; returns NULL.
struct layer *layer_give(struct layer *layer);
// What a sandbox may see of it: a detached, read-only mount for its user namespace, or a negative errno.
int layer_view(const struct layer *layer, int userns_fd);

#endif

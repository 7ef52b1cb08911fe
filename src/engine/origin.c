#include "engine/origin.h"

#include "wire/pb.h"

#include <stdlib.h>
#include <string.h>

// A fork whose disk is a copy of the first layer has that in its disk.
static void set_layers(struct origin *o, const struct snapshot *snapshot, bool copy_layer)
{
    uint32_t first = copy_layer ? 1 : 0;
    memcpy(o->snapshot_id, snapshot->meta.id, sizeof o->snapshot_id);
    for (uint32_t i = first; i < snapshot->meta.layers; i++)
        memcpy(o->layer[o->layers++], snapshot->meta.layer[i], SNAPSHOT_LAYER_ID);
    snapshot_layers_hold(o->store, o->layer, o->layers);
}

struct origin *origin_new(struct snapshot_store *store, Sandbox__CreateRequest *message, const struct shape *shape,
                          const char *template_name, const uint8_t rootfs[static DIGEST_LEN], bool has_volume,
                          const struct snapshot *snapshot, bool copy_layer)
{
    struct origin *o = calloc(1, sizeof *o);
    if (o == NULL)
        return NULL;
    *o = (struct origin){.store = store,
                         .message = message,
                         .memory_mib = shape->memory_mib,
                         .disk_mib = shape->disk_mib,
                         .vcpus = shape->vcpus,
                         .has_volume = has_volume};
    memcpy(o->template_name, template_name, strlen(template_name) + 1);
    memcpy(o->rootfs, rootfs, DIGEST_LEN);
    if (snapshot != NULL)
        set_layers(o, snapshot, copy_layer);
    return o;
}

struct origin *origin_free(struct origin *o)
{
    if (o == NULL)
        return NULL;
    snapshot_layers_drop(o->store, o->layer, o->layers);
    pb_free(o->message);
    free(o);
    return NULL;
}

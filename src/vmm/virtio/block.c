#include "vmm/virtio/block.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/workers.h"
#include "vmm/virtio/device.h"
#include "vmm/virtio/throttle.h"

#include <endian.h>
#include <errno.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_ids.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BIT(n) (UINT64_C(1) << (n))

// Reads up to READ_AT_ONCE_MAX bytes are tried on the loop's thread.
enum { READ_AT_ONCE_MAX = 128 * 1024 };
enum { QUEUE = 0, STATUS_BYTES = 1, BLOCK_SECTORS = DISK_BLOCK / DISK_SECTOR, PHYSICAL_EXPONENT = 3 };

_Static_assert(DISK_SECTOR << PHYSICAL_EXPONENT == DISK_BLOCK, "a physical block is a block of the delta");

// What is asked for, in our own memory and checked.
struct order {
    uint32_t type;
    uint64_t offset;  // bytes
    uint64_t length;  // bytes of data
    bool release;     // of VIRTIO_BLK_T_DISCARD and _WRITE_ZEROES: the room may be given back
};

struct request {
    struct job job;
    struct block *block;
    struct request *next_free;
    uint64_t generation;  // of the driver that made it
    struct order order;
    uint8_t status;
    uint64_t written;  // bytes from the start of the writable buffers, without the status
    int result;        // of the disk
    struct virtq_chain *chain;
};

struct block {
    struct virtio_mmio *mmio;
    struct disk *disk;        // NULL: none
    struct workers *workers;  // likewise
    struct virtio_blk_config config;
    char id[BLOCK_ID_BYTES];
    struct block_counters counters;
    struct request *request;    // BLOCK_QUEUE_SIZE of them, and their chains, apart: memory that is only touched when it is
    struct virtq_chain *chain;  // used, while an idle device is small
    struct request *free;
    unsigned under_way;  // requests with the worker
    bool starved;        // the queue was left because no request was free
    // Between the worker and whoever stops it.  Taken after the transport's mutex.
    pthread_mutex_t gate;
    pthread_cond_t idle;
    uint64_t generation;  // under `gate`, as `busy`
    bool busy;
    bool held;
    struct throttle throttle;  // the worker's, and the loop's while nothing is under way
};

// ---- how fast ----

static enum throttle_direction direction(const struct request *q)
{
    return q->order.type == VIRTIO_BLK_T_IN ? THROTTLE_READS : THROTTLE_WRITES;
}

// A request has been carried out; `before`: what the disk had moved until then.
static void pay(struct request *q, const struct disk_moved *before)
{
    struct throttle *t = &q->block->throttle;
    struct disk_moved after = disk_moved(q->block->disk);
    uint64_t bytes = q->order.type == VIRTIO_BLK_T_IN ? after.read - before->read : after.written - before->written;
    bool shared = q->order.type == VIRTIO_BLK_T_IN && bytes == 0;
    if ((t->bytes_per_s > 0 || t->ops_per_s > 0) && !shared)
        throttle_pay(t, direction(q), bytes, mono_ns());
}

// With the gate: until the request may begin.  False: the driver that asked is gone.
static bool await_turn(struct request *q)
{
    struct block *b = q->block;
    while (q->generation == b->generation) {
        uint64_t now = mono_ns(), wait = throttle_wait(&b->throttle, direction(q), now), until = now + wait;
        if (!b->held && wait == 0)
            return true;
        const struct timespec deadline = {.tv_sec = (time_t)(until / NS_PER_S), .tv_nsec = (long)(until % NS_PER_S)};
        if (b->held)
            pthread_cond_wait(&b->idle, &b->gate);
        else
            pthread_cond_timedwait(&b->idle, &b->gate, &deadline);
    }
    return false;
}

// ---- the worker's thread ----

static void carry_out(struct request *q)
{
    struct disk *disk = q->block->disk;
    const struct disk_moved before = disk_moved(disk);
    const struct order *o = &q->order;
    struct iovec data[VIRTQ_SIZE_MAX];
    const struct iovec *out = q->chain->iov + q->chain->readable;
    size_t parts;
    switch (o->type) {
    case VIRTIO_BLK_T_IN:
        parts = iov_part(out, q->chain->writable, 0, o->length, data);
        q->result = disk_read(disk, o->offset, data, parts, false, &q->written);
        break;
    case VIRTIO_BLK_T_OUT:
        parts = iov_part(q->chain->iov, q->chain->readable, sizeof(struct virtio_blk_outhdr), o->length, data);
        q->result = disk_write(disk, o->offset, data, parts);
        break;
    case VIRTIO_BLK_T_FLUSH:
        q->result = disk_flush(disk);
        break;
    default:
        q->result = disk_zero(disk, o->offset, o->length, o->release);
    }
    q->status = q->result < 0 ? VIRTIO_BLK_S_IOERR : VIRTIO_BLK_S_OK;
    pay(q, &before);
}

static void run(struct job *job)
{
    struct request *q = (struct request *)job;
    struct block *b = q->block;
    pthread_mutex_lock(&b->gate);
    bool current = await_turn(q);
    b->busy = current;
    pthread_mutex_unlock(&b->gate);
    if (!current)
        return;  // the driver that asked is gone, and so may be its memory
    carry_out(q);
    pthread_mutex_lock(&b->gate);
    b->busy = false;
    pthread_cond_broadcast(&b->idle);
    pthread_mutex_unlock(&b->gate);
}

// ---- the loop's thread: answers ----

static void release(struct request *q)
{
    q->next_free = q->block->free;
    q->block->free = q;
}

// `written` counts from the first writable byte without a gap; the status, at the very end, only when all before it is there.
static void answer(struct block *b, struct request *q)
{
    const struct virtq_chain *c = q->chain;
    uint64_t before_status = c->writable_bytes - STATUS_BYTES;
    iov_write(c->iov + c->readable, c->writable, before_status, &q->status, STATUS_BYTES);
    uint64_t written = q->written == before_status ? c->writable_bytes : q->written;
    virtio_push(b->mmio, QUEUE, c->head, written > UINT32_MAX ? UINT32_MAX : (uint32_t)written);
}

static void count(struct block *b, const struct request *q)
{
    struct block_counters *n = &b->counters;
    if (q->result < 0) {
        n->errors++;
        n->last_error = q->result;
        return;
    }
    switch (q->order.type) {
    case VIRTIO_BLK_T_IN:
        n->reads++;
        n->read_bytes += q->order.length;
        break;
    case VIRTIO_BLK_T_OUT:
        n->writes++;
        n->written_bytes += q->order.length;
        break;
    case VIRTIO_BLK_T_FLUSH:
        n->flushes++;
        break;
    default:
        n->zeroes++;
    }
}

static void finish(struct job *job, bool ran)
{
    struct request *q = (struct request *)job;
    struct block *b = q->block;
    if (!ran)
        return;  // the device is being freed
    virtio_lock(b->mmio);
    b->under_way--;
    if (q->generation == b->generation) {
        count(b, q);
        answer(b, q);
        virtio_signal(b->mmio, QUEUE);
    }
    release(q);
    if (b->starved) {
        b->starved = false;
        virtio_again(b->mmio, QUEUE);
    }
    virtio_unlock(b->mmio);
}

// ---- the loop's thread: requests ----

static uint8_t refuse(struct block *b, uint8_t status)
{
    b->counters.refused++;
    return status;
}

// Discard and write-zeroes: one segment, the data of the request.
static uint8_t check_segment(struct block *b, struct request *q, uint64_t length)
{
    struct virtio_blk_discard_write_zeroes s;
    if (length != sizeof s)
        return refuse(b, VIRTIO_BLK_S_IOERR);
    iov_read(q->chain->iov, q->chain->readable, sizeof(struct virtio_blk_outhdr), &s, sizeof s);
    uint32_t sectors = le32toh(s.num_sectors), flags = le32toh(s.flags);
    uint32_t allowed = q->order.type == VIRTIO_BLK_T_WRITE_ZEROES ? VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP : 0;
    if ((flags & ~allowed) != 0)
        return refuse(b, VIRTIO_BLK_S_UNSUPP);
    uint64_t sector = le64toh(s.sector);
    if (disk_read_only(b->disk) || sectors > BLOCK_ZERO_SECTORS_MAX || sector > DISK_BYTES_MAX / DISK_SECTOR ||
        !disk_has(b->disk, sector * DISK_SECTOR, (uint64_t)sectors * DISK_SECTOR))
        return refuse(b, VIRTIO_BLK_S_IOERR);
    q->order.offset = sector * DISK_SECTOR;
    q->order.length = (uint64_t)sectors * DISK_SECTOR;
    q->order.release = q->order.type == VIRTIO_BLK_T_DISCARD || flags != 0;
    return VIRTIO_BLK_S_OK;
}

static uint8_t check_transfer(struct block *b, struct request *q, uint64_t sector, uint64_t length)
{
    bool writes = q->order.type == VIRTIO_BLK_T_OUT;
    if ((writes && disk_read_only(b->disk)) || length > BLOCK_REQUEST_MAX || sector > DISK_BYTES_MAX / DISK_SECTOR ||
        !disk_has(b->disk, sector * DISK_SECTOR, length))
        return refuse(b, VIRTIO_BLK_S_IOERR);
    q->order.offset = sector * DISK_SECTOR;
    q->order.length = length;
    return VIRTIO_BLK_S_OK;
}

// The request's header, copied, and what it asks for.  VIRTIO_BLK_S_OK: for the worker.  Sets q->written of what needs none.
static uint8_t check(struct block *b, struct request *q, bool *ret_done)
{
    const struct virtq_chain *c = q->chain;
    struct virtio_blk_outhdr h;
    if (iov_read(c->iov, c->readable, 0, &h, sizeof h) < sizeof h)
        return refuse(b, VIRTIO_BLK_S_IOERR);
    uint64_t out = c->readable_bytes - sizeof h, in = c->writable_bytes - STATUS_BYTES;
    q->order = (struct order){.type = le32toh(h.type)};
    if (b->disk == NULL && q->order.type != VIRTIO_BLK_T_GET_ID)
        return refuse(b, VIRTIO_BLK_S_IOERR);
    switch (q->order.type) {
    case VIRTIO_BLK_T_IN:
        return check_transfer(b, q, le64toh(h.sector), in);
    case VIRTIO_BLK_T_OUT:
        return check_transfer(b, q, le64toh(h.sector), out);
    case VIRTIO_BLK_T_FLUSH:
        return VIRTIO_BLK_S_OK;
    case VIRTIO_BLK_T_GET_ID:
        q->written = iov_write(c->iov + c->readable, c->writable, 0, b->id, in < sizeof b->id ? in : sizeof b->id);
        *ret_done = true;
        return VIRTIO_BLK_S_OK;
    case VIRTIO_BLK_T_DISCARD:
    case VIRTIO_BLK_T_WRITE_ZEROES:
        return check_segment(b, q, out);
    default:
        return refuse(b, VIRTIO_BLK_S_UNSUPP);
    }
}

// Reads what is in the page cache already, if nothing is under way that it might have to come after.
static bool read_at_once(struct block *b, struct request *q)
{
    struct iovec data[VIRTQ_SIZE_MAX];
    if (q->order.type != VIRTIO_BLK_T_IN || q->order.length > READ_AT_ONCE_MAX || b->under_way > 0 ||
        throttle_wait(&b->throttle, THROTTLE_READS, mono_ns()) > 0)
        return false;
    const struct disk_moved before = disk_moved(b->disk);
    size_t parts = iov_part(q->chain->iov + q->chain->readable, q->chain->writable, 0, q->order.length, data);
    q->result = disk_read(b->disk, q->order.offset, data, parts, true, &q->written);
    if (q->result < 0)
        return false;
    pay(q, &before);
    q->status = VIRTIO_BLK_S_OK;
    return true;
}

// False: the device is broken.
static bool take_request(struct block *b, struct request *q)
{
    bool done = false;
    if (q->chain->writable_bytes < STATUS_BYTES) {
        virtio_break(b->mmio, "a disk request has no room for its status");
        release(q);
        return false;
    }
    q->written = 0;
    q->result = 0;
    q->status = check(b, q, &done);
    if (q->status == VIRTIO_BLK_S_OK && !done) {
        done = read_at_once(b, q);
        if (!done) {
            q->generation = b->generation;
            q->written = 0;
            b->under_way++;
            workers_submit(b->workers, &q->job);
            return true;
        }
        count(b, q);
    }
    answer(b, q);
    release(q);
    return true;
}

static void on_queue(void *device, unsigned queue)
{
    struct block *b = device;
    unsigned budget = VIRTIO_BUDGET;
    bool more = true;
    for (; more && budget > 0 && b->free != NULL; budget--) {
        struct request *q = b->free;
        if (virtio_pop(b->mmio, queue, q->chain) <= 0) {
            more = false;
            break;
        }
        b->free = q->next_free;
        more = take_request(b, q);
    }
    b->starved = more && b->free == NULL;
    if (more && budget == 0 && !b->starved)
        virtio_again(b->mmio, queue);
    virtio_signal(b->mmio, queue);
}

// ---- stopping the worker ----

// From here until let_go the worker touches neither disk nor guest.
static void hold(struct block *b, bool forget)
{
    pthread_mutex_lock(&b->gate);
    b->held = true;
    if (forget)
        b->generation++;
    while (b->busy)
        pthread_cond_wait(&b->idle, &b->gate);
    pthread_mutex_unlock(&b->gate);
}

static void let_go(struct block *b)
{
    pthread_mutex_lock(&b->gate);
    b->held = false;
    pthread_cond_broadcast(&b->idle);
    pthread_mutex_unlock(&b->gate);
}

static void on_reset(void *device)
{
    struct block *b = device;
    hold(b, true);
    let_go(b);
    b->starved = false;
}

int block_grow(struct block *block, uint64_t bytes)
{
    if (block->disk == NULL)
        return -ENODEV;
    virtio_lock(block->mmio);
    hold(block, false);
    int r = disk_grow(block->disk, bytes);
    let_go(block);
    if (r == 0) {
        block->config.capacity = htole64(bytes / DISK_SECTOR);
        virtio_config_changed(block->mmio);
    }
    virtio_unlock(block->mmio);
    return r;
}

void block_announce(struct block *block)
{
    virtio_lock(block->mmio);
    virtio_config_changed(block->mmio);
    virtio_unlock(block->mmio);
}

// ---- life ----

static bool is_fixed(const struct block *b)
{
    return b->disk != NULL && disk_read_only(b->disk);
}

static const struct virtio_device_ops block_ops = {.id = VIRTIO_ID_BLOCK, .queue_ready = on_queue, .reset = on_reset};

static void fill_config(struct block *b)
{
    b->config = (struct virtio_blk_config){
        .capacity = htole64(b->disk != NULL ? disk_bytes(b->disk) / DISK_SECTOR : 0),
        .size_max = htole32(BLOCK_SEGMENT_BYTES),
        .seg_max = htole32(BLOCK_SEGMENTS_MAX),
        .blk_size = htole32(DISK_SECTOR),
        .physical_block_exp = PHYSICAL_EXPONENT,
        .min_io_size = htole16(BLOCK_SECTORS),
        .num_queues = htole16(1),
    };
    if (is_fixed(b))
        return;
    b->config.max_discard_sectors = b->config.max_write_zeroes_sectors = htole32(BLOCK_ZERO_SECTORS_MAX);
    b->config.max_discard_seg = b->config.max_write_zeroes_seg = htole32(1);
    b->config.discard_sector_alignment = htole32(BLOCK_SECTORS);
    b->config.write_zeroes_may_unmap = 1;
}

static void make_requests(struct block *b)
{
    for (unsigned i = 0; i < BLOCK_QUEUE_SIZE; i++) {
        struct request *q = &b->request[i];
        q->job = (struct job){.run = run, .finish = finish};
        q->block = b;
        q->chain = &b->chain[i];
        release(q);
    }
}

static void make_gate(struct block *b)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&b->idle, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&b->gate, NULL);
}

int block_new(struct loop *loop, const struct guest_memory *memory, const struct block_config *config, struct block **ret_block)
{
    struct block *b = calloc(1, sizeof *b);
    if (b == NULL)
        return -ENOMEM;
    make_gate(b);
    b->disk = config->disk;
    b->throttle = (struct throttle){.bytes_per_s = config->bytes_per_s, .ops_per_s = config->ops_per_s};
    memcpy(b->id, config->id, strnlen(config->id, sizeof b->id));
    fill_config(b);
    bool fixed = is_fixed(b);
    struct virtio_device device = {
        .ops = &block_ops,
        .state = b,
        .features = BIT(VIRTIO_BLK_F_SIZE_MAX) | BIT(VIRTIO_BLK_F_SEG_MAX) | BIT(VIRTIO_BLK_F_BLK_SIZE) |
                    BIT(VIRTIO_BLK_F_FLUSH) | BIT(VIRTIO_BLK_F_TOPOLOGY) |
                    (fixed ? BIT(VIRTIO_BLK_F_RO) : BIT(VIRTIO_BLK_F_DISCARD) | BIT(VIRTIO_BLK_F_WRITE_ZEROES)),
        .queues = 1,
        .queue_size = BLOCK_QUEUE_SIZE,
        .config = &b->config,
        .config_bytes = sizeof b->config,
    };
    b->request = calloc(BLOCK_QUEUE_SIZE, sizeof *b->request);
    b->chain = calloc(BLOCK_QUEUE_SIZE, sizeof *b->chain);
    int r = b->request == NULL || b->chain == NULL ? -ENOMEM : 0;
    if (r == 0) {
        make_requests(b);
        r = b->disk != NULL ? workers_new(loop, 1, &b->workers) : 0;
    }
    if (r == 0)
        r = virtio_mmio_new(loop, memory, &device, &b->mmio);
    if (r < 0) {
        block_free(b);
        return r;
    }
    *ret_block = b;
    return 0;
}

struct block *block_free(struct block *block)
{
    if (block == NULL)
        return NULL;
    hold(block, true);  // whoever waits for his turn does so no longer
    let_go(block);
    workers_free(block->workers);
    virtio_mmio_free(block->mmio);
    pthread_cond_destroy(&block->idle);
    pthread_mutex_destroy(&block->gate);
    free(block->request);
    free(block->chain);
    free(block);
    return NULL;
}

struct virtio_mmio *block_mmio(struct block *block)
{
    return block->mmio;
}

void block_counters(struct block *block, struct block_counters *ret_counters)
{
    virtio_lock(block->mmio);
    *ret_counters = block->counters;
    virtio_unlock(block->mmio);
}

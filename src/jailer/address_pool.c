#include "jailer/address_pool.h"

#include "base/num.h"
#include "jailer/slots.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Behind the bytes of the uid ranges: number N, counted from 0.0.0.0, is the /30 of which it is.
#define LOCKS_OFFSET (UINT64_C(1) << 32)

struct address_pool {
    struct address_range range;
    struct slots *slots;
};

static uint32_t range_last(const struct address_range *r)
{
    return r->first | (uint32_t)(UINT32_MAX >> r->prefix);
}

int address_range_parse(const char *text, struct address_range *ret_range)
{
    char address[INET_ADDRSTRLEN];
    struct in_addr in;
    uint64_t prefix;
    if (strcmp(text, "none") == 0) {
        *ret_range = (struct address_range){0};
        return 0;
    }
    const char *slash = strchr(text, '/');
    if (slash == NULL || (size_t)(slash - text) >= sizeof address ||
        parse_u64(slash + 1, ADDRESS_POOL_PREFIX_MIN, ADDRESS_POOL_PREFIX_MAX, &prefix) < 0)
        return -EINVAL;
    snprintf(address, sizeof address, "%.*s", (int)(slash - text), text);
    if (inet_pton(AF_INET, address, &in) != 1)
        return -EINVAL;
    const struct address_range range = {.first = ntohl(in.s_addr), .prefix = (uint32_t)prefix};
    uint32_t net = range.first >> 24;
    if ((range.first & (UINT32_MAX >> prefix)) != 0 || net == 0 || net == 127 || net >= 224)
        return -EINVAL;
    *ret_range = range;
    return 0;
}

bool address_ranges_meet(const struct address_range *a, const struct address_range *b)
{
    return a->prefix != 0 && b->prefix != 0 && a->first <= range_last(b) && b->first <= range_last(a);
}

static bool left_out(uint32_t address)
{
    uint32_t third = address >> 8 & 255;
    return address >> 16 == 0xa9fe && (third == 0 || third == 169 || third == 255);
}

static uint32_t first_of(const struct address_pool *p, unsigned slot)
{
    return p->range.first + (slot << (32 - LINE_PREFIX));
}

int address_pool_open(const struct address_range *range, struct address_pool **ret_pool)
{
    struct address_pool *p = calloc(1, sizeof *p);
    if (p == NULL)
        return -ENOMEM;
    p->range = *range;
    unsigned count = 1U << (LINE_PREFIX - range->prefix);
    int r = slots_open(LOCKS_OFFSET + (range->first >> (32 - LINE_PREFIX)), count, &p->slots);
    if (r < 0) {
        free(p);
        return r;
    }
    for (unsigned slot = 0; slot < count; slot++)
        if (left_out(first_of(p, slot)))
            slots_exclude(p->slots, slot);
    *ret_pool = p;
    return 0;
}

struct address_pool *address_pool_close(struct address_pool *pool)
{
    if (pool != NULL) {
        pool->slots = slots_close(pool->slots);
        free(pool);
    }
    return NULL;
}

static void put_address(uint32_t address, uint8_t bytes[4])
{
    const uint32_t network_order = htonl(address);
    memcpy(bytes, &network_order, sizeof network_order);
}

int address_pool_take(struct address_pool *pool, unsigned *ret_slot, struct jail_line *ret_line)
{
    int r = slots_take(pool->slots, ret_slot);
    if (r < 0)
        return r == -EAGAIN ? -EADDRNOTAVAIL : r;
    uint32_t first = first_of(pool, *ret_slot);
    put_address(first + 1, ret_line->host);
    put_address(first + 2, ret_line->guest);
    ret_line->prefix = LINE_PREFIX;
    return 0;
}

void address_pool_give(struct address_pool *pool, unsigned slot)
{
    slots_give(pool->slots, slot);
}

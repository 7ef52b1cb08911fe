#include "vmm/virtio/vsock_table.h"

#include "base/cleanup.h"

#include <stdlib.h>

static struct vsock_conn **bucket_of(struct vsock_table *table, uint32_t host_port, uint32_t guest_port)
{
    uint32_t mixed = (host_port * UINT32_C(2654435761)) ^ (guest_port * UINT32_C(2246822519));
    return &table->bucket[mixed >> 24];
}

void vsock_table_init(struct vsock_table *table)
{
    *table = (struct vsock_table){.next_host_port = VSOCK_HOST_PORT_FIRST};
    TAILQ_INIT(&table->all);
    TAILQ_INIT(&table->ready);
}

// The oldest connection that only waits for the guest to confirm its end.
static struct vsock_conn *oldest_closing(const struct vsock_table *table, bool by_guest)
{
    struct vsock_conn *c;
    TAILQ_FOREACH(c, &table->all, in_all)
    {
        if (c->stage == VSOCK_CLOSING && !c->ready && (!by_guest || c->by_guest))
            return c;
    }
    return NULL;
}

static bool is_full(const struct vsock_table *table, bool by_guest)
{
    return table->count >= VSOCK_CONNECTIONS_MAX || (by_guest && table->by_guest >= VSOCK_GUEST_CONNECTIONS_MAX);
}

bool vsock_table_has_room(const struct vsock_table *table, bool by_guest)
{
    return !is_full(table, by_guest) || oldest_closing(table, by_guest) != NULL;
}

struct vsock_conn *vsock_table_add(struct vsock_table *table, bool by_guest)
{
    if (is_full(table, by_guest)) {
        struct vsock_conn *old = oldest_closing(table, by_guest);
        if (old == NULL)
            return NULL;
        vsock_table_remove(table, old);
    }
    struct vsock_conn *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->fd = -1;
    c->by_guest = by_guest;
    TAILQ_INSERT_TAIL(&table->all, c, in_all);
    table->count++;
    table->by_guest += by_guest;
    return c;
}

void vsock_conn_close(struct vsock_conn *conn)
{
    conn->watch = watch_remove(conn->watch);
    close_fd(&conn->fd);
    free(take_ptr(&conn->kept));
    conn->kept_len = 0;
    conn->readable = false;
}

static void unname(struct vsock_table *table, struct vsock_conn *conn)
{
    if (!conn->in_bucket)
        return;
    struct vsock_conn **at = bucket_of(table, conn->host_port, conn->guest_port);
    while (*at != conn)
        at = &(*at)->next_in_bucket;
    *at = conn->next_in_bucket;
    conn->in_bucket = false;
}

void vsock_table_remove(struct vsock_table *table, struct vsock_conn *conn)
{
    vsock_conn_close(conn);
    vsock_table_unready(table, conn);
    unname(table, conn);
    TAILQ_REMOVE(&table->all, conn, in_all);
    table->count--;
    table->by_guest -= conn->by_guest;
    free(conn);
}

void vsock_table_clear(struct vsock_table *table)
{
    struct vsock_conn *c;
    while ((c = TAILQ_FIRST(&table->all)) != NULL)
        vsock_table_remove(table, c);
}

void vsock_table_name(struct vsock_table *table, struct vsock_conn *conn, uint32_t host_port, uint32_t guest_port)
{
    conn->host_port = host_port;
    conn->guest_port = guest_port;
    struct vsock_conn **at = bucket_of(table, host_port, guest_port);
    conn->next_in_bucket = *at;
    *at = conn;
    conn->in_bucket = true;
}

struct vsock_conn *vsock_table_find(const struct vsock_table *table, uint32_t host_port, uint32_t guest_port)
{
    struct vsock_conn *c = *bucket_of((struct vsock_table *)table, host_port, guest_port);
    while (c != NULL && (c->host_port != host_port || c->guest_port != guest_port))
        c = c->next_in_bucket;
    return c;
}

uint32_t vsock_table_host_port(struct vsock_table *table, uint32_t guest_port)
{
    uint32_t port;
    do {
        port = table->next_host_port++;
        if (table->next_host_port < VSOCK_HOST_PORT_FIRST || table->next_host_port == UINT32_MAX)
            table->next_host_port = VSOCK_HOST_PORT_FIRST;
    } while (vsock_table_find(table, port, guest_port) != NULL);
    return port;
}

void vsock_table_ready(struct vsock_table *table, struct vsock_conn *conn)
{
    if (conn->ready)
        return;
    conn->ready = true;
    TAILQ_INSERT_TAIL(&table->ready, conn, in_ready);
}

void vsock_table_unready(struct vsock_table *table, struct vsock_conn *conn)
{
    if (!conn->ready)
        return;
    conn->ready = false;
    TAILQ_REMOVE(&table->ready, conn, in_ready);
}

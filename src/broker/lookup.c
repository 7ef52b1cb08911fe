#include "broker/lookup.h"

#include "base/clock.h"
#include "wire/host_name.h"

#include <ares.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

// A name: being resolved (pending), then remembered until `until_ns`, or freed at once.
struct name {
    LIST_ENTRY(name) all;
    struct lookups *lookups;
    LIST_HEAD(waiters, waiter) waiters;
    bool pending;
    uint64_t until_ns;
    unsigned n;
    struct ip_addr addr[LOOKUP_ADDRESSES_MAX];
    char text[HOST_NAME_BYTES_MAX + 1];
};

struct waiter {
    LIST_ENTRY(waiter) all;
    lookup_fn *fn;
    void *arg;
    struct waiter **slot;  // where its owner keeps it: cleared before fn is called
};

enum { BUCKETS = 256, SOCKETS_MAX = 64, TRY_MS = 2000, TRIES = 3 };

struct lookups {
    struct broker *broker;
    ares_channel channel;
    struct event *timer;
    LIST_HEAD(names_of_bucket, name) bucket[BUCKETS];
    unsigned pending, remembered;
    bool ending;
    struct {
        int fd;
        struct event *event;
    } socket[SOCKETS_MAX];
};

static unsigned bucket_of(const char *text)
{
    unsigned h = 2166136261;
    for (; *text != '\0'; text++)
        h = (h ^ (unsigned char)*text) * 16777619;
    return h % BUCKETS;
}

static void name_free(struct name *name)
{
    LIST_REMOVE(name, all);
    if (!name->pending)
        name->lookups->remembered--;
    free(name);
}

// ---- c-ares on libevent ----

static void arm_timer(struct lookups *l)
{
    struct timeval t;
    struct timeval *next = ares_timeout(l->channel, NULL, &t);
    if (next != NULL)
        event_add(l->timer, next);
    else
        event_del(l->timer);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct lookups *l = arg;
    (void)fd;
    (void)what;
    ares_process_fd(l->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    arm_timer(l);
}

static void on_socket(evutil_socket_t fd, short what, void *arg)
{
    struct lookups *l = arg;
    ares_process_fd(l->channel, (what & EV_READ) != 0 ? fd : ARES_SOCKET_BAD, (what & EV_WRITE) != 0 ? fd : ARES_SOCKET_BAD);
    arm_timer(l);
}

static void on_interest(void *arg, ares_socket_t fd, int readable, int writable)
{
    struct lookups *l = arg;
    unsigned place = SOCKETS_MAX, empty = SOCKETS_MAX;
    for (unsigned i = 0; i < SOCKETS_MAX; i++) {
        if (l->socket[i].event != NULL && l->socket[i].fd == fd)
            place = i;
        else if (l->socket[i].event == NULL && empty == SOCKETS_MAX)
            empty = i;
    }
    if (place != SOCKETS_MAX) {
        event_free(l->socket[place].event);
        l->socket[place].event = NULL;
    } else {
        place = empty;
    }
    if ((!readable && !writable) || place == SOCKETS_MAX)
        return;  // without a place the query times out
    short what = (short)((readable ? EV_READ : 0) | (writable ? EV_WRITE : 0) | EV_PERSIST);
    struct event *event = event_new(l->broker->base, fd, what, on_socket, l);
    if (event == NULL || event_add(event, NULL) < 0)
        return;
    l->socket[place].fd = fd;
    l->socket[place].event = event;
}

// ---- answers ----

static void tell(struct name *name, int error)
{
    // A callback may start another lookup or cancel one of these waiters, so each is taken off before it is told.
    struct name copy;
    copy.n = name->n;
    memcpy(copy.addr, name->addr, sizeof copy.addr);
    struct waiter *w;
    while ((w = LIST_FIRST(&name->waiters)) != NULL) {
        LIST_REMOVE(w, all);
        lookup_fn *fn = w->fn;
        void *arg = w->arg;
        *w->slot = NULL;
        free(w);
        fn(arg, error, copy.addr, error == 0 ? copy.n : 0);
    }
}

static void take(struct name *name, const struct ares_addrinfo_node *node, int family)
{
    for (; node != NULL && name->n < LOOKUP_ADDRESSES_MAX; node = node->ai_next) {
        if (node->ai_family != family)
            continue;
        struct ip_addr *a = &name->addr[name->n];
        *a = (struct ip_addr){.v6 = family == AF_INET6};
        if (family == AF_INET6)
            memcpy(a->bytes, &((const struct sockaddr_in6 *)(const void *)node->ai_addr)->sin6_addr, 16);
        else
            memcpy(a->bytes, &((const struct sockaddr_in *)(const void *)node->ai_addr)->sin_addr, 4);
        name->n++;
    }
}

static unsigned least_ttl(const struct ares_addrinfo_node *node)
{
    int least = LOOKUP_TTL_MAX;
    for (; node != NULL; node = node->ai_next)
        if (node->ai_ttl < least)
            least = node->ai_ttl;
    return least > 0 ? (unsigned)least : 0;
}

static int error_of(int status)
{
    switch (status) {
    case ARES_ENOTFOUND:
    case ARES_ENODATA:
        return -ENOENT;
    case ARES_ETIMEOUT:
        return -ETIMEDOUT;
    default:
        return -EIO;
    }
}

static void on_answer(void *arg, int status, int timeouts, struct ares_addrinfo *info)
{
    struct name *name = arg;
    struct lookups *l = name->lookups;
    (void)timeouts;
    unsigned ttl = 0;
    if (status == ARES_SUCCESS && info != NULL) {
        take(name, info->nodes, AF_INET);
        take(name, info->nodes, AF_INET6);
        ttl = least_ttl(info->nodes);
    }
    if (info != NULL)
        ares_freeaddrinfo(info);
    name->pending = false;
    l->pending--;
    l->remembered++;
    if (l->ending) {
        struct waiter *w;
        while ((w = LIST_FIRST(&name->waiters)) != NULL) {
            LIST_REMOVE(w, all);
            free(w);
        }
        name_free(name);
        return;
    }
    int error = status != ARES_SUCCESS ? error_of(status) : name->n == 0 ? -ENOENT : 0;
    name->until_ns = mono_ns() + ttl * NS_PER_S;
    // Told while it is still the name's only entry: a callback that asks again finds it, or has to wait for a new answer.
    bool keep = error == 0 && ttl > 0 && l->remembered <= LOOKUP_CACHE_MAX;
    if (keep) {
        tell(name, 0);
        return;
    }
    LIST_REMOVE(name, all);
    l->remembered--;
    tell(name, error);
    free(name);
}

// ---- asking ----

static struct name *find(struct lookups *l, const char *text)
{
    uint64_t now = mono_ns();
    struct name *name = LIST_FIRST(&l->bucket[bucket_of(text)]), *next;
    for (; name != NULL; name = next) {
        next = LIST_NEXT(name, all);
        if (!name->pending && name->until_ns <= now)
            name_free(name);
        else if (strcmp(name->text, text) == 0)
            return name;
    }
    return NULL;
}

static int add_waiter(struct name *name, lookup_fn *fn, void *arg, struct waiter **ret)
{
    struct waiter *w = calloc(1, sizeof *w);
    if (w == NULL)
        return -ENOMEM;
    *w = (struct waiter){.fn = fn, .arg = arg, .slot = ret};
    LIST_INSERT_HEAD(&name->waiters, w, all);
    *ret = w;
    return 0;
}

int lookup_start(struct broker *b, const char *text, lookup_fn *fn, void *arg, struct waiter **slot)
{
    struct lookups *l = b->lookups;
    struct name *name = find(l, text);
    if (name != NULL && !name->pending) {
        struct ip_addr addrs[LOOKUP_ADDRESSES_MAX];
        memcpy(addrs, name->addr, sizeof addrs);
        *slot = NULL;
        fn(arg, 0, addrs, name->n);
        return 0;
    }
    if (name != NULL)
        return add_waiter(name, fn, arg, slot);
    if (l->pending >= LOOKUPS_MAX)
        return -EAGAIN;
    name = calloc(1, sizeof *name);
    if (name == NULL)
        return -ENOMEM;
    name->lookups = l;
    name->pending = true;
    strncpy(name->text, text, sizeof name->text - 1);
    if (add_waiter(name, fn, arg, slot) < 0) {
        free(name);
        return -ENOMEM;
    }
    LIST_INSERT_HEAD(&l->bucket[bucket_of(text)], name, all);
    l->pending++;
    static const struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC, .ai_flags = ARES_AI_NOSORT};
    ares_getaddrinfo(l->channel, name->text, NULL, &hints, on_answer, name);
    arm_timer(l);
    return 0;
}

struct waiter *lookup_cancel(struct waiter *w)
{
    if (w != NULL) {
        LIST_REMOVE(w, all);
        free(w);
    }
    return NULL;
}

// ---- life ----

int lookups_new(struct broker *b, struct lookups **ret, struct err *err)
{
    struct lookups *l = calloc(1, sizeof *l);
    if (l == NULL)
        return err_set(err, -ENOMEM, "no memory");
    l->broker = b;
    l->timer = evtimer_new(b->base, on_timer, l);
    struct ares_options options = {.flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES,
                                   .timeout = TRY_MS,
                                   .tries = TRIES,
                                   .lookups = (char[]){"b"},
                                   .sock_state_cb = on_interest,
                                   .sock_state_cb_data = l};
    int mask = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS | ARES_OPT_SOCK_STATE_CB;
    int status = l->timer == NULL ? ARES_ENOMEM : ares_library_init(ARES_LIB_INIT_ALL);
    if (status == ARES_SUCCESS)
        status = ares_init_options(&l->channel, &options, mask);
    if (status != ARES_SUCCESS) {
        if (l->timer != NULL)
            event_free(l->timer);
        free(l);
        return err_set(err, -EINVAL, "names cannot be resolved: %s", ares_strerror(status));
    }
    if (b->config.resolver[0] != '\0')
        status = ares_set_servers_ports_csv(l->channel, b->config.resolver);
    if (status != ARES_SUCCESS) {
        lookups_free(l);
        return err_set(err, -EINVAL, "resolver is \"%.100s\": %s", b->config.resolver, ares_strerror(status));
    }
    *ret = l;
    return 0;
}

struct lookups *lookups_free(struct lookups *l)
{
    if (l == NULL)
        return NULL;
    l->ending = true;
    ares_destroy(l->channel);  // answers what is pending
    for (unsigned i = 0; i < BUCKETS; i++) {
        struct name *name;
        while ((name = LIST_FIRST(&l->bucket[i])) != NULL)
            name_free(name);
    }
    event_free(l->timer);
    free(l);
    return NULL;
}

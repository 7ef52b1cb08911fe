// The relay of a room without a network (docs/grants.md).  The host can dial into a loopback port here and nothing can be
// dialled from here.  So this listens on the Unix socket that clients use, and on a port; it says "ready PORT" on standard
// output, and "need" for each guest's connection that has no partner yet; the host dials in as often, and serves HTTP on what
// it dialled.  Bytes are copied both ways, and not looked at.  It ends with its standard input.
//
// Whoever else takes the port in between can talk to the broker, which it could do anyway.
#include "guest/host_api.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    PAIRS_MAX = 18,  // as many as the host serves
    PORT_FIRST = 20000,
    PORT_LAST = 59999,
    PORT_TRIES = 64,
    PIECE = 64 * 1024,
    FIXED = 3,  // standard input, the guest's socket, the host's
};

// Bytes on their way in one direction.
struct flow {
    char *bytes;
    size_t from, to;
    int ended;  // the source has; 2: the other side knows
};

struct pair {
    int guest, host;       // -1: none; a guest's without a host's has said "need"
    struct flow up, down;  // guest to host, host to guest
};

static struct pair pairs[PAIRS_MAX];

static void pair_end(struct pair *p)
{
    if (p->guest >= 0)
        close(p->guest);
    if (p->host >= 0)
        close(p->host);
    free(p->up.bytes);
    free(p->down.bytes);
    *p = (struct pair){.guest = -1, .host = -1};
}

static int listen_guest(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return -1;
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 64) < 0)
        return -1;
    return fd;
}

// A port of its own choice, so that two relays do not want the same.
static int listen_host(unsigned *ret_port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    for (int i = 0; fd >= 0 && i < PORT_TRIES; i++) {
        unsigned random = 0;
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            break;
        unsigned port = PORT_FIRST + random % (PORT_LAST - PORT_FIRST + 1);
        struct sockaddr_in a = {
            .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        if (bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 64) == 0) {
            *ret_port = port;
            return fd;
        }
    }
    return -1;
}

static void say(const char *line)
{
    if (write(STDOUT_FILENO, line, strlen(line)) < 0)
        exit(HOST_API_NO_LINE);
}

static struct pair *find(int guest, int host)
{
    for (int i = 0; i < PAIRS_MAX; i++)
        if ((pairs[i].guest >= 0) == guest && (pairs[i].host >= 0) == host)
            return &pairs[i];
    return NULL;
}

static void accept_guest(int listener)
{
    struct pair *p = find(0, 0);
    int fd = p != NULL ? accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
    if (fd < 0)
        return;
    p->guest = fd;
    p->up.bytes = malloc(PIECE);
    p->down.bytes = malloc(PIECE);
    if (p->up.bytes == NULL || p->down.bytes == NULL)
        pair_end(p);
    else
        say("need\n");
}

// One that nobody needs is closed.
static void accept_host(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct pair *p = find(1, 0);
    if (p == NULL)
        close(fd);
    else
        p->host = fd;
}

// Moves what it can.  -1: that connection is broken.
static int move(struct flow *f, int from, int to)
{
    if (f->from == f->to && !f->ended) {
        ssize_t n = read(from, f->bytes, PIECE);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        f->from = 0;
        f->to = (size_t)n;
        f->ended = n == 0;
    }
    if (f->from < f->to) {
        ssize_t n = write(to, f->bytes + f->from, f->to - f->from);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        f->from += (size_t)n;
    }
    if (f->ended == 1 && f->from == f->to) {
        shutdown(to, SHUT_WR);
        f->ended = 2;
    }
    return 0;
}

static void move_pair(struct pair *p)
{
    if (move(&p->up, p->guest, p->host) < 0 || move(&p->down, p->host, p->guest) < 0 ||
        (p->up.ended == 2 && p->down.ended == 2))
        pair_end(p);
}

// What to wait for: room for what is held, else bytes.
static short wanted(const struct flow *in, const struct flow *out)
{
    short events = 0;
    if (in->from == in->to && !in->ended)
        events |= POLLIN;
    if (out->from < out->to)
        events |= POLLOUT;
    return events;
}

// One that nothing is wanted of is not watched: its end would be reported again and again.
static struct pollfd watch_one(int fd, short events)
{
    return (struct pollfd){.fd = events != 0 ? fd : -1, .events = events};
}

static int watch(struct pollfd *polled)
{
    int n = FIXED;
    for (int i = 0; i < PAIRS_MAX; i++) {
        struct pair *p = &pairs[i];
        if (p->guest < 0 || p->host < 0)
            continue;
        polled[n++] = watch_one(p->guest, wanted(&p->up, &p->down));
        polled[n++] = watch_one(p->host, wanted(&p->down, &p->up));
    }
    return n;
}

static int serve(int guest, int host)
{
    struct pollfd polled[FIXED + 2 * PAIRS_MAX];
    char ignored[256];
    for (;;) {
        polled[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
        polled[1] = (struct pollfd){.fd = find(0, 0) != NULL ? guest : -1, .events = POLLIN};
        polled[2] = (struct pollfd){.fd = host, .events = POLLIN};
        if (poll(polled, (nfds_t)watch(polled), -1) < 0 && errno != EINTR)
            return HOST_API_NO_LINE;
        if (polled[0].revents != 0 && read(STDIN_FILENO, ignored, sizeof ignored) <= 0)
            return 0;
        for (int i = 0; i < PAIRS_MAX; i++)
            if (pairs[i].guest >= 0 && pairs[i].host >= 0)
                move_pair(&pairs[i]);
        if (polled[1].revents != 0)
            accept_guest(guest);
        if (polled[2].revents != 0)
            accept_host(host);
    }
}

int host_api_relay(const char *socket_path)
{
    unsigned port = 0;
    for (int i = 0; i < PAIRS_MAX; i++)
        pairs[i] = (struct pair){.guest = -1, .host = -1};
    int guest = listen_guest(socket_path), host = listen_host(&port);
    if (guest < 0 || host < 0) {
        fprintf(stderr, "host-api: the relay cannot listen: %s\n", strerror(errno));
        return HOST_API_NO_LINE;
    }
    char line[32];
    snprintf(line, sizeof line, "ready %u\n", port);
    say(line);
    return serve(guest, host);
}

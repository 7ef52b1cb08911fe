// Load for bench/broker: an origin, and clients of an HTTP proxy.  One thread a connection, blocking sockets.
//
//     proxy-load serve ADDRESS PLAIN_PORT TLS_PORT CERT KEY        GET /N is answered with N bytes, on both ports
//     proxy-load tunnel PROXY PORT AUTH TARGET CONNS SECONDS       CONNECT to TARGET (plain), read as fast as it comes
//     proxy-load connect PROXY PORT AUTH TARGET CONNS SECONDS      a connection, a CONNECT and one small exchange each time
//     proxy-load request PROXY PORT AUTH URL CONNS SECONDS         GET URL, again and again over kept connections
//     proxy-load direct ADDRESS PORT - PATH CONNS SECONDS          the same from the origin itself, over TLS
//     proxy-load line SOCKETS 0 - PATH CONNS SECONDS               the same over Unix sockets, named with commas between
//     proxy-load idle PROXY PORT AUTH TARGET CONNS                 opens tunnels, says "ready", holds them until stdin ends
//
// Each client prints one JSON object.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 64 * 1024, SAMPLES_MAX = 1 << 20 };

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct sockaddr_in address(const char *host, const char *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1)
        die(host);
    return a;
}

static void start(void *(*fn)(void *), void *arg)
{
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 * 1024);
    if (pthread_create(&thread, &attr, fn, arg) != 0)
        die("pthread_create");
    pthread_detach(thread);
}

// ---- the origin ----

static SSL_CTX *server_tls;

struct accepted {
    int fd;
    bool tls;
};

static bool put(int fd, SSL *ssl, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t sent = ssl != NULL ? SSL_write(ssl, bytes, (int)n) : send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        bytes += sent;
        n -= (size_t)sent;
    }
    return true;
}

static bool answer(int fd, SSL *ssl, const char *head)
{
    static const char block[BLOCK];
    unsigned long long n = 0;
    const char *path = strstr(head, "GET /");
    if (path != NULL)
        n = strtoull(path + 5, NULL, 10);
    char reply[BLOCK];
    int len = snprintf(reply, sizeof reply, "HTTP/1.1 200 OK\r\nContent-Length: %llu\r\n\r\n", n);
    if (n < 1000) {  // in one piece with the head
        memset(reply + len, 'x', (size_t)n);
        return put(fd, ssl, reply, (size_t)len + (size_t)n);
    }
    bool good = put(fd, ssl, reply, (size_t)len);
    for (; good && n > 0; n -= n < BLOCK ? n : BLOCK)
        good = put(fd, ssl, block, n < BLOCK ? (size_t)n : BLOCK);
    return good;
}

static ssize_t get(int fd, SSL *ssl, char *bytes, size_t n)
{
    return ssl != NULL ? SSL_read(ssl, bytes, (int)n) : read(fd, bytes, n);
}

// A chunked body of zeros: thrown away up to its end.
static bool discard(int fd, SSL *ssl, const char *head)
{
    static _Thread_local char block[BLOCK + 8];
    static const char end[] = "0\r\n\r\n", more[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (strcasestr(head, "expect:") != NULL && !put(fd, ssl, more, sizeof more - 1))
        return false;
    size_t kept = 0;
    for (;;) {
        ssize_t n = get(fd, ssl, block + kept, BLOCK);
        if (n <= 0)
            return false;
        size_t have = kept + (size_t)n;
        if (have >= 5 && memcmp(block + have - 5, end, 5) == 0)
            return put(fd, ssl, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 38);
        kept = have < 4 ? have : 4;
        memmove(block, block + have - kept, kept);
    }
}

static void *serve_one(void *arg)
{
    struct accepted a = *(struct accepted *)arg;
    free(arg);
    char head[8192];
    size_t n = 0;
    SSL *ssl = NULL;
    setsockopt(a.fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (a.tls) {
        ssl = SSL_new(server_tls);
        SSL_set_fd(ssl, a.fd);
        if (SSL_accept(ssl) != 1)
            goto out;
    }
    for (;;) {
        ssize_t got = get(a.fd, ssl, head + n, sizeof head - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
        head[n] = '\0';
        if (strstr(head, "\r\n\r\n") == NULL)
            continue;
        if (strncmp(head, "PUT", 3) == 0 ? !discard(a.fd, ssl, head) : !answer(a.fd, ssl, head))
            break;
        n = 0;
    }
out:
    SSL_free(ssl);
    close(a.fd);
    return NULL;
}

struct listening {
    int fd;
    bool tls;
};

static void *accept_all(void *arg)
{
    struct listening l = *(struct listening *)arg;
    for (;;) {
        int fd = accept(l.fd, NULL, NULL);
        if (fd < 0)
            die("accept");
        struct accepted *a = malloc(sizeof *a);
        *a = (struct accepted){fd, l.tls};
        start(serve_one, a);
    }
    return NULL;
}

static int listen_on(const char *host, const char *port)
{
    struct sockaddr_in a = address(host, port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 4096) < 0)
        die("listen");
    return fd;
}

static int serve(char **v)
{
    server_tls = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_chain_file(server_tls, v[3]) != 1 ||
        SSL_CTX_use_PrivateKey_file(server_tls, v[4], SSL_FILETYPE_PEM) != 1)
        die(v[3]);
    static struct listening plain, tls;
    plain = (struct listening){listen_on(v[0], v[1]), false};
    tls = (struct listening){listen_on(v[0], v[2]), true};
    start(accept_all, &plain);
    printf("ready\n");
    fflush(stdout);
    accept_all(&tls);
    return 0;
}

// ---- clients ----

static struct sockaddr_in proxy;
static const char *auth, *target;
static double ends;
static atomic_ullong bytes_read, done, failed;
static atomic_uint samples;
static float sample[SAMPLES_MAX];

static int connect_proxy(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (fd < 0 || connect(fd, (struct sockaddr *)&proxy, sizeof proxy) < 0)
        die("connect");
    return fd;
}

static void record(double seconds)
{
    unsigned i = atomic_fetch_add(&samples, 1);
    if (i < SAMPLES_MAX)
        sample[i] = (float)seconds;
}

// Sends a request, and reads its head and `body` bytes.  Whether the status was 200.
static bool exchange(int fd, const char *request, size_t body)
{
    char reply[8192];
    size_t n = 0;
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0)
        return false;
    for (;;) {
        ssize_t got = read(fd, reply + n, sizeof reply - 1 - n);
        if (got <= 0)
            return false;
        n += (size_t)got;
        reply[n] = '\0';
        const char *end = strstr(reply, "\r\n\r\n");
        if (end != NULL && n >= (size_t)(end + 4 - reply) + body)
            return strncmp(reply + 8, " 200", 4) == 0;
    }
}

static bool open_tunnel(int fd)
{
    char request[1024];
    snprintf(request, sizeof request, "CONNECT %s HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: Basic %s\r\n\r\n", target,
             target, auth);
    return exchange(fd, request, 0);
}

static void *tunnel(void *arg)
{
    (void)arg;
    static const char request[] = "GET /1000000000000 HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd = connect_proxy();
    char *block = malloc(4 * BLOCK);
    if (!open_tunnel(fd) || send(fd, request, sizeof request - 1, MSG_NOSIGNAL) < 0) {
        atomic_fetch_add(&failed, 1);
        return NULL;
    }
    while (now() < ends) {
        ssize_t got = read(fd, block, 4 * BLOCK);
        if (got <= 0)
            break;
        atomic_fetch_add(&bytes_read, (unsigned long long)got);
    }
    return NULL;
}

static void *connects(void *arg)
{
    (void)arg;
    while (now() < ends) {
        double began = now();
        int fd = connect_proxy();
        if (open_tunnel(fd) && exchange(fd, "GET /2 HTTP/1.1\r\nHost: x\r\n\r\n", 2))
            atomic_fetch_add(&done, 1);
        else
            atomic_fetch_add(&failed, 1);
        record(now() - began);
        struct linger linger = {1, 0};  // no port is left waiting
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        close(fd);
    }
    return NULL;
}

static void *requests(void *arg)
{
    (void)arg;
    char request[1024];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic %s\r\n\r\n", target, auth);
    int fd = connect_proxy();
    while (now() < ends) {
        double began = now();
        if (exchange(fd, request, 2)) {
            atomic_fetch_add(&done, 1);
        } else {
            atomic_fetch_add(&failed, 1);
            close(fd);
            fd = connect_proxy();
        }
        record(now() - began);
    }
    return NULL;
}

// ---- the same request to an origin, and over the lines of granted sandboxes ----

static char *lines;
static atomic_uint next_line;

static int connect_line(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char copy[8192], *rest = NULL, *path;
    unsigned n = 1;
    snprintf(copy, sizeof copy, "%s", lines);
    for (const char *c = copy; *c != '\0'; c++)
        n += *c == ',';
    unsigned place = atomic_fetch_add(&next_line, 1) % n;
    path = strtok_r(copy, ",", &rest);
    while (place-- > 0)
        path = strtok_r(NULL, ",", &rest);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        die(path);
    return fd;
}

// Until the time is up; `ssl` is NULL without TLS.
static void request_all(int fd, SSL *ssl)
{
    char request[1024], reply[8192];
    int len = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", target);
    while (now() < ends) {
        double began = now();
        size_t n = 0;
        const char *end = NULL;
        if (!put(fd, ssl, request, (size_t)len))
            break;
        while (end == NULL || n < (size_t)(end + 4 - reply) + 2) {
            ssize_t got = get(fd, ssl, reply + n, sizeof reply - 1 - n);
            if (got <= 0) {
                atomic_fetch_add(&failed, 1);
                return;
            }
            n += (size_t)got;
            reply[n] = '\0';
            end = strstr(reply, "\r\n\r\n");
        }
        atomic_fetch_add(strncmp(reply + 8, " 200", 4) == 0 ? &done : &failed, 1);
        record(now() - began);
    }
}

static void *line_requests(void *arg)
{
    (void)arg;
    int fd = connect_line();
    request_all(fd, NULL);
    close(fd);
    return NULL;
}

static void *direct_requests(void *arg)
{
    (void)arg;
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    int fd = connect_proxy();
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) != 1)
        die("SSL_connect");
    request_all(fd, ssl);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    return NULL;
}

static void *(*mode(const char *name))(void *)
{
    static const struct {
        const char *name;
        void *(*fn)(void *);
    } modes[] = {
        {"tunnel", tunnel}, {"connect", connects}, {"request", requests}, {"direct", direct_requests}, {"line", line_requests}};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(modes[i].name, name) == 0)
            return modes[i].fn;
    fprintf(stderr, "usage: see the head of bench/proxy_load.c\n");
    exit(2);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int idle(int conns)
{
    for (int i = 0; i < conns; i++)
        if (!open_tunnel(connect_proxy())) {
            fprintf(stderr, "tunnel %d was refused\n", i);
            return 1;
        }
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (argc == 7 && strcmp(argv[1], "serve") == 0)
        return serve(argv + 2);
    if (argc < 7) {
        fprintf(stderr, "usage: see the head of bench/proxy_load.c\n");
        return 2;
    }
    lines = argv[2];
    if (strcmp(argv[1], "line") != 0)
        proxy = address(argv[2], argv[3]);
    auth = argv[4];
    target = argv[5];
    int conns = atoi(argv[6]);
    if (strcmp(argv[1], "idle") == 0)
        return idle(conns);
    double seconds = argc > 7 ? atof(argv[7]) : 3, began = now();
    void *(*fn)(void *) = mode(argv[1]);
    pthread_t threads[1024];
    ends = began + seconds;
    for (int i = 0; i < conns && i < 1024; i++)
        pthread_create(&threads[i], NULL, fn, NULL);
    for (int i = 0; i < conns && i < 1024; i++)
        pthread_join(threads[i], NULL);
    double took = now() - began;
    unsigned n = samples < SAMPLES_MAX ? samples : SAMPLES_MAX;
    qsort(sample, n, sizeof sample[0], by_value);
    printf("{\"mib_s\": %.1f, \"per_s\": %.1f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"failed\": %llu}\n",
           (double)bytes_read / took / 1048576, (double)done / took, n > 0 ? sample[n / 2] * 1e3 : 0,
           n > 0 ? sample[n - 1 - n / 100] * 1e3 : 0, (unsigned long long)failed);
    return 0;
}

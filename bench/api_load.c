// Load for bench/api: requests over kept connections, or the same commands through libsandbox.
//     api-load http  SOCKET|HOST:PORT CLIENTS MS METHOD BODY PATH...   client N asks for path N modulo their number; a BODY
//                                                                      of @FILE is what is in it
//     api-load exec  ENGINE-SOCKET    CLIENTS MS TEMPLATE SANDBOXES    `true` in sandbox N modulo SANDBOXES
// Prints one JSON object: requests, bytes, seconds, p50_us, p99_us.
#include <arpa/inet.h>
#include <libsandbox.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS_MAX = 256, TIMES_MAX = 200000, PIECE = 256 * 1024 };

struct client {
    pthread_t thread;
    const char *address, *method, *body, *path;
    size_t body_n;
    sandbox_handle_t *sandbox;
    uint64_t until_us, bytes;
    uint32_t *times;
    unsigned n;
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int dial(const char *address)
{
    if (address[0] == '/') {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        snprintf(a.sun_path, sizeof a.sun_path, "%s", address);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
            die(address);
        return fd;
    }
    char host[64];
    const char *colon = strrchr(address, ':');
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    inet_pton(AF_INET, host, &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        die(address);
    return fd;
}

static void send_all(int fd, const char *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t w = send(fd, bytes + at, n - at, MSG_NOSIGNAL);
        if (w <= 0)
            die("send");
        at += (size_t)w;
    }
}

// One answer with a Content-Length; the bytes of its body.
static uint64_t read_answer(int fd, char *buffer)
{
    size_t have = 0;
    char *end = NULL;
    while (end == NULL) {
        ssize_t n = recv(fd, buffer + have, PIECE - have, 0);
        if (n <= 0)
            die("recv");
        have += (size_t)n;
        buffer[have] = '\0';
        end = strstr(buffer, "\r\n\r\n");
    }
    if (strncmp(buffer, "HTTP/1.1 2", 10) != 0) {
        fprintf(stderr, "%.200s\n", buffer);
        exit(1);
    }
    const char *field = strcasestr(buffer, "\r\nContent-Length:");
    uint64_t length = field != NULL && field < end ? strtoull(field + 17, NULL, 10) : 0;
    uint64_t got = have - (size_t)(end + 4 - buffer);
    while (got < length) {
        ssize_t n = recv(fd, buffer, PIECE, 0);
        if (n <= 0)
            die("recv");
        got += (uint64_t)n;
    }
    return length;
}

static void note(struct client *c, uint64_t began)
{
    if (c->n < TIMES_MAX)
        c->times[c->n] = (uint32_t)(now_us() - began);
    c->n++;
}

static void *ask(void *arg)
{
    struct client *c = arg;
    size_t n = c->body_n;
    char *request = malloc(n + 1024), *buffer = malloc(PIECE + 1);
    int head = snprintf(request, n + 1024, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", c->method, c->path, n);
    memcpy(request + head, c->body, n);
    int fd = dial(c->address);
    for (uint64_t began = now_us(); began < c->until_us; began = now_us()) {
        send_all(fd, request, (size_t)head + n);
        c->bytes += read_answer(fd, buffer) + n;
        note(c, began);
    }
    close(fd);
    free(request);
    free(buffer);
    return NULL;
}

// The body of all requests.
static char *read_body(const char *argument, size_t *ret_n)
{
    if (argument[0] != '@') {
        *ret_n = strlen(argument);
        return strdup(argument);
    }
    FILE *file = fopen(argument + 1, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) < 0)
        die(argument);
    long n = ftell(file);
    char *body = malloc((size_t)n + 1);
    rewind(file);
    if (body == NULL || fread(body, 1, (size_t)n, file) != (size_t)n)
        die(argument);
    fclose(file);
    *ret_n = (size_t)n;
    return body;
}

static void *execute(void *arg)
{
    struct client *c = arg;
    const sandbox_exec_spec_t spec = {.command = "true"};
    for (uint64_t began = now_us(); began < c->until_us; began = now_us()) {
        sandbox_exec_result_t result = {0};
        if (sandbox_exec(c->sandbox, &spec, &result) != SANDBOX_OK) {
            fprintf(stderr, "%s\n", sandbox_last_error());
            exit(1);
        }
        sandbox_exec_result_free(&result);
        note(c, began);
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void run(struct client *clients, unsigned n, uint64_t ms, void *(*fn)(void *))
{
    uint64_t began = now_us(), bytes = 0;
    for (unsigned i = 0; i < n; i++) {
        clients[i].until_us = began + ms * 1000;
        clients[i].times = malloc(TIMES_MAX * sizeof *clients[i].times);
        if (clients[i].times == NULL || pthread_create(&clients[i].thread, NULL, fn, &clients[i]) != 0)
            die("a client");
    }
    size_t count = 0, all = 0;
    for (unsigned i = 0; i < n; i++) {
        pthread_join(clients[i].thread, NULL);
        all += clients[i].n;
        bytes += clients[i].bytes;
        count += clients[i].n < TIMES_MAX ? clients[i].n : TIMES_MAX;
    }
    double seconds = (double)(now_us() - began) / 1e6;
    uint32_t *times = malloc((count + 1) * sizeof *times);
    size_t at = 0;
    for (unsigned i = 0; i < n; i++) {
        size_t have = clients[i].n < TIMES_MAX ? clients[i].n : TIMES_MAX;
        memcpy(times + at, clients[i].times, have * sizeof *times);
        at += have;
    }
    qsort(times, count, sizeof *times, compare);
    printf("{\"requests\":%zu,\"bytes\":%llu,\"seconds\":%.3f,\"p50_us\":%u,\"p99_us\":%u}\n", all, (unsigned long long)bytes,
           seconds, count > 0 ? times[count / 2] : 0, count > 0 ? times[count * 99 / 100] : 0);
    free(times);
}

int main(int argc, char **argv)
{
    static struct client clients[CLIENTS_MAX];
    unsigned n = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
    if (argc < 7 || n < 1 || n > CLIENTS_MAX) {
        fprintf(stderr, "api-load: see the head of bench/api_load.c\n");
        return 2;
    }
    uint64_t ms = strtoull(argv[4], NULL, 10);
    if (strcmp(argv[1], "http") == 0 && argc > 7) {
        size_t body_n;
        char *body = read_body(argv[6], &body_n);
        for (unsigned i = 0; i < n; i++)
            clients[i] = (struct client){
                .address = argv[2], .method = argv[5], .body = body, .body_n = body_n, .path = argv[7 + (int)i % (argc - 7)]};
        run(clients, n, ms, ask);
        free(body);
        return 0;
    }
    int sandboxes = atoi(argv[6]);
    sandbox_handle_t *handle[CLIENTS_MAX];
    sandbox_conn_t *conn[CLIENTS_MAX];
    for (int i = 0; i < sandboxes; i++) {
        const sandbox_spec_t spec = {.memory_mib = 128, .vcpu_count = 1, .template_name = argv[5], .pool_wait_ms = 10000};
        if (sandbox_conn_open(argv[2], &conn[i]) != SANDBOX_OK ||
            sandbox_conn_create(conn[i], &spec, &handle[i]) != SANDBOX_OK) {
            fprintf(stderr, "%s\n", sandbox_last_error());
            return 1;
        }
    }
    for (unsigned i = 0; i < n; i++)
        clients[i].sandbox = handle[(int)i % sandboxes];
    run(clients, n, ms, execute);
    for (int i = 0; i < sandboxes; i++) {
        sandbox_destroy(handle[i]);
        sandbox_conn_close(conn[i]);
    }
    return 0;
}

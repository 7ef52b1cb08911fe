#include "guest/host_api.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BODY_MAX = 1024 * 1024, ANSWER_MAX = 5 * 1024 * 1024, HEAD_MAX = 20 * 1024 };

static int complain(int code, const char *what, const char *why)
{
    fprintf(stderr, "host-api: %s: %s\n", what, why);
    return code;
}

static int connect_line(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *path = getenv("HOST_API_SOCKET");
    if (path == NULL || path[0] == '\0')
        path = getenv("SANDBOX_HOST_API");
    if (path == NULL || path[0] == '\0')
        path = HOST_API_DEFAULT_SOCKET;
    if (strlen(path) >= sizeof a.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

static int write_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, bytes, n);
        if (put < 0)
            return -1;
        bytes += put;
        n -= (size_t)put;
    }
    return 0;
}

// Reads until the end, or `max` bytes.
static ssize_t read_all(int fd, char *bytes, size_t max)
{
    size_t n = 0;
    while (n < max) {
        ssize_t got = read(fd, bytes + n, max - n);
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

// What a path may have so that the request line is one; the broker checks the rest.
static int one_line(const char *text)
{
    return text[0] != '\0' && text[strcspn(text, " \t\r\n")] == '\0';
}

static int send_request(int fd, const char *method, const char *path, const char *body, size_t n)
{
    static char head[HEAD_MAX];
    int len = snprintf(head, sizeof head,
                       "%s %s HTTP/1.1\r\nHost: host-api\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", method, path, n);
    if (len < 0 || len >= (int)sizeof head) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (write_all(fd, head, (size_t)len) < 0)
        return -1;
    // Who refuses a body early closes its end; the answer is there all the same.
    if (write_all(fd, body, n) < 0 && errno != EPIPE && errno != ECONNRESET)
        return -1;
    return 0;
}

static int print_answer(const char *answer, size_t n)
{
    const char *end = memmem(answer, n, "\r\n\r\n", 4);
    unsigned status = 0;
    if (end == NULL || sscanf(answer, "HTTP/1.%*1[01] %3u", &status) != 1)
        return complain(HOST_API_NO_LINE, "the line", "the answer is cut short");
    const char *body = end + 4;
    size_t len = n - (size_t)(body - answer);
    int good = status >= 200 && status < 300;
    if (!good)
        fprintf(stderr, "host-api: %u\n", status);
    if (fwrite(body, 1, len, good ? stdout : stderr) != len || fflush(good ? stdout : stderr) != 0)
        return complain(HOST_API_NO_LINE, "standard output", strerror(errno));
    return good ? 0 : HOST_API_REFUSED;
}

static int exchange(const char *method, const char *path, const char *body, size_t n)
{
    int fd = connect_line();
    if (fd < 0)
        return complain(HOST_API_NO_LINE, "the line cannot be reached", strerror(errno));
    char *answer = malloc(ANSWER_MAX + 1);
    ssize_t got = answer != NULL && send_request(fd, method, path, body, n) == 0 ? read_all(fd, answer, ANSWER_MAX) : -1;
    int r = got < 0 ? complain(HOST_API_NO_LINE, "the line", strerror(errno)) : 0;
    if (r == 0) {
        answer[got] = '\0';
        r = print_answer(answer, (size_t)got);
    }
    free(answer);
    close(fd);
    return r;
}

int host_api_call(int argc, char **argv)
{
    const char *body = argc > 2 ? argv[2] : "";
    size_t n = strlen(body);
    char *input = NULL;
    if (!one_line(argv[0]) || !one_line(argv[1]))
        return complain(HOST_API_USAGE, "a method and a path are one word each", argv[1]);
    if (strcmp(body, "-") == 0) {
        input = malloc(BODY_MAX + 1);
        ssize_t got = input != NULL ? read_all(STDIN_FILENO, input, BODY_MAX + 1) : -1;
        if (got < 0 || got > BODY_MAX) {
            free(input);
            return complain(HOST_API_USAGE, "standard input", got < 0 ? strerror(errno) : "it is longer than 1 MiB");
        }
        body = input;
        n = (size_t)got;
    }
    int r = exchange(argv[0], argv[1], body, n);
    free(input);
    return r;
}

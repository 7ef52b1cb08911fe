#include "broker/check_route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool say(const struct profile *p, struct http_text method, struct http_text target)
{
    struct route_verdict v = route_check(&p->allow, method, target);
    if (v.reason != ROUTE_FORWARD) {
        puts(route_reason_text(v.reason));
        return false;
    }
    const struct route *route = &p->allow.route[v.index];
    printf("FORWARD %s %.*s\n", route->method, (int)route->path.n, route->path.at);
    return true;
}

static int digit(char c)
{
    const char *digits = "0123456789abcdef", *at = c != '\0' ? strchr(digits, c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

// Turns hexadecimal into bytes, in place; -1 if it is none.
static ssize_t from_hex(char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i + 1 < n; i += 2) {
        int high = digit(text[i]), low = digit(text[i + 1]);
        if (high < 0 || low < 0)
            return -1;
        text[i / 2] = (char)(high * 16 + low);
    }
    return n % 2 == 0 ? (ssize_t)(n / 2) : -1;
}

static int check_many(const struct profile *p)
{
    static char line[CHECK_ROUTE_LINE_MAX];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *hex = strchr(line, ' ');
        ssize_t n = hex != NULL ? from_hex(hex + 1) : -1;
        if (n < 0) {
            fprintf(stderr, "sandbox-broker: a line is METHOD, a space, and hexadecimal digits\n");
            return CHECK_ROUTE_USAGE;
        }
        say(p, (struct http_text){line, (size_t)(hex - line)}, (struct http_text){hex + 1, (size_t)n});
    }
    return EXIT_SUCCESS;
}

int check_route(const struct grants *grants, int argc, char **argv)
{
    bool many = argc == 2 && strcmp(argv[1], "-") == 0;
    if (argc != 3 && !many) {
        fprintf(stderr, "sandbox-broker: check-route needs PROFILE METHOD TARGET, or PROFILE -\n");
        return CHECK_ROUTE_USAGE;
    }
    const struct profile *p = grants_find(grants, argv[0]);
    if (p == NULL) {
        fprintf(stderr, "sandbox-broker: there is no profile \"%.128s\" in the file of the setting `grants`\n", argv[0]);
        return CHECK_ROUTE_USAGE;
    }
    if (many)
        return check_many(p);
    bool forward = say(p, (struct http_text){argv[1], strlen(argv[1])}, (struct http_text){argv[2], strlen(argv[2])});
    return forward ? EXIT_SUCCESS : CHECK_ROUTE_REFUSED;
}

// The route check as a filter, for test_route_check.py.
//
// Standard input: the routes of a list, one a line; an empty line; then calls, "METHOD HEX", where HEX are the target's bytes.
// Each is answered by a line: "FORWARD METHOD /template", or the rule that refuses it; a route that is refused by "bad route"
// at once.
#include "wire/route_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 64 * 1024 };

static char lines[ROUTES_MAX][ROUTE_TEMPLATE_MAX + 64];
static char line[LINE_MAX_BYTES];

static int read_routes(struct route_list *list)
{
    while (list->n < ROUTES_MAX && fgets(lines[list->n], sizeof lines[0], stdin) != NULL) {
        char *text = lines[list->n];
        enum route_problem why;
        text[strcspn(text, "\n")] = '\0';
        if (text[0] == '\0')
            return 0;
        if (route_list_add(list, text, strlen(text), &why) != 0) {
            printf("bad route %s: %s\n", text, route_problem_text(why));
            return -1;
        }
    }
    return -1;
}

static size_t from_hex(char *text)
{
    size_t n = strlen(text) / 2;
    for (size_t i = 0; i < n; i++) {
        char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};
        text[i] = (char)strtoul(digits, NULL, 16);
    }
    return n;
}

int main(void)
{
    static struct route_list list;
    if (read_routes(&list) != 0)
        return 1;
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *hex = strchr(line, ' ');
        if (hex == NULL)
            return 1;
        *hex++ = '\0';
        size_t n = from_hex(hex);
        struct route_verdict verdict = route_check(&list, (struct http_text){line, strlen(line)}, (struct http_text){hex, n});
        if (verdict.reason != ROUTE_FORWARD) {
            puts(route_reason_text(verdict.reason));
            continue;
        }
        const struct route *route = &list.route[verdict.index];
        if (verdict.approved.at != hex || verdict.approved.n != n)
            return 1;
        printf("FORWARD %s %.*s\n", route->method, (int)route->path.n, route->path.at);
    }
    return 0;
}

#include "wire/route_check.h"

#include <errno.h>
#include <string.h>

static bool is_safe(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("-_.~$&+,/:;=@", c) != NULL);
}

static bool has(struct http_text t, char c)
{
    return t.n > 0 && memchr(t.at, c, t.n) != NULL;
}

static bool has_control(struct http_text t)
{
    for (size_t i = 0; i < t.n; i++)
        if ((unsigned char)t.at[i] < 0x20 || t.at[i] == 0x7F)
            return true;
    return false;
}

static bool has_unsafe(struct http_text t, bool star)
{
    for (size_t i = 0; i < t.n; i++)
        if (!is_safe((unsigned char)t.at[i]) && !(star && t.at[i] == '*'))
            return true;
    return false;
}

// Takes the next segment, up to the next '/' or the end, off *rest, which starts with a '/'.  False at the end.
static bool next_segment(struct http_text *rest, struct http_text *ret)
{
    if (rest->n == 0)
        return false;
    const char *start = rest->at + 1, *slash = memchr(start, '/', rest->n - 1);
    size_t n = slash != NULL ? (size_t)(slash - start) : rest->n - 1;
    *ret = (struct http_text){start, n};
    rest->at = start + n;
    rest->n -= n + 1;
    return true;
}

static bool all_dots(struct http_text segment)
{
    for (size_t i = 0; i < segment.n; i++)
        if (segment.at[i] != '.')
            return false;
    return segment.n > 0;
}

static bool is_clean(struct http_text path)
{
    struct http_text rest = path, segment;
    while (next_segment(&rest, &segment))
        if (path.n > 1 && (segment.n == 0 || (segment.n <= 2 && all_dots(segment))))
            return false;
    return true;
}

static bool has_dots_segment(struct http_text path)
{
    struct http_text rest = path, segment;
    while (next_segment(&rest, &segment))
        if (all_dots(segment))
            return true;
    return false;
}

// R1 to R8.  With `star`, as for a list's routes, '*' is a safe byte.
static enum route_reason check_path(struct http_text path, bool star)
{
    if (path.n == 0 || path.at[0] != '/')
        return ROUTE_R1;
    if (has(path, '%'))
        return ROUTE_R2;
    if (has(path, '\\'))
        return ROUTE_R3;
    if (has(path, '?') || has(path, '#'))
        return ROUTE_R4;
    if (has_control(path))
        return ROUTE_R5;
    if (has_unsafe(path, star))
        return ROUTE_R6;
    if (!is_clean(path))
        return ROUTE_R7;
    if (has(path, ';'))
        return ROUTE_R8_PARAMETER;
    return has_dots_segment(path) ? ROUTE_R8_DOTS : ROUTE_FORWARD;
}

static bool is_star(struct http_text segment)
{
    return segment.n == 1 && segment.at[0] == '*';
}

static bool path_matches(struct http_text template, struct http_text path, bool any_case)
{
    struct http_text want, got;
    while (next_segment(&template, &want)) {
        if (!next_segment(&path, &got))
            return false;
        if (is_star(want)) {
            if (got.n == 0 || has(got, ':'))
                return false;
        } else if (any_case ? !http_text_is(want, got) : !http_text_equal(want, got)) {
            return false;
        }
    }
    return path.n == 0;
}

bool route_matches(const struct route *route, struct http_text method, struct http_text target)
{
    return http_text_is(method, (struct http_text){route->method, strlen(route->method)}) &&
           path_matches(route->path, target, false);
}

bool route_resembles(const struct route *route, struct http_text method, struct http_text target)
{
    return http_text_is(method, (struct http_text){route->method, strlen(route->method)}) &&
           path_matches(route->path, target, true);
}

struct route_verdict route_check(const struct route_list *list, struct http_text method, struct http_text target)
{
    struct route_verdict verdict = {.reason = check_path(target, false), .approved = {"", 0}};
    if (verdict.reason != ROUTE_FORWARD)
        return verdict;
    for (unsigned i = 0; i < list->n; i++)
        if (route_matches(&list->route[i], method, target)) {
            verdict.index = i;
            verdict.approved = target;
            return verdict;
        }
    verdict.reason = ROUTE_R9;
    return verdict;
}

const char *route_reason_text(enum route_reason reason)
{
    static const char *const texts[ROUTE_REASONS] = {
        [ROUTE_FORWARD] = "FORWARD",
        [ROUTE_R1] = "R1 not-rooted",
        [ROUTE_R2] = "R2 percent",
        [ROUTE_R3] = "R3 backslash",
        [ROUTE_R4] = "R4 query/fragment",
        [ROUTE_R5] = "R5 control",
        [ROUTE_R6] = "R6 re-encoded byte",
        [ROUTE_R7] = "R7 not clean",
        [ROUTE_R8_PARAMETER] = "R8 ';' parameter",
        [ROUTE_R8_DOTS] = "R8 all-dot segment",
        [ROUTE_R9] = "R9 no route",
    };
    return (unsigned)reason < ROUTE_REASONS ? texts[reason] : "R9 no route";
}

// ---- lists ----

// Takes the next word off *rest; empty at the end.
static struct http_text next_word(struct http_text *rest)
{
    *rest = http_trim(*rest);
    struct http_text word = {rest->at, 0};
    while (word.n < rest->n && !http_is_space(rest->at[word.n]))
        word.n++;
    rest->at += word.n;
    rest->n -= word.n;
    return word;
}

static bool take_method(struct http_text word, char method[ROUTE_METHOD_MAX + 1])
{
    static const char methods[][ROUTE_METHOD_MAX + 1] = {"GET", "PUT", "POST", "DELETE", "PATCH"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (http_text_is(word, (struct http_text){methods[i], strlen(methods[i])})) {
            memcpy(method, methods[i], sizeof methods[i]);
            return true;
        }
    return false;
}

// Whether each '*' is a segment of its own.
static bool stars_whole(struct http_text path)
{
    struct http_text rest = path, segment;
    while (next_segment(&rest, &segment))
        if (has(segment, '*') && !is_star(segment))
            return false;
    return true;
}

static enum route_problem check_template(struct http_text path)
{
    static const enum route_problem problems[ROUTE_REASONS] = {
        [ROUTE_R1] = ROUTE_NOT_ABSOLUTE, [ROUTE_R2] = ROUTE_ENCODED,
        [ROUTE_R3] = ROUTE_FORBIDDEN,    [ROUTE_R4] = ROUTE_FORBIDDEN,
        [ROUTE_R5] = ROUTE_FORBIDDEN,    [ROUTE_R6] = ROUTE_UNSAFE,
        [ROUTE_R7] = ROUTE_UNCLEAN,      [ROUTE_R8_PARAMETER] = ROUTE_PARAMETER,
        [ROUTE_R8_DOTS] = ROUTE_DOTS,
    };
    if (path.n > ROUTE_TEMPLATE_MAX)
        return ROUTE_LONG;
    enum route_reason reason = check_path(path, true);
    if (reason != ROUTE_FORWARD)
        return problems[reason];
    return stars_whole(path) ? ROUTE_FINE : ROUTE_PARTIAL_STAR;
}

static enum route_problem read_route(const struct route_list *list, struct http_text text, struct route *ret)
{
    struct http_text method = next_word(&text), path = next_word(&text);
    if (path.n == 0 || http_trim(text).n > 0)
        return ROUTE_NOT_TWO;
    if (!take_method(method, ret->method))
        return ROUTE_BAD_METHOD;
    enum route_problem why = check_template(path);
    if (why != ROUTE_FINE)
        return why;
    for (unsigned i = 0; i < list->n; i++)
        if (strcmp(list->route[i].method, ret->method) == 0 && http_text_equal(list->route[i].path, path))
            return ROUTE_DUPLICATE;
    ret->path = path;
    return ROUTE_FINE;
}

int route_list_add(struct route_list *list, const char *text, size_t n, enum route_problem *ret_why)
{
    struct route route;
    enum route_problem why = list->n == ROUTES_MAX ? ROUTE_TOO_MANY : read_route(list, (struct http_text){text, n}, &route);
    if (why != ROUTE_FINE) {
        *ret_why = why;
        return -EINVAL;
    }
    list->route[list->n++] = route;
    return 0;
}

const char *route_problem_text(enum route_problem why)
{
    static const char *const texts[ROUTE_PROBLEMS] = {
        [ROUTE_FINE] = "nothing is wrong",
        [ROUTE_NOT_TWO] = "a route is a method and a path, two words",
        [ROUTE_BAD_METHOD] = "the method must be GET, PUT, POST, DELETE or PATCH",
        [ROUTE_LONG] = "the path is longer than 1024 bytes",
        [ROUTE_NOT_ABSOLUTE] = "the path does not start with '/'",
        [ROUTE_ENCODED] = "the path has a '%': write it decoded",
        [ROUTE_FORBIDDEN] = "the path has '\\', '?', '#' or a control character",
        [ROUTE_UNSAFE] = "the path has a byte that clients would encode, so no call could match it",
        [ROUTE_UNCLEAN] = "the path has an empty, '.' or '..' segment, or ends with '/'",
        [ROUTE_PARAMETER] = "the path has a ';'",
        [ROUTE_DOTS] = "the path has a segment of nothing but dots",
        [ROUTE_PARTIAL_STAR] = "'*' must be a whole segment",
        [ROUTE_DUPLICATE] = "the same route is in the list already",
        [ROUTE_TOO_MANY] = "there are more than 512 routes",
    };
    return (unsigned)why < ROUTE_PROBLEMS ? texts[why] : "it is malformed";
}

#include "wire/http_head.h"

#include <errno.h>
#include <string.h>

// Every step returns why it refuses; the public functions turn that into an errno.
typedef enum http_refusal refusal;

// ---- lines ----

// Takes the next line, without its end, off `rest`.  http_head_find has seen that each one ends with CR LF; a caller who did
// not ask it is refused here.
static bool next_line(struct http_text *rest, struct http_text *ret_line)
{
    const char *cr = memchr(rest->at, '\r', rest->n);
    if (cr == NULL || (size_t)(cr - rest->at) + 1 >= rest->n || cr[1] != '\n')
        return false;
    *ret_line = (struct http_text){rest->at, (size_t)(cr - rest->at)};
    rest->at += ret_line->n + 2;
    rest->n -= ret_line->n + 2;
    return true;
}

// Takes everything up to the next space off `rest`, and the space.  False without one.
static bool next_word(struct http_text *rest, struct http_text *ret_word)
{
    const char *space = memchr(rest->at, ' ', rest->n);
    if (space == NULL)
        return false;
    *ret_word = (struct http_text){rest->at, (size_t)(space - rest->at)};
    rest->at += ret_word->n + 1;
    rest->n -= ret_word->n + 1;
    return true;
}

static refusal parse_version(struct http_text t, unsigned *ret_minor)
{
    if (t.n != 8 || memcmp(t.at, "HTTP/", 5) != 0 || t.at[5] < '0' || t.at[5] > '9' || t.at[6] != '.' || t.at[7] < '0' ||
        t.at[7] > '9')
        return HTTP_BAD_VERSION;
    if (t.at[5] != '1' || t.at[7] > '1')
        return HTTP_OTHER_VERSION;
    *ret_minor = (unsigned)(t.at[7] - '0');
    return HTTP_FINE;
}

static bool value_ok(struct http_text t)
{
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.at[i];
        if ((c < 0x20 && c != '\t') || c == 0x7F)
            return false;
    }
    return true;
}

static refusal parse_field(struct http_text line, struct http_field *ret)
{
    if (http_is_space(line.at[0]))
        return HTTP_FOLDED_LINE;
    const char *colon = memchr(line.at, ':', line.n);
    if (colon == NULL)
        return HTTP_BAD_FIELD;
    struct http_text name = {line.at, (size_t)(colon - line.at)};
    struct http_text value = http_trim((struct http_text){colon + 1, line.n - name.n - 1});
    if (!http_is_token(name) || !value_ok(value))
        return HTTP_BAD_FIELD;
    *ret = (struct http_field){.name = name, .value = value};
    return HTTP_FINE;
}

// The lines behind the first one, up to the empty one, behind which nothing may come.
static refusal parse_fields(struct http_text *rest, struct http_fields *ret)
{
    ret->n = 0;
    struct http_text line;
    while (next_line(rest, &line)) {
        if (line.n == 0)
            return rest->n == 0 ? HTTP_FINE : HTTP_BAD_LINE_END;
        if (ret->n == HTTP_FIELDS_MAX)
            return HTTP_TOO_MANY_FIELDS;
        if (line.n > HTTP_FIELD_LINE_MAX)
            return HTTP_FIELD_TOO_LONG;
        refusal why = parse_field(line, &ret->field[ret->n]);
        if (why != HTTP_FINE)
            return why;
        ret->n++;
    }
    return HTTP_BAD_LINE_END;
}

const struct http_field *http_field_find(const struct http_fields *fields, unsigned from, struct http_text name)
{
    for (unsigned i = from; i < fields->n; i++)
        if (http_text_is(fields->field[i].name, name))
            return &fields->field[i];
    return NULL;
}

// for (f = first field called `name`; f; f = next one)
#define EACH_FIELD(f, fields, name)                                                                                            \
    const struct http_field *f = http_field_find((fields), 0, (name));                                                         \
    f != NULL;                                                                                                                 \
    f = http_field_find((fields), (unsigned)(f - (fields)->field) + 1, (name))

// ---- fields that concern the connection ----

struct connection {
    bool close, keep_alive, upgrade;
};

static void mark_hop(struct http_fields *fields, struct http_text name)
{
    for (unsigned i = 0; i < fields->n; i++)
        if (http_text_is(fields->field[i].name, name))
            fields->field[i].hop = true;
}

static void mark_known_hops(struct http_fields *fields)
{
    static const struct http_text known[] = {
        HTTP_TEXT("connection"),
        HTTP_TEXT("keep-alive"),
        HTTP_TEXT("proxy-connection"),
        HTTP_TEXT("proxy-authenticate"),
        HTTP_TEXT("proxy-authorization"),
        HTTP_TEXT("proxy-authentication-info"),
        HTTP_TEXT("te"),
        HTTP_TEXT("trailer"),
        HTTP_TEXT("transfer-encoding"),
        HTTP_TEXT("upgrade"),
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        mark_hop(fields, known[i]);
}

// Framing does not depend on what a Connection field names: it is decided from the fields themselves, before any is dropped.
static refusal read_connection(struct http_fields *fields, struct connection *ret)
{
    *ret = (struct connection){.close = false};
    mark_known_hops(fields);
    unsigned options = 0;
    for (EACH_FIELD(f, fields, HTTP_TEXT("connection"))) {
        struct http_text list = f->value, option;
        while (http_list_next(&list, &option)) {
            if (!http_is_token(option) || ++options > HTTP_OPTIONS_MAX)
                return HTTP_BAD_CONNECTION;
            if (http_text_is(option, HTTP_TEXT("close")))
                ret->close = true;
            else if (http_text_is(option, HTTP_TEXT("keep-alive")))
                ret->keep_alive = true;
            else if (http_text_is(option, HTTP_TEXT("upgrade")))
                ret->upgrade = true;
            mark_hop(fields, option);
        }
    }
    return HTTP_FINE;
}

static bool stays_open(const struct connection *connection, unsigned minor)
{
    return !connection->close && (minor >= 1 || connection->keep_alive);
}

// What the message wants to become: one Upgrade field, which Connection names.
static struct http_text read_upgrade(const struct http_fields *fields, const struct connection *connection, unsigned minor)
{
    const struct http_field *f = http_field_find(fields, 0, HTTP_TEXT("upgrade"));
    if (f == NULL || !connection->upgrade || minor == 0 ||
        http_field_find(fields, (unsigned)(f - fields->field) + 1, HTTP_TEXT("upgrade")) != NULL)
        return (struct http_text){"", 0};
    return f->value;
}

// ---- framing ----

struct framing {
    bool chunked;
    bool has_length;
    uint64_t length;
};

static refusal parse_length(struct http_text t, uint64_t *ret)
{
    uint64_t length = 0;
    if (t.n == 0 || t.n > HTTP_LENGTH_DIGITS_MAX)
        return HTTP_BAD_LENGTH;
    for (size_t i = 0; i < t.n; i++) {
        if (t.at[i] < '0' || t.at[i] > '9')
            return HTTP_BAD_LENGTH;
        length = length * 10 + (uint64_t)(t.at[i] - '0');
    }
    if (length > INT64_MAX)  // 19 digits cannot overflow 64 bits, but a caller's signed offset
        return HTTP_BAD_LENGTH;
    *ret = length;
    return HTTP_FINE;
}

// Whether the value goes to the end of its line.  Readers differ about spaces behind it, and what frames the body must not be
// in doubt.
static bool ends_line(const struct http_field *f)
{
    return f->value.at[f->value.n] == '\r';
}

static refusal read_framing(const struct http_fields *fields, unsigned minor, struct framing *ret)
{
    *ret = (struct framing){.chunked = false};
    for (EACH_FIELD(f, fields, HTTP_TEXT("content-length"))) {
        uint64_t length;
        refusal why = parse_length(f->value, &length);
        if (why != HTTP_FINE)
            return why;
        if (!ends_line(f))
            return HTTP_BAD_LENGTH;
        if (ret->has_length && length != ret->length)
            return HTTP_LENGTHS_DIFFER;
        ret->has_length = true;
        ret->length = length;
    }
    for (EACH_FIELD(f, fields, HTTP_TEXT("transfer-encoding"))) {
        if (ret->chunked || !http_text_is(f->value, HTTP_TEXT("chunked")) || !ends_line(f))
            return HTTP_BAD_CODING;
        ret->chunked = true;
    }
    return ret->chunked && minor == 0 ? HTTP_CODING_IN_1_0 : HTTP_FINE;
}

// ---- targets ----

// What may stand in host[:port], before wire/host_name.h looks at it: anything that cannot end it or hide a user name.
static bool authority_ok(struct http_text t)
{
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.at[i];
        if (c <= 0x20 || c == 0x7F || strchr("/?#@\\\"<>^`{|}", c) != NULL)
            return false;
    }
    return t.n > 0;
}

// Any byte but spaces, controls and a fragment's '#'; beyond ASCII only as it is asked for.
static bool target_bytes_ok(struct http_text t, unsigned policy)
{
    bool raw = (policy & HTTP_RAW_TARGET) != 0;
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.at[i];
        if (c <= 0x20 || c == 0x7F || (!raw && (c == '#' || c >= 0x80)))
            return false;
    }
    return t.n > 0;
}

static bool has_scheme(struct http_text t, struct http_text scheme)
{
    return t.n >= scheme.n && http_text_is((struct http_text){t.at, scheme.n}, scheme);
}

static bool parse_absolute(struct http_request *r)
{
    struct http_text t = r->target, https = HTTP_TEXT("https://"), http = HTTP_TEXT("http://");
    r->https = has_scheme(t, https);
    if (!r->https && !has_scheme(t, http))
        return false;
    size_t start = r->https ? https.n : http.n, end = start;
    while (end < t.n && t.at[end] != '/' && t.at[end] != '?' && t.at[end] != '#')
        end++;
    r->authority = (struct http_text){t.at + start, end - start};
    r->path = (struct http_text){t.at + end, t.n - end};
    r->form = HTTP_ABSOLUTE_FORM;
    return authority_ok(r->authority);
}

static bool parse_form(struct http_request *r)
{
    if (http_text_equal(r->method, HTTP_TEXT("CONNECT"))) {
        r->form = HTTP_AUTHORITY_FORM;
        r->authority = r->target;
        return authority_ok(r->authority) && memchr(r->authority.at, ':', r->authority.n) != NULL;
    }
    if (r->target.at[0] == '/') {
        r->form = HTTP_ORIGIN_FORM;
        r->path = r->target;
        return true;
    }
    if (http_text_equal(r->target, HTTP_TEXT("*"))) {
        r->form = HTTP_ASTERISK_FORM;
        return http_text_equal(r->method, HTTP_TEXT("OPTIONS"));
    }
    return parse_absolute(r);
}

static refusal parse_target(struct http_request *r, unsigned policy)
{
    if (r->target.n > HTTP_TARGET_MAX)
        return HTTP_TARGET_TOO_LONG;
    if (!target_bytes_ok(r->target, policy))
        return HTTP_BAD_TARGET;
    if (parse_form(r))
        return HTTP_FINE;
    if ((policy & HTTP_RAW_TARGET) == 0)
        return HTTP_BAD_TARGET;
    r->form = HTTP_RAW_FORM;
    r->authority = r->path = (struct http_text){"", 0};
    return HTTP_FINE;
}

// ---- requests ----

static refusal parse_request_line(struct http_text line, unsigned policy, struct http_request *r)
{
    if (!next_word(&line, &r->method) || !next_word(&line, &r->target))
        return HTTP_BAD_START_LINE;
    if (r->method.n > HTTP_METHOD_MAX)
        return HTTP_METHOD_TOO_LONG;
    if (!http_is_token(r->method))
        return HTTP_BAD_METHOD;
    // The version first: another one may have other targets.
    refusal why = parse_version(line, &r->minor);
    return why != HTTP_FINE ? why : parse_target(r, policy);
}

static refusal read_host(struct http_request *r)
{
    const struct http_field *f = http_field_find(&r->fields, 0, HTTP_TEXT("host"));
    if (f == NULL)
        return r->minor >= 1 ? HTTP_NO_HOST : HTTP_FINE;
    if (http_field_find(&r->fields, (unsigned)(f - r->fields.field) + 1, HTTP_TEXT("host")) != NULL)
        return HTTP_SECOND_HOST;
    if (!authority_ok(f->value))
        return HTTP_BAD_HOST;
    r->host = f->value;
    return HTTP_FINE;
}

static refusal read_expectation(struct http_request *r)
{
    for (EACH_FIELD(f, &r->fields, HTTP_TEXT("expect"))) {
        if (!http_text_is(f->value, HTTP_TEXT("100-continue")))
            return HTTP_BAD_EXPECTATION;
        r->expects_continue = r->minor >= 1;
    }
    return HTTP_FINE;
}

static refusal read_request_body(struct http_request *r, unsigned policy)
{
    struct framing framing;
    refusal why = read_framing(&r->fields, r->minor, &framing);
    if (why != HTTP_FINE)
        return why;
    if (framing.chunked && framing.has_length) {
        if ((policy & HTTP_CHUNKED_WINS) == 0)
            return HTTP_LENGTH_AND_CODING;
        r->keep_alive = false;
    }
    if (framing.chunked)
        r->body.kind = HTTP_BODY_CHUNKED;
    else if (framing.has_length)
        r->body = (struct http_body){HTTP_BODY_LENGTH, framing.length};
    // What follows a CONNECT is the tunnel's, not a body.
    if (r->form == HTTP_AUTHORITY_FORM && (framing.chunked || framing.length > 0))
        return HTTP_CONNECT_BODY;
    return HTTP_FINE;
}

static refusal request_of(struct http_text rest, unsigned policy, struct http_request *r)
{
    struct http_text line;
    if (rest.n >= 2 && memcmp(rest.at, "\r\n", 2) == 0)
        rest = (struct http_text){rest.at + 2, rest.n - 2};
    if (!next_line(&rest, &line))
        return HTTP_BAD_LINE_END;
    refusal why = parse_request_line(line, policy, r);
    if (why == HTTP_FINE)
        why = parse_fields(&rest, &r->fields);
    struct connection connection;
    if (why == HTTP_FINE)
        why = read_connection(&r->fields, &connection);
    if (why != HTTP_FINE)
        return why;
    r->keep_alive = stays_open(&connection, r->minor);
    r->upgrade = read_upgrade(&r->fields, &connection, r->minor);
    why = read_host(r);
    if (why == HTTP_FINE)
        why = read_request_body(r, policy);
    return why != HTTP_FINE ? why : read_expectation(r);
}

int http_request_parse(const char *head, size_t n, unsigned policy, struct http_request *ret, enum http_refusal *ret_why)
{
    struct http_text none = {"", 0};
    ret->form = HTTP_ORIGIN_FORM;
    ret->https = ret->expects_continue = ret->keep_alive = false;
    ret->authority = ret->path = ret->host = ret->upgrade = none;
    ret->body = (struct http_body){HTTP_BODY_NONE, 0};
    refusal why = n > HTTP_HEAD_MAX ? HTTP_HEAD_TOO_LONG : request_of((struct http_text){head, n}, policy, ret);
    if (why == HTTP_FINE)
        return 0;
    *ret_why = why;
    return -EBADMSG;
}

// ---- responses ----

static refusal parse_status_line(struct http_text line, struct http_response *r)
{
    struct http_text version;
    if (!next_word(&line, &version))
        return HTTP_BAD_START_LINE;
    refusal why = parse_version(version, &r->minor);
    if (why != HTTP_FINE)
        return why;
    // The reason may be empty, and many servers then leave out the space before it.
    if (line.n < 3 || (line.n > 3 && line.at[3] != ' '))
        return HTTP_BAD_STATUS;
    for (int i = 0; i < 3; i++) {
        if (line.at[i] < '0' || line.at[i] > '9')
            return HTTP_BAD_STATUS;
        r->status = r->status * 10 + (unsigned)(line.at[i] - '0');
    }
    if (r->status < 100 || r->status > 599)
        return HTTP_BAD_STATUS;
    if (line.n > 3)
        r->reason = (struct http_text){line.at + 4, line.n - 4};
    return value_ok(r->reason) ? HTTP_FINE : HTTP_BAD_BYTE;
}

static refusal read_response_body(struct http_response *r, struct http_text method)
{
    struct framing framing;
    refusal why = read_framing(&r->fields, r->minor, &framing);
    if (why != HTTP_FINE)
        return why;
    if (framing.chunked && framing.has_length)
        return HTTP_LENGTH_AND_CODING;
    r->has_length = framing.has_length;
    r->length = framing.length;
    r->tunnel = r->status == 101 || (r->status / 100 == 2 && http_text_equal(method, HTTP_TEXT("CONNECT")));
    // A body where none can be: some readers would wait for it, others take it for the next response.
    bool announced = framing.chunked || framing.length > 0, never = r->status < 200 || r->status == 204;
    if (never && announced)
        return HTTP_BODY_FORBIDDEN;
    if (r->tunnel || never || r->status == 304 || http_text_equal(method, HTTP_TEXT("HEAD")))
        return HTTP_FINE;
    if (framing.chunked)
        r->body.kind = HTTP_BODY_CHUNKED;
    else if (framing.has_length)
        r->body = (struct http_body){HTTP_BODY_LENGTH, framing.length};
    else {
        r->body.kind = HTTP_BODY_UNTIL_CLOSE;
        r->keep_alive = false;
    }
    return HTTP_FINE;
}

static refusal response_of(struct http_text rest, struct http_text method, struct http_response *r)
{
    struct http_text line;
    if (!next_line(&rest, &line))
        return HTTP_BAD_LINE_END;
    refusal why = parse_status_line(line, r);
    if (why == HTTP_FINE)
        why = parse_fields(&rest, &r->fields);
    struct connection connection;
    if (why == HTTP_FINE)
        why = read_connection(&r->fields, &connection);
    if (why != HTTP_FINE)
        return why;
    r->keep_alive = stays_open(&connection, r->minor);
    if (r->status == 101)
        r->upgrade = read_upgrade(&r->fields, &connection, r->minor);
    return read_response_body(r, method);
}

int http_response_parse(const char *head, size_t n, struct http_text method, struct http_response *ret,
                        enum http_refusal *ret_why)
{
    struct http_text none = {"", 0};
    ret->status = 0;
    ret->reason = ret->upgrade = none;
    ret->body = (struct http_body){HTTP_BODY_NONE, 0};
    ret->has_length = ret->keep_alive = ret->tunnel = false;
    ret->length = 0;
    refusal why = n > HTTP_HEAD_MAX ? HTTP_HEAD_TOO_LONG : response_of((struct http_text){head, n}, method, ret);
    if (why == HTTP_FINE)
        return 0;
    *ret_why = why;
    return -EBADMSG;
}

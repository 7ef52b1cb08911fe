// Where a head ends, and why a head is refused.
#include "wire/http_head.h"

#include <errno.h>

static const struct {
    int status;
    const char *text;
} refusals[HTTP_REFUSALS] = {
    [HTTP_FINE] = {200, "nothing is wrong"},
    [HTTP_HEAD_TOO_LONG] = {431, "the head is longer than 32768 bytes"},
    [HTTP_TOO_MANY_FIELDS] = {431, "there are more than 100 header lines"},
    [HTTP_FIELD_TOO_LONG] = {431, "a header line is longer than 16384 bytes"},
    [HTTP_TARGET_TOO_LONG] = {414, "the target is longer than 16384 bytes"},
    [HTTP_METHOD_TOO_LONG] = {501, "the method is longer than 32 bytes"},
    [HTTP_BAD_LINE_END] = {400, "a line does not end with CR LF"},
    [HTTP_BAD_BYTE] = {400, "there is a control character in the head"},
    [HTTP_FOLDED_LINE] = {400, "a header line starts with a space: folded lines are not accepted"},
    [HTTP_BAD_START_LINE] = {400, "the first line is not three parts with one space between them"},
    [HTTP_BAD_METHOD] = {400, "the method is not a token"},
    [HTTP_BAD_TARGET] = {400, "the target is malformed, or has a user name or a fragment, or does not go with the method"},
    [HTTP_BAD_VERSION] = {400, "the version is malformed"},
    [HTTP_OTHER_VERSION] = {505, "the version is neither HTTP/1.1 nor HTTP/1.0"},
    [HTTP_BAD_FIELD] = {400, "a header line is not a name, a colon without a space before it, and a value"},
    [HTTP_NO_HOST] = {400, "there is no Host header"},
    [HTTP_SECOND_HOST] = {400, "there is more than one Host header"},
    [HTTP_BAD_HOST] = {400, "the Host header is malformed"},
    [HTTP_BAD_LENGTH] = {400, "the Content-Length is not one number of at most 19 digits"},
    [HTTP_LENGTHS_DIFFER] = {400, "there are several Content-Length headers and they differ"},
    [HTTP_BAD_CODING] = {400, "the Transfer-Encoding is not chunked, once, and nothing else"},
    [HTTP_CODING_IN_1_0] = {400, "there is a Transfer-Encoding in an HTTP/1.0 message"},
    [HTTP_LENGTH_AND_CODING] = {400, "there are both Content-Length and Transfer-Encoding"},
    [HTTP_CONNECT_BODY] = {400, "a CONNECT request has a body"},
    [HTTP_BAD_CONNECTION] = {400, "the Connection header is not a list of at most 16 names"},
    [HTTP_BAD_EXPECTATION] = {417, "the only expectation that can be met is 100-continue"},
    [HTTP_BAD_STATUS] = {400, "the status is not a number from 100 to 599"},
    [HTTP_BODY_FORBIDDEN] = {400, "a body is announced in a response that cannot have one"},
};

int http_refusal_status(enum http_refusal why)
{
    return (unsigned)why < HTTP_REFUSALS ? refusals[why].status : 400;
}

const char *http_refusal_text(enum http_refusal why)
{
    return (unsigned)why < HTTP_REFUSALS ? refusals[why].text : "the message is malformed";
}

// Whether a line of `n` bytes, its end not counted, is still within its ceiling.
static enum http_refusal check_line(const struct http_scan *scan, size_t n)
{
    if (scan->lines == 0)
        return n > HTTP_START_LINE_MAX ? HTTP_TARGET_TOO_LONG : HTTP_FINE;
    if (n > HTTP_FIELD_LINE_MAX)
        return HTTP_FIELD_TOO_LONG;
    return n > 0 && scan->lines > HTTP_FIELDS_MAX ? HTTP_TOO_MANY_FIELDS : HTTP_FINE;
}

// Takes the next byte into account; *ret_end when it is the head's last.
static enum http_refusal step(struct http_scan *scan, unsigned char c, bool *ret_end)
{
    size_t n = scan->at - scan->line;
    scan->at++;
    if (scan->cr) {
        if (c != '\n')
            return HTTP_BAD_LINE_END;
        scan->cr = false;
        scan->line = scan->at;
        bool empty = n == 1;
        *ret_end = empty && scan->lines > 0;
        // The one empty line that may come before a request does not count as its first.
        if (empty && scan->lines == 0) {
            bool second = scan->at > 2;
            return scan->response || second ? HTTP_BAD_START_LINE : HTTP_FINE;
        }
        scan->lines++;
        return HTTP_FINE;
    }
    if (c == '\r') {
        scan->cr = true;
        return HTTP_FINE;
    }
    if (c == '\n')
        return HTTP_BAD_LINE_END;
    if ((c < 0x20 && c != '\t') || c == 0x7F)
        return HTTP_BAD_BYTE;
    return check_line(scan, n + 1);
}

int http_head_find(struct http_scan *scan, const char *bytes, size_t n, size_t *ret_len, enum http_refusal *ret_why)
{
    while (scan->at < n) {
        bool end = false;
        if (scan->at == HTTP_HEAD_MAX) {
            *ret_why = HTTP_HEAD_TOO_LONG;
            return -EBADMSG;
        }
        enum http_refusal why = step(scan, (unsigned char)bytes[scan->at], &end);
        if (why != HTTP_FINE) {
            *ret_why = why;
            return -EBADMSG;
        }
        if (end) {
            *ret_len = scan->at;
            return 1;
        }
    }
    return 0;
}

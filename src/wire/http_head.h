// The heads of HTTP/1.x messages (RFC 9110, RFC 9112), read strictly.  Pure: no I/O, no allocation; all texts are views into
// the caller's bytes.
//
// Who sends them: a guest, a client of the API, or an upstream server.  None is trusted.  Where two readers of the same bytes
// could come to different conclusions about where a message ends or whom it is for, the message is refused: that difference is
// what request smuggling is made of.  What is forwarded is written anew from what was understood here, never copied.
//
// Two steps:
//   http_head_find     is given the bytes so far, as often as there are more, and says where the head ends.  It looks at each
//   byte
//                      once: line ends, bytes that may stand nowhere, and every ceiling of size.
//   http_request_parse, http_response_parse   take the whole head apart.
//
// What is refused though other readers take it: a bare LF or CR, bytes below 0x20 other than TAB, 0x7F, a folded line, a space
// before a colon or at the start of a line, anything but one space between the parts of the first line, a second Host, a
// missing Host (HTTP/1.1), Content-Lengths that differ or are lists, spaces behind what frames a body, Content-Length together
// with Transfer-Encoding (but see HTTP_CHUNKED_WINS), transfer codings other than a single `chunked`, a coding in HTTP/1.0, a
// body announced in a 1xx or 204, user names and fragments in a target. One empty line before a request is passed over (RFC
// 9112, 2.2).
#ifndef WIRE_HTTP_HEAD_H
#define WIRE_HTTP_HEAD_H

#include "wire/http_text.h"

#include <stdint.h>

enum {
    HTTP_HEAD_MAX = 32 * 1024,    // bytes of a whole head, its empty line included; beyond: 431
    HTTP_METHOD_MAX = 32,         // 501
    HTTP_TARGET_MAX = 16 * 1024,  // 414
    // The first line, without its end: method, target, version and the two spaces between.  414.
    HTTP_START_LINE_MAX = HTTP_METHOD_MAX + HTTP_TARGET_MAX + 10,
    HTTP_FIELD_LINE_MAX = 16 * 1024,  // one field line, without its end; 431
    HTTP_FIELDS_MAX = 100,            // field lines; 431
    HTTP_OPTIONS_MAX = 16,            // names in all Connection fields together; 400
    HTTP_LENGTH_DIGITS_MAX = 19,      // of a Content-Length; 400
};

// Why a head is refused.  http_refusal_status is what a server answers; a response that is refused is always 502 to the client.
enum http_refusal {
    HTTP_FINE,
    HTTP_HEAD_TOO_LONG,
    HTTP_TOO_MANY_FIELDS,
    HTTP_FIELD_TOO_LONG,
    HTTP_TARGET_TOO_LONG,
    HTTP_METHOD_TOO_LONG,
    HTTP_BAD_LINE_END,
    HTTP_BAD_BYTE,
    HTTP_FOLDED_LINE,
    HTTP_BAD_START_LINE,
    HTTP_BAD_METHOD,
    HTTP_BAD_TARGET,
    HTTP_BAD_VERSION,
    HTTP_OTHER_VERSION,
    HTTP_BAD_FIELD,
    HTTP_NO_HOST,
    HTTP_SECOND_HOST,
    HTTP_BAD_HOST,
    HTTP_BAD_LENGTH,
    HTTP_LENGTHS_DIFFER,
    HTTP_BAD_CODING,
    HTTP_CODING_IN_1_0,
    HTTP_LENGTH_AND_CODING,
    HTTP_CONNECT_BODY,
    HTTP_BAD_CONNECTION,
    HTTP_BAD_EXPECTATION,
    HTTP_BAD_STATUS,
    HTTP_BODY_FORBIDDEN,
    HTTP_REFUSALS,  // how many there are
};

// The status to answer (400, 414, 417, 431, 501, 505) and a sentence, without a full stop, that names no byte of the message.
int http_refusal_status(enum http_refusal why);
const char *http_refusal_text(enum http_refusal why);

// ---- finding the end ----

// How far http_head_find has looked.  All zero to begin with; one for each message.
struct http_scan {
    size_t at;
    size_t line;     // where the line that is being read starts
    unsigned lines;  // whole lines so far, the first one included
    bool cr;         // the last byte was one
    bool response;   // set by the caller: no empty line may come first
};

// Looks for the end of the head in `bytes`, which are the message's from its first one on; what an earlier call has seen is not
// looked at again (the bytes may have moved meanwhile).
// 1: *ret_len bytes are the head, with its empty line.  0: more are needed.
// -EBADMSG: *ret_why says why; the connection cannot be used any further.
int http_head_find(struct http_scan *scan, const char *bytes, size_t n, size_t *ret_len, enum http_refusal *ret_why);

// ---- what is in it ----

struct http_field {
    struct http_text name;
    struct http_text value;  // without the spaces around it
    // Concerns this connection only and is not forwarded: Connection, Keep-Alive, Proxy-Connection, Proxy-Authenticate,
    // Proxy-Authorization, Proxy-Authentication-Info, TE, Trailer, Transfer-Encoding, Upgrade, and whatever a Connection field
    // names.
    bool hop;
};

struct http_fields {
    struct http_field field[HTTP_FIELDS_MAX];
    unsigned n;
};

// The first field of that name from number `from` on; NULL if there is none.
const struct http_field *http_field_find(const struct http_fields *fields, unsigned from, struct http_text name);

enum http_body_kind {
    HTTP_BODY_NONE,
    HTTP_BODY_LENGTH,       // exactly `length` bytes, which may be 0
    HTTP_BODY_CHUNKED,      // wire/http_chunk.h
    HTTP_BODY_UNTIL_CLOSE,  // responses only
};

struct http_body {
    enum http_body_kind kind;
    uint64_t length;
};

enum http_target_form {
    HTTP_ORIGIN_FORM,     // /path?query
    HTTP_ABSOLUTE_FORM,   // http://authority/path?query
    HTTP_AUTHORITY_FORM,  // host:port, of CONNECT
    HTTP_ASTERISK_FORM,   // *, of OPTIONS
    HTTP_RAW_FORM,        // anything else; only with HTTP_RAW_TARGET
};

// Bits of a listener's policy.
enum {
    // Content-Length together with chunked is read as chunked, and the connection closes behind the answer (RFC 9112, 6.3; spec
    // 000,
    // "If a request carries both, chunked wins").  Without it, it is refused.
    HTTP_CHUNKED_WINS = 1,
    // The target is handed on as it came, for a check of its own (wire/route_check.h): any bytes but spaces and controls.
    HTTP_RAW_TARGET = 2,
};

struct http_request {
    struct http_text method;  // as it came: methods are case-sensitive
    struct http_text target;  // as it came
    enum http_target_form form;
    bool https;                  // absolute-form with https
    struct http_text authority;  // of absolute-form and authority-form: no user name, not empty, else unchecked
    struct http_text path;       // with the query, of origin-form and absolute-form; may be empty in the latter
    unsigned minor;              // HTTP/1.minor, 0 or 1
    struct http_fields fields;
    struct http_text host;  // the Host field's value; n is 0 without one
    struct http_body body;
    bool keep_alive;           // whether another request may follow on this connection
    bool expects_continue;     // waits for 100 before it sends its body
    struct http_text upgrade;  // what it wants to become; n is 0 if it does not
};

// `head` is what http_head_find found.  0, or -EBADMSG with *ret_why.  *ret is then not to be used.
int http_request_parse(const char *head, size_t n, unsigned policy, struct http_request *ret, enum http_refusal *ret_why);

struct http_response {
    unsigned status;  // 100 to 599
    struct http_text reason;
    unsigned minor;
    struct http_fields fields;
    struct http_body body;
    // What a Content-Length says that frames nothing: the answer to a HEAD, a 304.
    bool has_length;
    uint64_t length;
    bool keep_alive;           // whether the connection can carry another exchange once the body is over
    bool tunnel;               // from here on the bytes are not HTTP: 2xx to a CONNECT, or 101
    struct http_text upgrade;  // of a 101
};

// The same for a response; `method` is that of the request it answers, which decides whether there is a body.
int http_response_parse(const char *head, size_t n, struct http_text method, struct http_response *ret,
                        enum http_refusal *ret_why);

#endif

// The name in a TLS ClientHello (RFC 8446, RFC 6066), which says whom a tunnel is for before anything is encrypted.  Pure.
//
// The client is a guest: hostile.  Nothing of TLS is spoken here; the hello is read, bounded in bytes and records, and then
// relayed as it came.  It may be spread over several records.  What is refused: another protocol, lengths that do not add up, a
// second server_name, a server_name with anything but one host name in visible ASCII, more handshake bytes behind the hello.
//
// A hello without the extension is fine and has no name; what that earns is the caller's decision.  Encrypted Client Hello
// hides the real name behind a public one, so a name that comes with it proves nothing: `ech` says so (browsers also send a
// meaningless one).
#ifndef WIRE_TLS_HELLO_H
#define WIRE_TLS_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TLS_RECORD_MAX = 16 * 1024,                                           // bytes of one record's content (RFC 8446, 5.1)
    TLS_HELLO_MAX = 16 * 1024,                                            // bytes of the hello, its own head not counted
    TLS_HELLO_RECORDS_MAX = 32,                                           // records it may be spread over
    TLS_HELLO_BYTES_MAX = TLS_HELLO_MAX + 4 + 5 * TLS_HELLO_RECORDS_MAX,  // what a caller must be able to hold
    TLS_NAME_MAX = 255,
};

struct tls_hello {
    bool has_name;
    char name[TLS_NAME_MAX + 1];  // as it came, terminated; wire/host_name.h normalises it
    uint8_t n;
    bool ech;
    size_t len;  // bytes of the records that the hello took
};

// Looks at the connection's bytes from its first one on.
// 1: *ret is filled in.  0: more are needed.
// -EPROTO: these are not TLS handshake records.  -EBADMSG: a malformed hello.  -EMSGSIZE: beyond a ceiling.
int tls_hello_parse(const uint8_t *bytes, size_t n, struct tls_hello *ret);

#endif

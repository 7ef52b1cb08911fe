// The names of hosts, normalised once, on the side of the rules and on the side of the requests.  Pure.
//
// Two spellings of one host must not be two hosts, or a rule for one misses the other.  So a text becomes, here and nowhere
// else, either an address (a number, compared as such) or a name in one form: ASCII, lower case, without the root dot.
//
// An address is recognised in every notation that some resolver takes for one: dotted decimal, octal and hexadecimal parts,
// fewer than four parts (127.1, 2130706433, 0x7f.1), IPv6 with and without brackets, IPv4-mapped (which is the IPv4 address).
// A name whose last label is a number is one of these or nothing.  An IPv6 zone is refused: it only means something on one
// link.
//
// What is beyond ASCII goes through a function of the caller's (IDNA, by libidn2), and its result through all checks.
#ifndef WIRE_HOST_NAME_H
#define WIRE_HOST_NAME_H

#include "wire/ip_class.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HOST_NAME_BYTES_MAX = 253,  // of the normalised name
    HOST_LABEL_MAX = 63,
    HOST_TEXT_MAX = 1024,  // of what is given, before IDNA
};

enum host_problem {
    HOST_FINE,
    HOST_EMPTY,
    HOST_TOO_LONG,
    HOST_EMPTY_LABEL,
    HOST_LONG_LABEL,
    HOST_DASH,
    HOST_BAD_BYTE,
    HOST_NOT_ASCII,
    HOST_BAD_ADDRESS,
    HOST_ZONE,
    HOST_BAD_PORT,
    HOST_STAR,
    HOST_BARE_STAR,
    HOST_STAR_ADDRESS,
    HOST_PROBLEMS,
};

// What is wrong, as the end of a sentence, without a full stop.
const char *host_problem_text(enum host_problem why);

struct host {
    bool is_address;
    struct ip_addr addr;                 // is_address
    char name[HOST_NAME_BYTES_MAX + 1];  // !is_address: as above, terminated; else ""
    uint8_t n;                           // its length
};

// Turns UTF-8 into the ASCII form of an internationalised name, terminated, in `ascii`: 0 or a negative errno.
typedef int host_idna_fn(void *arg, const char *utf8, size_t n, char *ascii, size_t size);

struct host_idna {
    host_idna_fn *fn;  // NULL: what is beyond ASCII is refused
    void *arg;
};

// A host without a port; IPv6 with or without brackets.  0, or -EINVAL with *ret_why; *ret is untouched then.
int host_parse(const char *text, size_t n, const struct host_idna *idna, struct host *ret, enum host_problem *ret_why);

// host[:port], IPv6 in brackets: what stands in a Host field, in a target.  *ret_port is 0 without one.  A port is 1 to 65535,
// without leading zeros.
int host_port_parse(const char *text, size_t n, const struct host_idna *idna, struct host *ret, uint16_t *ret_port,
                    enum host_problem *ret_why);

bool host_equal(const struct host *a, const struct host *b);

// The normalised text, terminated; IPv6 in brackets.
enum { HOST_FORMAT_MAX = HOST_NAME_BYTES_MAX + 1 };
void host_format(const struct host *host, char text[HOST_FORMAT_MAX]);

#endif

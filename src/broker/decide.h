// The one decision that every entrance meets: what a sandbox's policy and the credentials on file earn a connection.  And the
// record of it: one line in the log, one count, one answer.
#ifndef BROKER_DECIDE_H
#define BROKER_DECIDE_H

#include "broker/dial.h"
#include "broker/sandbox.h"
#include "wire/host_policy.h"

enum shape {
    SHAPE_NONE,
    SHAPE_ORIGIN,            // origin-form with X-Sandbox-Token
    SHAPE_ABSOLUTE,          // absolute-form
    SHAPE_CONNECT,           // CONNECT
    SHAPE_TRANSPARENT_HTTP,  // redirected, port 80
    SHAPE_TRANSPARENT_TCP,   // redirected, any other port
};

// One connection or request, from its first byte to its log line.
struct record {
    struct sandbox *sandbox;
    uint64_t number;
    uint64_t start_ns;
    enum shape shape;
    bool named;  // `host` and `port` are known
    struct host host;
    uint16_t port;
    enum decision decision;
    const char *reason;  // a word for machines, why it was denied or failed; "" if it was not
    const char *detail;  // a few words more, for the log only; "" without
    bool ech;            // its TLS hello may hide another name
    bool logged;
    char address[IP_TEXT_MAX];
    char rule[HOST_RULE_TEXT_MAX];  // the entry that earned it
    // What it earned, when allowed_credentialed; the reference keeps it while the file is read again.
    struct credentials *credentials;
    const struct credential *credential;
};

void record_begin(struct record *r, struct sandbox *s);
// Gives back what it holds.
void record_end(struct record *r);

// A request that the broker can read (relay), or bytes that it cannot (tunnel), to r->host and r->port.  Fills in decision,
// reason, rule and credential; true if it is allowed, by the policy.
bool decide_relay(struct record *r);
bool decide_tunnel(struct record *r);
// Whether any connection to that name could be allowed: what the resolver answers.
bool decide_name(const struct sandbox *s, const struct host *host);

// Whether that policy leads to host and port with a credential on file: then a grant on that origin would protect nothing.
bool decide_overlaps(const struct host_policy *policy, const struct credentials *credentials, const struct host *host,
                     uint16_t port);

// Takes over how a dial ended: address, decision, reason.  The status that a request is answered with: 403, 502, 503; 0 if it
// went well.
unsigned record_dialled(struct record *r, const struct dial_result *result);

// Counts the decision and writes its line, once; `status` is what the guest was told, 0 if nothing could be.
void record_log(struct record *r, unsigned status);
// A second line, when a tunnel or a relayed request is over: the bytes that went each way.
void record_log_end(const struct record *r, uint64_t up, uint64_t down, const char *how);

// The sentence for the guest that belongs to a decision's reason.
const char *reason_sentence(const char *reason);

#endif

// Route grants of sandboxes and of commands (spec 001; docs/grants.md): the engine's side.
//
// Actors.  A client names a profile; the engine says for whom (principal.h) and when it begins and ends; the broker decides
// whether there is such a profile for them, and holds everything else: the engine never sees a route, a key or a path.
//
// States of a sandbox's line:  none -> (first grant) added to the broker -> told to the agent -> ready -> removed, as it
// closes. A line stays for as long as its sandbox; without a grant on it, every request is answered 503 there.  When the broker
// is started anew the line is added again.  An agent that does not say within start_deadline_ms that it is ready costs those
// who wait their grants.
//
// States of a grant:  waiting for the line -> opening -> open -> closing -> ended.
//     Its end is asked for by whoever it was opened for: the command has ended, the client wants the trace, the time of the
//     command has passed (budget_ms and exec_grace_ms), the sandbox closes.  Ended ones keep their trace, the last GRANTS_KEPT
//     of a sandbox, until it is destroyed. A broker that went away took grants and traces along: they end as `lost`.
//
// What the broker sends is checked as it is read: sizes, numbers of rows, texts.  Limits: one grant lent on a line at a time,
// which is the broker's to refuse.
#ifndef ENGINE_GRANTS_H
#define ENGINE_GRANTS_H

#include "base/err.h"
#include "engine/engine.h"
#include "sandbox.pb-c.h"
#include "wire/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct client;
struct request;
struct run_grant;
struct sandbox;

enum { GRANTS_KEPT = 16 };

struct grant_ask {
    const char *profile;  // not empty
    char principal[PRINCIPAL_MAX + 1];
    bool session;        // of one command
    uint64_t budget_ms;  // 0: no limit
};

// Who a request is for.  `given`: it says so itself, which only uids of principal_uids may.  0, or a sandbox_error_t.
int grants_principal(const struct client *client, bool given, const char *asserted, struct grant_ask *ask, struct err *err);

// 0, or a sandbox_error_t with a sentence: this engine can open none now.
int grants_trouble(struct engine *e, struct err *err);

// code 0: it is open; else a sandbox_error_t with a sentence and why nothing ran, and there is no grant.
typedef void grant_opened_fn(void *arg, const struct err *err);
// `opened` follows, later, unless it is let go of first.  NULL, with the error.
struct run_grant *grants_open(struct sandbox *sb, const struct grant_ask *ask, grant_opened_fn *opened, void *arg,
                              struct err *err);
uint32_t grant_id(const struct run_grant *g);
// Ends it; `ended` follows, later, when its authority is over.  Once, for one that is open.
void grant_finish(struct run_grant *g, void (*ended)(void *arg), void *arg);
// Ends it, in whatever state it is; nobody is told.  NULL is fine; returns NULL.
struct run_grant *grant_let_go(struct run_grant *g);

// It goes on until its sandbox or its client ends it.  Returns NULL.
struct run_grant *grant_leave(struct run_grant *g);

// Answers with the trace of a grant of the sandbox, which it ends.
void grants_answer_trace(struct sandbox *sb, struct request *r, const Sandbox__GrantTraceRequest *message);

// What the agent said to agent_line_host_api.
void grants_agent_ready(struct sandbox *sb, uint32_t error_number, const char *message);
// The sandbox closes: its line is removed, and its revocation is due (sandbox_revoked) if this returns true.
bool grants_close(struct sandbox *sb);
// What is due next, from the loop: a timer's function.  `sandbox` is a struct sandbox.
void grants_due(void *sandbox);
// Memory, when nothing of the sandbox is in flight any more.
void grants_free(struct sandbox *sb);
// A broker has been greeted: lines are added again.  `engine` is a struct engine.
void grants_broker_up(void *engine);

#endif

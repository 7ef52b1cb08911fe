// The engine's line to sandbox-broker (wire/broker.h): which sandboxes it serves.
//
// Actors.  The engine dials, asks and waits; the broker answers.  The broker is not trusted with the engine's life: an answer
// is read into a struct of fixed size, and one that is malformed, out of order or for something that was not asked ends the
// line, with an error in the log, as if the broker had died.
//
// States of the line: down -> (connected) -> greeting -> (HELLO answered) -> up -> (lost) -> down.  While it is down it is
// dialled again, after RETRY_MIN_MS at first, at most RETRY_MAX_MS.  A broker that has not answered for ANSWER_MS is taken for
// dead.
//
// States of a sandbox here:
//
//     (add) -> waiting -> adding -> served -> (remove) -> leaving -> removing -> gone
//                  ^          |        |
//                  |   refused, which is tried again RETRY_MAX_MS later, unless it was the first time
//                  +----------+--------+   the line was lost
//
// So whenever the line is up, the broker is told of every sandbox that should have one, in the order of their adding.  What is
// waiting or leaving is a list of the sandboxes themselves: nothing is queued beside them.  At most IN_FLIGHT_MAX requests are
// unanswered at a time; a socket that takes no more is waited for.
//
// An add waits for a line that is down only as long as that may be a restart of the broker's: PATIENCE_MS from when it was
// lost, or from the engine's start.  After that it fails at once: who asks for a network gets it, or an error.
//
// When a line is lost, its broker forgets all its sandboxes (wire/broker.h): so a removal is done then.
//
// Orders are the other operations, those of route grants (grants.h): each is asked once, in the order of their coming, and
// behind the sandboxes that wait.  When the line is lost, an order fails with -ENOTCONN, and what it had meant to make or to
// undo is gone with the broker; who wants it after all hears of the next line (broker_line_on_up) and orders it again.  One
// that comes while the line is down waits as an add does, and then fails likewise.
#ifndef ENGINE_BROKER_LINE_H
#define ENGINE_BROKER_LINE_H

#include "engine/egress.h"
#include "engine/network.h"
#include "sys/loop.h"
#include "wire/broker.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

enum {
    BROKER_RETRY_MIN_MS = 20,
    BROKER_RETRY_MAX_MS = 1000,
    BROKER_PATIENCE_MS = 2000,
    BROKER_ANSWER_MS = 5000,
    BROKER_IN_FLIGHT_MAX = 8,
};

struct broker_line;

enum broker_member_state {
    BROKER_MEMBER_NONE,
    BROKER_MEMBER_WAITING,
    BROKER_MEMBER_ADDING,
    BROKER_MEMBER_SERVED,
    BROKER_MEMBER_REFUSED,
    BROKER_MEMBER_LEAVING,
    BROKER_MEMBER_REMOVING,
    BROKER_MEMBER_STATES,
};

// One sandbox's place here; memory of its owner, who fills in the first part before broker_line_add and keeps all of it, and
// what it points to, until `removed`.
struct broker_member {
    uint32_t sandbox_id;
    const struct egress *egress;
    const struct network *network;
    const char *token;  // BROKER_TOKEN_DIGITS of them
    // The answer to the add: 0 or a negative errno with a sentence part, valid during the call.  Once, unless it is removed
    // first.
    void (*added)(void *arg, int error, const char *detail);
    void (*removed)(void *arg);  // the broker serves it no longer; once for each broker_line_remove
    void *arg;

    TAILQ_ENTRY(broker_member) link;  // in the list of its state
    enum broker_member_state state;
    bool unanswered;   // `added` is due
    bool leave;        // remove it as soon as its ADD is answered
    bool complained;   // the log has why it is refused
    uint32_t request;  // id of the request in flight
};

// One order; memory of its owner, who fills in the first part and keeps it until `done`.
struct broker_order {
    enum broker_op op;  // LINE_ADD, LINE_REMOVE, GRANT_OPEN or GRANT_CLOSE
    uint32_t sandbox_id;
    int fd;                            // LINE_ADD: the owner's until `done`; else -1
    const struct broker_grant *grant;  // GRANT_OPEN, GRANT_CLOSE; the owner's until `done`
    // The answer: 0 or a negative errno, a sentence part that is valid during the call, and the descriptor that came with it
    // (-1: none), which is the callback's.  Once; the order may be reused or freed in it.  -EMFILE: it was done, and the
    // descriptor lost.
    void (*done)(void *arg, int error, const char *detail, int fd);
    void *arg;

    TAILQ_ENTRY(broker_order) link;
    enum { BROKER_ORDER_NONE, BROKER_ORDER_WAITING, BROKER_ORDER_ASKED } state;
    uint32_t request;
};

struct broker_line_facts {
    bool up;
    unsigned served, waiting;  // waiting: should be served, and are not
    uint64_t connects, losses, refusals;
};

// Begins to dial.  `path`: absolute, or a name in `run_dir`; "" for no broker at all.  It outlives the line.  0 or a negative
// errno.
int broker_line_new(struct loop *loop, int run_dir, const char *path, struct broker_line **ret_line);
// The last thing but freeing: hangs up, for good.  Whoever is being removed is told that it is; what is removed from here on is
// removed at once.
void broker_line_close(struct broker_line *line);
// NULL is fine; returns NULL.  Only when nobody is in it.
struct broker_line *broker_line_free(struct broker_line *line);

// NULL, or why no sandbox can be given a network now: a sentence without a full stop, valid until the next call.
const char *broker_line_trouble(struct broker_line *line);

// Has the broker serve it; `added` follows, later.  -ENOTCONN: there is trouble, and it will not.
int broker_line_add(struct broker_line *line, struct broker_member *member);
// Has the broker forget it, whatever state it is in; `removed` follows, maybe before this returns, and nothing else.
void broker_line_remove(struct broker_line *line, struct broker_member *member);

// Asks it; `done` follows, later.  -ENOTCONN: there is trouble, and it will not.
int broker_line_order(struct broker_line *line, struct broker_order *order);
// `on_up` is called whenever a broker has been greeted; it may order.  Once, before the loop runs.
void broker_line_on_up(struct broker_line *line, void (*on_up)(void *arg), void *arg);

struct broker_line_facts broker_line_facts(const struct broker_line *line);

#endif

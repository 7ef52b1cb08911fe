// A sandbox-broker that a test plays for the engine, in a thread of its own: it answers as the real one does, until the test
// tells it otherwise.
#ifndef TESTS_ENGINE_BROKER_H
#define TESTS_ENGINE_BROKER_H

#include "engine_rig.h"
#include "wire/broker.h"

enum { PLAYED_SERVED_MAX = 512, PLAYED_LINES_MAX = 32, PLAYED_ROWS = 3 };

// The engine's argument for its socket.
#define PLAYED_BROKER "broker_socket=broker.sock"

// What is wrong with the answers, to all but HELLO:
enum played_wrong {
    WRONG_NOTHING,
    WRONG_ID,
    WRONG_OP,
    WRONG_SHORT,
    WRONG_LONG,
    WRONG_SIGN,   // a positive error
    WRONG_HUGE,   // an error that is none
    WRONG_TEXT,   // a detail without an end
    WRONG_FD,     // with a descriptor where none belongs, or without the one that does
    WRONG_TWICE,  // each answer comes again
    // and to HELLO:
    WRONG_VERSION,
    WRONG_OLD,
    WRONG_REFUSED,
};

// What is wrong with the files that come with GRANT_OPEN and GRANT_CLOSE:
enum played_file {
    FILE_GOOD,
    FILE_EMPTY,
    FILE_SHORT,   // a byte
    FILE_LONG,    // a byte
    FILE_COUNTS,  // more is said to be in it than may be
    FILE_TEXT,    // texts without an end
    FILE_PIPE,    // it is none
    FILE_KINDS
};

struct played_broker {
    char path[128];
    pthread_t thread;
    atomic_bool stop;
    // What it does:
    atomic_int wrong;                        // enum played_wrong
    atomic_int wrong_op;                     // only in answers to this; 0: to any
    atomic_int file;                         // enum played_file
    atomic_uint preload;                     // bytes of the text for agents; 0: ten
    atomic_int order_error[BROKER_OP_END_];  // a negative errno for LINE_ADD to GRANT_CLOSE
    atomic_int add_error;                    // a negative errno for ADD
    atomic_bool hold;                        // nothing is answered
    atomic_bool blind;                       // nothing is even read, from when `is_blind` is true
    atomic_bool is_blind;
    atomic_bool hang_up;  // the line is closed, once
    // What it saw:
    atomic_uint connections, hellos, adds, removes;
    atomic_uint orders[BROKER_OP_END_];  // LINE_ADD to GRANT_CLOSE
    atomic_uint served;                  // now
    atomic_uint has_lines, has_grants;   // likewise
    atomic_bool broken;                  // a request that the real one would not take
    pthread_mutex_t lock;
    // Under `lock`: who is served, and the last ADD.
    struct {
        uint32_t id;
        char token[BROKER_TOKEN_DIGITS];
    } sandbox[PLAYED_SERVED_MAX];
    struct broker_add last;
    unsigned last_fds;
    struct {
        uint32_t sandbox;  // 0: none
        uint32_t grant;    // that is lent on it; 0: none
    } line[PLAYED_LINES_MAX];
    struct broker_grant last_grant;  // that was opened
};

struct played_broker *played_broker_start(const struct rig *rig);
// An engine with `args`, a broker that it has found, and a client's connection to it.
void played_broker_begin(const char *const *args, struct rig **ret_rig, struct played_broker **ret_broker, int *ret_fd);
// The same in two steps, so that it begins as the test wants it.
struct played_broker *played_broker_new(const struct rig *rig);
void played_broker_open(struct played_broker *b);
// As when it is killed: the line, the listener and its file are gone.  Whether it was never broken.
bool played_broker_stop(struct played_broker *b);

// Whether this sandbox is served; with `token` not NULL, which one it has.
bool played_broker_serves(struct played_broker *b, uint32_t id, char token[BROKER_TOKEN_DIGITS + 1]);
// The last grant that was opened.
struct broker_grant played_broker_last_grant(struct played_broker *b);
// The last ADD.
struct broker_add played_broker_last(struct played_broker *b, unsigned *ret_fds);

#endif

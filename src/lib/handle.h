// One sandbox as its owner sees it.
#ifndef LIB_HANDLE_H
#define LIB_HANDLE_H

#include "lib/conn.h"

enum { START_KIND_MAX = 15 };

struct sandbox_handle_t {
    sandbox_conn_t *conn;  // holds a reference
    uint32_t id;
    uint32_t isolation;
    uint32_t grant_id;  // of the one it was created with; 0: none
    char start[START_KIND_MAX + 1];
    sandbox_network_t *network;                // NULL: it has none; with all it points to, in one piece
    struct sandbox_handle_t *next, *previous;  // in conn->handles, under conn->lock
};

// A handle for what the engine made.  NULL: no memory.
sandbox_handle_t *handle_new(sandbox_conn_t *conn, const Sandbox__CreateResponse *made);
// Takes it off its connection's list and frees it; says nothing to the engine.
void handle_free(sandbox_handle_t *handle);

// Destroys every sandbox of the connection, all at once, and waits for the answers.  Failures are left to the engine, which
// reclaims what a closed connection owned.
void handles_destroy_all(sandbox_conn_t *conn);

// Tells the engine to destroy one sandbox and waits.
sandbox_error_t destroy_sandbox(sandbox_conn_t *conn, uint32_t id);

#endif

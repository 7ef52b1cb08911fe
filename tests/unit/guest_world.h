// A sandbox whose guest answers as each test of libsandbox wants.
#ifndef TESTS_UNIT_GUEST_WORLD_H
#define TESTS_UNIT_GUEST_WORLD_H

#include "fake_engine.h"
#include "libsandbox.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

typedef Sandbox__Guest__Result result_t;

// What the guest does next, and what it saw.  Used by one call at a time: the engine's thread runs only while the test waits.
struct guest {
    void (*answer)(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g);
    result_t result;  // for `answer_result`
    const void *bytes;
    size_t n_bytes;
    uint8_t *file;  // for `serve_file`
    size_t file_len;
    unsigned calls;
    char log[512];
    size_t log_len;
};

struct world {
    struct fake_engine *engine;
    sandbox_conn_t *conn;
    sandbox_handle_t *h;
    struct guest guest;
};

static inline void handle(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    struct guest *g = arg;
    if (m->request_case != SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST) {
        fake_behave(peer, m, NULL);
        return;
    }
    g->calls++;
    g->answer(peer, m, g);
}

static inline int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    w->engine = fake_start(handle, &w->guest);
    assert_int_equal(sandbox_conn_open(fake_path(w->engine), &w->conn), SANDBOX_OK);
    sandbox_spec_t spec = {.template_name = "t"};
    assert_int_equal(sandbox_conn_create(w->conn, &spec, &w->h), SANDBOX_OK);
    *state = w;
    return 0;
}

static inline int teardown(void **state)
{
    struct world *w = *state;
    sandbox_destroy(w->h);
    sandbox_conn_close(w->conn);
    fake_stop(w->engine);
    free(w);
    return 0;
}

static inline void answer_result(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    fake_guest(peer, m, &g->result);
}

static inline void answer_bytes(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    fake_guest_bytes(peer, m, g->bytes, g->n_bytes);
}

static inline void answer_error(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    fake_error(peer, m->request_id, SANDBOX_ERR_TIMEOUT, "too late");
}

static inline void answer_for_another(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    Sandbox__ClientMessage other = *m;
    Sandbox__GuestRequest guest = *m->guest;
    guest.sandbox_id++;
    other.guest = &guest;
    fake_guest(peer, &other, &g->result);
}

static inline ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)text, .len = strlen(text)};
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif

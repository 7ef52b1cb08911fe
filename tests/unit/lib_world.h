// What every test of libsandbox begins with.
#ifndef TESTS_UNIT_LIB_WORLD_H
#define TESTS_UNIT_LIB_WORLD_H

#include "fake_engine.h"
#include "libsandbox.h"
#include "unit.h"

// An output that a failing call must leave alone.
static const char untouched;
#define UNTOUCHED ((void *)&untouched)

static inline sandbox_spec_t small_spec(void)
{
    return (sandbox_spec_t){.memory_mib = 64, .vcpu_count = 1, .template_name = "debian"};
}

static inline sandbox_conn_t *open_to(struct fake_engine *engine)
{
    sandbox_conn_t *conn = NULL;
    assert_int_equal(sandbox_conn_open(fake_path(engine), &conn), SANDBOX_OK);
    return conn;
}

static inline sandbox_handle_t *create_on(sandbox_conn_t *conn)
{
    sandbox_spec_t spec = small_spec();
    sandbox_handle_t *h = NULL;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_OK);
    return h;
}

static inline bool is_status(const Sandbox__ClientMessage *m)
{
    return m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_STATUS;
}

#endif

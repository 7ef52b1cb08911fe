#include "base/cleanup.h"
#include "lib/default_conn.h"
#include "lib/encode.h"
#include "lib/errors.h"
#include "lib/handle.h"
#include "wire/pb.h"

#include <string.h>

// The engine judges values; here is only what it could not see.
static sandbox_error_t check_spec(const sandbox_spec_t *spec)
{
    if (spec == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "spec is NULL");
    if (spec->template_name == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "spec.template_name is not set: name a template");
    if (spec->min_isolation > SANDBOX_ISOLATION_VM)
        return fail(SANDBOX_ERR_INVALID_SPEC, "spec.min_isolation %u is not an isolation tier", spec->min_isolation);
    if (spec->grant_profile != NULL && spec->grant_profile[0] == '\0')
        return fail(SANDBOX_ERR_INVALID_SPEC, "spec.grant_profile is empty: name a profile, or leave it NULL");
    // On the wire an empty key stands for none, so the engine could not tell.
    if (spec->session_key != NULL && spec->session_key[0] == '\0')
        return fail(SANDBOX_ERR_INVALID_SPEC, "spec.session_key is empty: it has 1 to 127 printable bytes, or is NULL");
    sandbox_error_t r = check_variables(spec->env_vars);
    if (r == SANDBOX_OK)
        r = check_reserved(spec->reserved, sizeof spec->reserved / sizeof spec->reserved[0], "sandbox_spec_t");
    return r;
}

static sandbox_error_t no_weaker_than(const sandbox_spec_t *spec, sandbox_handle_t *h)
{
    if (h->isolation >= spec->min_isolation)
        return SANDBOX_OK;
    sandbox_isolation_t got = sandbox_isolation(h);
    sandbox_destroy(h);
    sandbox_error_t r =
        fail(SANDBOX_ERR_INVALID_SPEC, "the engine made a sandbox of tier %s, weaker than the %s asked for; it was destroyed",
             sandbox_isolation_name(got), sandbox_isolation_name((sandbox_isolation_t)spec->min_isolation));
    return fail_not_run(r, SANDBOX_NOT_RUN_ISOLATION);
}

static sandbox_error_t adopt(sandbox_conn_t *conn, const sandbox_spec_t *spec, const Sandbox__CreateResponse *made,
                             sandbox_handle_t **out_handle)
{
    sandbox_handle_t *h = handle_new(conn, made);
    if (h == NULL) {
        destroy_sandbox(conn, made->sandbox_id);
        return fail_memory();
    }
    sandbox_error_t r = no_weaker_than(spec, h);
    if (r == SANDBOX_OK)
        *out_handle = h;
    return r;
}

static sandbox_error_t send_create(sandbox_conn_t *conn, Sandbox__CreateRequest *create, const sandbox_spec_t *spec,
                                   sandbox_handle_t **out_handle)
{
    DEFINE_REQUEST(request, CREATE, create, create);
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_call(conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE, &reply);
    if (r == SANDBOX_OK)
        r = adopt(conn, spec, reply->create, out_handle);
    pb_free(reply);
    return r;
}

sandbox_error_t sandbox_conn_create(sandbox_conn_t *conn, const sandbox_spec_t *spec, sandbox_handle_t **out_handle)
{
    if (conn == NULL || out_handle == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", conn == NULL ? "conn" : "out_handle");
    sandbox_error_t r = check_spec(spec);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__CreateRequest create = SANDBOX__CREATE_REQUEST__INIT;
    create.memory_mib = spec->memory_mib;
    create.vcpu_count = spec->vcpu_count;
    create.template_name = (char *)spec->template_name;
    create.pool_wait_ms = spec->pool_wait_ms;
    create.session_key = bytes_of_text(spec->session_key);
    create.ttl_seconds = spec->ttl_seconds;
    create.egress_deny_all = spec->egress_deny_all != 0;
    create.min_isolation = spec->min_isolation;
    create.disk_mib = spec->disk_mib;
    if (spec->grant_profile != NULL)
        create.grant_profile = (char *)spec->grant_profile;
    if (spec->principal != NULL) {
        create.opt_principal_case = SANDBOX__CREATE_REQUEST__OPT_PRINCIPAL_PRINCIPAL;
        create.principal = (char *)spec->principal;
    }
    cleanup_free ProtobufCBinaryData *env = NULL, *egress = NULL;
    r = bytes_of_list(spec->env_vars, "env_vars", &env, &create.n_env_vars);
    if (r == SANDBOX_OK)
        r = bytes_of_list(spec->egress_allow, "egress_allow", &egress, &create.n_egress_allow);
    create.env_vars = env;
    create.egress_allow = egress;
    return r == SANDBOX_OK ? send_create(conn, &create, spec, out_handle) : r;
}

sandbox_error_t sandbox_create(const sandbox_spec_t *spec, sandbox_handle_t **out_handle)
{
    sandbox_conn_t *conn = NULL;
    sandbox_error_t r = default_conn_ref(&conn);
    if (r != SANDBOX_OK)
        return r;
    r = sandbox_conn_create(conn, spec, out_handle);
    conn_unref(conn);
    return r;
}

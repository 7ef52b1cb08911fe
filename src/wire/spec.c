#include "wire/spec.h"

#include "libsandbox.h"
#include "wire/host_policy.h"
#include "wire/limits.h"
#include "wire/path.h"
#include "wire/snapshot_meta.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

// The last column of every check: INVALID_SPEC and a sentence.
#define INVALID(...) err_set(err, SANDBOX_ERR_INVALID_SPEC, __VA_ARGS__)

enum { QUOTED_MAX = 80 };

static bool has_nul(ProtobufCBinaryData b)
{
    return b.len > 0 && memchr(b.data, '\0', b.len) != NULL;
}

bool spec_template_name_ok(const char *name)
{
    size_t n = strnlen(name, TEMPLATE_NAME_MAX + 1);
    if (n == 0 || n > TEMPLATE_NAME_MAX || strchr("._-", name[0]) != NULL)
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

// ---- egress entries ----

// What is shown of an entry that is wrong: its beginning, without what could not be printed.
static void quote(ProtobufCBinaryData entry, char text[static QUOTED_MAX + 4])
{
    size_t n = entry.len < QUOTED_MAX ? entry.len : QUOTED_MAX;
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(entry.data[i] > ' ' && entry.data[i] < 0x7F && entry.data[i] != '"' ? entry.data[i] : '?');
    strcpy(text + n, n < entry.len ? "..." : "");
}

static int take_entry(const Sandbox__CreateRequest *r, size_t i, const struct host_idna *idna, struct host_policy *policy,
                      struct err *err)
{
    enum host_problem why;
    const ProtobufCBinaryData *entry = &r->egress_allow[i];
    Sandbox__EgressKind kind = i < r->n_egress_kinds ? r->egress_kinds[i] : SANDBOX__EGRESS_KIND__EGRESS_KIND_ANY_DEPTH;
    unsigned flags = kind == SANDBOX__EGRESS_KIND__EGRESS_KIND_ONE_LABEL ? HOST_RULES_ONE_LABEL : 0;
    if (host_policy_add(policy, (const char *)entry->data, entry->len, flags, idna, &why) == 0)
        return 0;
    char text[QUOTED_MAX + 4];
    quote(*entry, text);
    return INVALID("egress_allow entry %zu, \"%s\", is malformed: %s; write host, host:port or *.suffix[:port]", i + 1, text,
                   host_problem_text(why));
}

static int check_egress(const Sandbox__CreateRequest *r, const struct host_idna *idna, struct host_policy *ret_policy,
                        struct err *err)
{
    if (r->n_egress_allow > 0 && r->egress_deny_all)
        return INVALID("egress_allow and egress_deny_all contradict each other: give one of them");
    if (r->n_egress_allow > EGRESS_ENTRIES_MAX)
        return INVALID("egress_allow has %zu entries; at most %d are allowed", r->n_egress_allow, EGRESS_ENTRIES_MAX);
    if (r->n_egress_kinds > r->n_egress_allow)
        return INVALID("egress_kinds has %zu members and egress_allow only %zu entries", r->n_egress_kinds, r->n_egress_allow);
    for (size_t i = 0; i < r->n_egress_kinds; i++)
        if (r->egress_kinds[i] != SANDBOX__EGRESS_KIND__EGRESS_KIND_ANY_DEPTH &&
            r->egress_kinds[i] != SANDBOX__EGRESS_KIND__EGRESS_KIND_ONE_LABEL)
            return INVALID("egress_kinds member %zu is %d, which this engine does not know", i + 1, (int)r->egress_kinds[i]);
    ret_policy->n = 0;
    int code = 0;
    for (size_t i = 0; code == 0 && i < r->n_egress_allow; i++)
        code = take_entry(r, i, idna, ret_policy, err);
    return code;
}

// ---- environment ----

// `what` is the field's name for the sentence; values may be secret and are never printed.
static int check_env(const char *what, size_t n, const ProtobufCBinaryData *vars, struct err *err)
{
    if (n > ENV_VARS_MAX)
        return INVALID("%s has %zu variables; at most %d are allowed", what, n, ENV_VARS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (vars[i].len > ENV_VAR_MAX)
            return INVALID("%s entry %zu is %zu bytes long; at most %d are allowed", what, i + 1, vars[i].len, ENV_VAR_MAX);
        if (has_nul(vars[i]))
            return INVALID("%s entry %zu contains a NUL byte", what, i + 1);
        if (vars[i].len == 0 || vars[i].data[0] == '=' || memchr(vars[i].data, '=', vars[i].len) == NULL)
            return INVALID("%s entry %zu is not KEY=VALUE", what, i + 1);
    }
    return 0;
}

static int check_env_total(size_t n, const ProtobufCBinaryData *vars, struct err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += vars[i].len + 4;
    if (total > SPEC_ENV_TOTAL_MAX)
        return INVALID("env_vars take %zu bytes together; at most %d are allowed", total, SPEC_ENV_TOTAL_MAX);
    return 0;
}

// ---- snapshots ----

int spec_check_snapshot_id(const char *id, struct err *err)
{
    if (snapshot_id_valid(id))
        return 0;
    return INVALID("\"%.40s\" is not the id of a snapshot: those are \"snp_\" and 13 of 0-9 and a-v", id);
}

int spec_check_fork(const Sandbox__ForkRequest *r, uint32_t count_max, struct err *err)
{
    if (r->count == 0 || r->count > count_max)
        return INVALID("count is %" PRIu32 "; 1 to %" PRIu32 " are allowed (max_fork)", r->count, count_max);
    int code = spec_check_snapshot_id(r->snapshot_id, err);
    if (code == 0)
        code = check_env("env_vars", r->n_env_vars, r->env_vars, err);
    return code == 0 ? check_env_total(r->n_env_vars, r->env_vars, err) : code;
}

// ---- grants ----

static int check_grant(const char *profile, uint32_t min_isolation, struct err *err)
{
    if (min_isolation > SANDBOX_ISOLATION_VM)
        return INVALID("min_isolation is %" PRIu32 "; it goes from 0 (no floor) to %d (vm)", min_isolation,
                       SANDBOX_ISOLATION_VM);
    if (strnlen(profile, GRANT_PROFILE_MAX + 1) > GRANT_PROFILE_MAX)
        return INVALID("grant_profile is longer than %d bytes", (int)GRANT_PROFILE_MAX);
    return 0;
}

// ---- create ----

int spec_check_session_key(ProtobufCBinaryData key, struct err *err)
{
    bool ok = key.len > 0 && key.len <= SESSION_KEY_MAX;
    for (size_t i = 0; ok && i < key.len; i++)
        ok = key.data[i] >= 0x20 && key.data[i] < 0x7F && key.data[i] != '"' && key.data[i] != '\\';
    if (!ok)
        return INVALID("session_key must be 1-%d printable ASCII bytes without '\"' and '\\'", SESSION_KEY_MAX);
    return 0;
}

static int check_size(const Sandbox__CreateRequest *r, const struct spec_limits *limits, struct err *err)
{
    if (r->memory_mib < SPEC_MEMORY_MIB_MIN || r->memory_mib > limits->memory_mib_max)
        return INVALID("memory_mib is %" PRIu64 "; this engine allows %d to %" PRIu64, r->memory_mib, SPEC_MEMORY_MIB_MIN,
                       limits->memory_mib_max);
    if (r->vcpu_count < 1 || r->vcpu_count > limits->vcpus_max)
        return INVALID("vcpu_count is %" PRIu32 "; this engine allows 1 to %" PRIu32, r->vcpu_count, limits->vcpus_max);
    if (r->disk_mib != 0 && (r->disk_mib < SPEC_DISK_MIB_MIN || r->disk_mib > limits->disk_mib_max))
        return INVALID("disk_mib is %" PRIu64 "; this engine allows %d to %" PRIu64 ", or 0 for its default", r->disk_mib,
                       SPEC_DISK_MIB_MIN, limits->disk_mib_max);
    return 0;
}

int spec_check_create(const Sandbox__CreateRequest *r, const struct spec_limits *limits, struct host_policy *ret_egress,
                      struct err *err)
{
    int code = check_size(r, limits, err);
    if (code == 0 && r->template_name[0] == '\0')
        code = INVALID("template_name is empty: name a template or an alias");
    if (code == 0 && !spec_template_name_ok(r->template_name))
        code = INVALID("template_name must be 1-%d of a-z, 0-9 and ._-, beginning with a letter or digit", TEMPLATE_NAME_MAX);
    if (code == 0)
        code = check_grant(r->grant_profile, r->min_isolation, err);
    if (code == 0)
        code = check_env("env_vars", r->n_env_vars, r->env_vars, err);
    if (code == 0)
        code = check_env_total(r->n_env_vars, r->env_vars, err);
    if (code == 0 && r->session_key.len > 0)  // empty: none
        code = spec_check_session_key(r->session_key, err);
    if (code == 0)
        code = check_egress(r, limits->idna, ret_egress, err);
    return code;
}

// ---- guest operations ----

// What can be said of a file operation's path by looking at it; whether it stays inside /workspace, symbolic links and all,
// only the agent can see.
static int check_path(ProtobufCBinaryData path, struct err *err)
{
    switch (path_check(path.data, path.len)) {
    case 0:
        return 0;
    case -ENAMETOOLONG:
        return INVALID("the path is longer than %d bytes, or one of its names than %d", PATH_BYTES_MAX, NAME_BYTES_MAX);
    case -EACCES:
        return err_set(err, SANDBOX_ERR_PATH_DENIED,
                       "the path must be absolute, begin with " WORKSPACE_PATH " and have no \".\" or \"..\" component");
    default:
        return err_set(err, SANDBOX_ERR_PATH_DENIED, "the path is empty or contains a NUL byte");
    }
}

static int check_mode(uint32_t mode, struct err *err)
{
    if (mode > 07777)
        return INVALID("mode 0%" PRIo32 " has bits beyond 07777", mode);
    return 0;
}

static int check_argv(const Sandbox__Guest__Exec *e, struct err *err)
{
    if (e->n_argv == 0 || e->n_argv > EXEC_ARGS_MAX)
        return INVALID("argv has %zu elements; 1 to %d are allowed", e->n_argv, EXEC_ARGS_MAX);
    if (e->shell && e->n_argv != 1)
        return INVALID("with shell, argv is exactly one element, the script; it has %zu", e->n_argv);
    for (size_t i = 0; i < e->n_argv; i++)
        if (has_nul(e->argv[i]))
            return INVALID("argv element %zu contains a NUL byte", i);
    if (!e->shell && e->argv[0].len == 0)
        return INVALID("argv element 0, the program, is empty");
    return 0;
}

static int check_exec_limits(const Sandbox__Guest__Exec *e, struct err *err)
{
    if (e->timeout_ms > EXEC_TIMEOUT_MAX_MS)
        return INVALID("timeout_ms is %" PRIu32 "; at most %d (one hour) is allowed", e->timeout_ms, EXEC_TIMEOUT_MAX_MS);
    size_t input = e->stdin.len + e->stdin_rest;
    if (input > EXEC_STDIN_MAX)
        return err_set(err, SANDBOX_ERR_TOO_LARGE, "stdin is %zu bytes long; at most %d are allowed", input, EXEC_STDIN_MAX);
    if (e->stdout_head > EXEC_STDOUT_HEAD)
        return INVALID("stdout_head is %" PRIu32 "; at most %d fits a reply", e->stdout_head, EXEC_STDOUT_HEAD);
    if (e->stderr_head > EXEC_STDERR_HEAD)
        return INVALID("stderr_head is %" PRIu32 "; at most %d fits a reply", e->stderr_head, EXEC_STDERR_HEAD);
    return 0;
}

static int check_exec(const Sandbox__Guest__Exec *e, struct err *err)
{
    int code = check_argv(e, err);
    if (code == 0)
        code = check_env("env", e->n_env, e->env, err);
    if (code == 0 && e->cwd.len > PATH_BYTES_MAX)
        code = INVALID("cwd is %zu bytes long; at most %d are allowed", e->cwd.len, PATH_BYTES_MAX);
    if (code == 0 && e->cwd.len > 0 && (e->cwd.data[0] != '/' || has_nul(e->cwd)))
        code = INVALID("cwd must be an absolute path without NUL bytes, or empty for /workspace");
    return code == 0 ? check_exec_limits(e, err) : code;
}

static int check_read(const Sandbox__Guest__ReadFile *f, struct err *err)
{
    int code = check_path(f->path, err);
    if (code == 0 && f->max_bytes > FILE_CHUNK_MAX)
        code = err_set(err, SANDBOX_ERR_TOO_LARGE, "max_bytes is %" PRIu32 "; at most %d can be read at once", f->max_bytes,
                       FILE_CHUNK_MAX);
    if (code == 0 && f->offset > INT64_MAX)
        code = INVALID("offset %" PRIu64 " is beyond any file", f->offset);
    return code;
}

static int check_write(const Sandbox__Guest__WriteFile *f, struct err *err)
{
    int code = check_path(f->path, err);
    if (code == 0 && f->data.len > FILE_CHUNK_MAX)
        code = err_set(err, SANDBOX_ERR_TOO_LARGE, "data is %zu bytes long; at most %d can be written at once", f->data.len,
                       FILE_CHUNK_MAX);
    return code == 0 ? check_mode(f->mode, err) : code;
}

static int check_mkdir(const Sandbox__Guest__Mkdir *d, struct err *err)
{
    int code = check_path(d->path, err);
    return code == 0 ? check_mode(d->mode, err) : code;
}

static int check_operation(const Sandbox__GuestRequest *r, struct err *err);

int spec_check_guest(const Sandbox__GuestRequest *r, struct err *err)
{
    if (r->grant_profile[0] != '\0' && r->op_case != SANDBOX__GUEST_REQUEST__OP_EXEC)
        return INVALID("grant_profile: only a command can have a grant");
    int code = check_grant(r->grant_profile, r->min_isolation, err);
    return code == 0 ? check_operation(r, err) : code;
}

static int check_operation(const Sandbox__GuestRequest *r, struct err *err)
{
    switch (r->op_case) {
    case SANDBOX__GUEST_REQUEST__OP_EXEC:
        return check_exec(r->exec, err);
    case SANDBOX__GUEST_REQUEST__OP_READ_FILE:
        return check_read(r->read_file, err);
    case SANDBOX__GUEST_REQUEST__OP_WRITE_FILE:
        return check_write(r->write_file, err);
    case SANDBOX__GUEST_REQUEST__OP_LIST_DIR:
        return check_path(r->list_dir->path, err);
    case SANDBOX__GUEST_REQUEST__OP_STAT:
        return check_path(r->stat->path, err);
    case SANDBOX__GUEST_REQUEST__OP_MKDIR:
        return check_mkdir(r->mkdir, err);
    case SANDBOX__GUEST_REQUEST__OP_REMOVE:
        return check_path(r->remove->path, err);
    case SANDBOX__GUEST_REQUEST__OP_LIST_PROCESSES:
        return 0;
    case SANDBOX__GUEST_REQUEST__OP_SIGNAL_PROCESS:
        if (r->signal_process->signal < 1 || r->signal_process->signal > SPEC_SIGNAL_MAX)
            return INVALID("signal is %" PRIu32 "; signals go from 1 to %d", r->signal_process->signal, SPEC_SIGNAL_MAX);
        return 0;
    default:
        return INVALID("the guest operation is missing, or one this engine does not know");
    }
}

// ---- streams ----

static int check_command(const Sandbox__Guest__Exec *e, const Sandbox__Guest__Terminal *terminal, struct err *err)
{
    if (e == NULL)
        return INVALID("there is no command");
    if (terminal != NULL && (terminal->rows > UINT16_MAX || terminal->cols > UINT16_MAX))
        return INVALID("the terminal is %" PRIu32 " by %" PRIu32 "; at most %d rows and columns are possible", terminal->rows,
                       terminal->cols, UINT16_MAX);
    if (e->stdin_rest > 0)
        return INVALID("stdin_rest is %" PRIu32 "; no input follows a stream's request, it goes over the stream",
                       e->stdin_rest);
    return check_exec(e, err);
}

static int check_any_path(ProtobufCBinaryData path, struct err *err)
{
    int code = check_path(path, err);
    if (code == SANDBOX_ERR_PATH_DENIED)
        return err_set(err, code, "the path must be absolute and have no \".\" or \"..\" component");
    return code;
}

static int check_stream_operation(const Sandbox__StreamRequest *r, struct err *err);

int spec_check_stream(const Sandbox__StreamRequest *r, struct err *err)
{
    int code = check_grant(r->grant_profile, r->min_isolation, err);
    if (code == 0 && r->grant_profile[0] != '\0' && r->op_case != SANDBOX__STREAM_REQUEST__OP_EXEC) {
        INVALID("grant_profile: a command in the background can have no grant, because it would outlive its call; nor can a "
                "transfer");
        err->not_run = SANDBOX__NOT_RUN__NOT_RUN_UNSUPPORTED;
        return err->code;
    }
    return code == 0 ? check_stream_operation(r, err) : code;
}

static int check_stream_operation(const Sandbox__StreamRequest *r, struct err *err)
{
    switch (r->op_case) {
    case SANDBOX__STREAM_REQUEST__OP_EXEC:
        return check_command(r->exec->exec, r->exec->terminal, err);
    case SANDBOX__STREAM_REQUEST__OP_SPAWN:
        if (r->spawn->ring_bytes > PROCESS_RING_MAX)
            return INVALID("ring_bytes is %" PRIu32 "; at most %d are kept", r->spawn->ring_bytes, PROCESS_RING_MAX);
        return check_command(r->spawn->exec, r->spawn->terminal, err);
    case SANDBOX__STREAM_REQUEST__OP_ATTACH:
        return 0;
    case SANDBOX__STREAM_REQUEST__OP_TAR_IN:
        return check_any_path(r->tar_in->path, err);
    case SANDBOX__STREAM_REQUEST__OP_TAR_OUT:
        return check_any_path(r->tar_out->path, err);
    case SANDBOX__STREAM_REQUEST__OP_READ:
        if (r->read->offset > INT64_MAX)
            return INVALID("offset %" PRIu64 " is beyond any file", r->read->offset);
        return check_any_path(r->read->path, err);
    case SANDBOX__STREAM_REQUEST__OP_WRITE: {
        int code = check_any_path(r->write->path, err);
        return code == 0 ? check_mode(r->write->mode, err) : code;
    }
    default:
        return INVALID("the stream's operation is missing, or one this engine does not know");
    }
}

#include "agent/request_check.h"

#include "wire/limits.h"
#include "wire/path.h"

#include <errno.h>
#include <string.h>

enum { MODE_MAX = 07777, SIGNALS_END = 65 };

static guest_status refuse(guest_status status, int code, struct err *e, const char *sentence)
{
    err_set(e, code, "%s", sentence);
    return status;
}

static guest_status bad(struct err *e, const char *sentence)
{
    return refuse(STATUS(BAD_REQUEST), EINVAL, e, sentence);
}

static bool has_nul(const ProtobufCBinaryData *b)
{
    return b->len > 0 && memchr(b->data, '\0', b->len) != NULL;
}

int env_entry_check(const ProtobufCBinaryData *entry, struct err *e)
{
    const uint8_t *equals = entry->len > 0 ? memchr(entry->data, '=', entry->len) : NULL;
    if (equals == NULL || equals == entry->data)
        return err_set(e, -EINVAL, "An environment entry is not NAME=VALUE with a name; give each as NAME=VALUE.");
    if (has_nul(entry))
        return err_set(e, -EINVAL, "An environment entry contains a NUL byte, which no environment can hold.");
    if (entry->len > ENV_VAR_MAX)
        return err_set(e, -EINVAL, "An environment entry has %zu bytes; at most %d are possible.", entry->len, ENV_VAR_MAX);
    return 0;
}

static guest_status check_path(const ProtobufCBinaryData *path, const char *what, struct err *e)
{
    switch (path_check(path->data, path->len)) {
    case 0:
        return STATUS(OK);
    case -EACCES:
        err_set(e, EACCES, "The %s must be absolute and free of \".\" and \"..\" components.", what);
        return STATUS(DENIED);
    case -ENAMETOOLONG:
        err_set(e, ENAMETOOLONG, "The %s is too long: at most %d bytes, %d in one component.", what, PATH_BYTES_MAX,
                NAME_BYTES_MAX);
        return STATUS(BAD_REQUEST);
    default:
        err_set(e, EINVAL, "The %s is empty or contains a NUL byte.", what);
        return STATUS(BAD_REQUEST);
    }
}

static guest_status check_argv(const Sandbox__Guest__Exec *x, struct err *e)
{
    if (x->n_argv == 0)
        return bad(e, "There is no command: argv is empty.");
    if (x->n_argv > EXEC_ARGS_MAX) {
        err_set(e, EINVAL, "The command has %zu arguments; at most %d are possible.", x->n_argv, EXEC_ARGS_MAX);
        return STATUS(BAD_REQUEST);
    }
    if (x->shell && x->n_argv != 1)
        return bad(e, "A shell command is exactly one argument, the script.");
    if (!x->shell && x->argv[0].len == 0)
        return bad(e, "The command's name is empty.");
    for (size_t i = 0; i < x->n_argv; i++)
        if (has_nul(&x->argv[i]))
            return bad(e, "An argument contains a NUL byte, which no program can be given.");
    return STATUS(OK);
}

// The directory of a command may be anywhere and written in any way; the kernel resolves it in the guest.
static guest_status check_cwd(const ProtobufCBinaryData *cwd, struct err *e)
{
    if (cwd->len == 0)
        return STATUS(OK);
    if (cwd->data[0] != '/' || has_nul(cwd) || cwd->len > PATH_BYTES_MAX)
        return bad(e, "The working directory must be an absolute path without NUL bytes, at most 4095 bytes long.");
    return STATUS(OK);
}

static guest_status check_exec(const Sandbox__Guest__Exec *x, struct err *e)
{
    guest_status status = check_argv(x, e);
    if (status == STATUS(OK))
        status = check_cwd(&x->cwd, e);
    if (status != STATUS(OK))
        return status;
    if (x->n_env > ENV_VARS_MAX) {
        err_set(e, EINVAL, "There are %zu environment entries; at most %d are possible.", x->n_env, ENV_VARS_MAX);
        return STATUS(BAD_REQUEST);
    }
    for (size_t i = 0; i < x->n_env; i++)
        if (env_entry_check(&x->env[i], e) < 0)
            return STATUS(BAD_REQUEST);
    if (x->stdin.len > EXEC_STDIN_MAX) {
        err_set(e, EFBIG, "stdin has %zu bytes; at most %d are possible: write a file instead.", x->stdin.len, EXEC_STDIN_MAX);
        return STATUS(TOO_LARGE);
    }
    return STATUS(OK);
}

static guest_status check_command(const Sandbox__Guest__Exec *x, const Sandbox__Guest__Terminal *terminal, struct err *e)
{
    if (x == NULL)
        return bad(e, "There is no command.");
    if (terminal != NULL && (terminal->rows > UINT16_MAX || terminal->cols > UINT16_MAX))
        return bad(e, "The terminal has more than 65535 rows or columns.");
    return check_exec(x, e);
}

static guest_status check_mode(uint32_t mode, struct err *e)
{
    return mode <= MODE_MAX ? STATUS(OK) : bad(e, "The mode has bits other than permission bits (octal 7777).");
}

static guest_status check_read(const Sandbox__Guest__ReadFile *r, struct err *e)
{
    if (r->offset > INT64_MAX)
        return bad(e, "The offset is larger than any file can be.");
    return check_path(&r->path, "path", e);
}

static guest_status check_write(const Sandbox__Guest__WriteFile *w, struct err *e)
{
    guest_status status = check_path(&w->path, "path", e);
    if (status == STATUS(OK))
        status = check_mode(w->mode, e);
    if (status == STATUS(OK) && w->data.len > FILE_CHUNK_MAX) {
        err_set(e, EFBIG, "The data has %zu bytes; one write takes at most %d: append the rest.", w->data.len, FILE_CHUNK_MAX);
        return STATUS(TOO_LARGE);
    }
    return status;
}

static guest_status check_mkdir(const Sandbox__Guest__Mkdir *m, struct err *e)
{
    guest_status status = check_path(&m->path, "path", e);
    return status == STATUS(OK) ? check_mode(m->mode, e) : status;
}

guest_status request_check(const Sandbox__Agent__Request *request, struct err *e)
{
    if (request->version != AGENT_PROTOCOL_VERSION) {
        err_set(e, EPROTO, "The request speaks version %u of the agent protocol; this agent speaks %d.", request->version,
                AGENT_PROTOCOL_VERSION);
        return STATUS(BAD_VERSION);
    }
    switch (request->op_case) {
    case SANDBOX__AGENT__REQUEST__OP_EXEC:
        return check_exec(request->exec, e);
    case SANDBOX__AGENT__REQUEST__OP_EXEC_STREAM:
        return check_command(request->exec_stream->exec, request->exec_stream->terminal, e);
    case SANDBOX__AGENT__REQUEST__OP_SPAWN:
        if (request->spawn->ring_bytes > PROCESS_RING_MAX)
            return bad(e, "The ring is larger than the 256 KiB that are kept at most.");
        return check_command(request->spawn->exec, request->spawn->terminal, e);
    case SANDBOX__AGENT__REQUEST__OP_TAR_IN:
        return check_path(&request->tar_in->path, "path", e);
    case SANDBOX__AGENT__REQUEST__OP_TAR_OUT:
        return check_path(&request->tar_out->path, "path", e);
    case SANDBOX__AGENT__REQUEST__OP_READ_STREAM:
        if (request->read_stream->offset > INT64_MAX)
            return bad(e, "The offset is larger than any file can be.");
        return check_path(&request->read_stream->path, "path", e);
    case SANDBOX__AGENT__REQUEST__OP_WRITE_STREAM: {
        guest_status status = check_path(&request->write_stream->path, "path", e);
        return status == STATUS(OK) ? check_mode(request->write_stream->mode, e) : status;
    }
    case SANDBOX__AGENT__REQUEST__OP_ATTACH:
    case SANDBOX__AGENT__REQUEST__OP_LIST_PROCESSES:
        return STATUS(OK);
    case SANDBOX__AGENT__REQUEST__OP_SIGNAL_PROCESS:
        return request->signal_process->signal > 0 && request->signal_process->signal < SIGNALS_END
                   ? STATUS(OK)
                   : bad(e, "There is no such signal; they go from 1 to 64.");
    case SANDBOX__AGENT__REQUEST__OP_READ_FILE:
        return check_read(request->read_file, e);
    case SANDBOX__AGENT__REQUEST__OP_WRITE_FILE:
        return check_write(request->write_file, e);
    case SANDBOX__AGENT__REQUEST__OP_LIST_DIR:
        return check_path(&request->list_dir->path, "path", e);
    case SANDBOX__AGENT__REQUEST__OP_STAT:
        return check_path(&request->stat->path, "path", e);
    case SANDBOX__AGENT__REQUEST__OP_MKDIR:
        return check_mkdir(request->mkdir, e);
    case SANDBOX__AGENT__REQUEST__OP_REMOVE:
        return check_path(&request->remove->path, "path", e);
    default:
        return bad(e, "The request asks for an operation that this agent does not know.");
    }
}

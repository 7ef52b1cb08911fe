// A Request frame on an operation line: whatever the bytes, it is parsed within its ceiling of memory, and a request that the
// agent's check lets through is within what the check promises to those behind it.
#include "agent/request_check.h"
#include "wire/limits.h"
#include "wire/path.h"
#include "wire/pb.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int promise)
{
    if (!promise)
        abort();
}

static void no_nul(const ProtobufCBinaryData *b)
{
    need(b->len == 0 || memchr(b->data, '\0', b->len) == NULL);
}

static void good_path(const ProtobufCBinaryData *path)
{
    no_nul(path);
    need(path->len > 0 && path->len <= PATH_BYTES_MAX && path->data[0] == '/');
    char text[PATH_BYTES_MAX + 1];
    memcpy(text, path->data, path->len);
    text[path->len] = '\0';
    const char *at = text;
    size_t n;
    for (const char *c = path_next(&at, &n); c != NULL; c = path_next(&at, &n))
        need(n <= NAME_BYTES_MAX && !(n == 1 && c[0] == '.') && !(n == 2 && c[0] == '.' && c[1] == '.'));
    const char *rest;
    if (path_below(text, WORKSPACE_PATH, &rest))
        need(rest >= text + strlen(WORKSPACE_PATH) && rest <= text + path->len && rest[0] != '/');
}

static void good_exec(const Sandbox__Guest__Exec *x)
{
    need(x->n_argv >= 1 && x->n_argv <= EXEC_ARGS_MAX && (!x->shell || x->n_argv == 1));
    need(x->shell || x->argv[0].len > 0);
    for (size_t i = 0; i < x->n_argv; i++)
        no_nul(&x->argv[i]);
    need(x->n_env <= ENV_VARS_MAX);
    for (size_t i = 0; i < x->n_env; i++) {
        no_nul(&x->env[i]);
        need(x->env[i].len <= ENV_VAR_MAX && x->env[i].data[0] != '=' && memchr(x->env[i].data, '=', x->env[i].len) != NULL);
    }
    no_nul(&x->cwd);
    need(x->cwd.len == 0 || x->cwd.data[0] == '/');
    need(x->stdin.len <= EXEC_STDIN_MAX);
}

static void good_terminal(const Sandbox__Guest__Terminal *t)
{
    need(t == NULL || (t->rows <= UINT16_MAX && t->cols <= UINT16_MAX));
}

// Streams, and what there is for background processes.
static void good_stream(const Sandbox__Agent__Request *r)
{
    switch (r->op_case) {
    case SANDBOX__AGENT__REQUEST__OP_EXEC_STREAM:
        need(r->exec_stream->exec != NULL);
        good_exec(r->exec_stream->exec);
        good_terminal(r->exec_stream->terminal);
        break;
    case SANDBOX__AGENT__REQUEST__OP_SPAWN:
        need(r->spawn->exec != NULL && r->spawn->ring_bytes <= PROCESS_RING_MAX);
        good_exec(r->spawn->exec);
        good_terminal(r->spawn->terminal);
        break;
    case SANDBOX__AGENT__REQUEST__OP_ATTACH:
    case SANDBOX__AGENT__REQUEST__OP_LIST_PROCESSES:
        break;
    case SANDBOX__AGENT__REQUEST__OP_SIGNAL_PROCESS:
        need(r->signal_process->signal >= 1 && r->signal_process->signal <= 64);
        break;
    case SANDBOX__AGENT__REQUEST__OP_TAR_IN:
        good_path(&r->tar_in->path);
        break;
    case SANDBOX__AGENT__REQUEST__OP_TAR_OUT:
        good_path(&r->tar_out->path);
        break;
    case SANDBOX__AGENT__REQUEST__OP_READ_STREAM:
        good_path(&r->read_stream->path);
        need(r->read_stream->offset <= INT64_MAX);
        break;
    case SANDBOX__AGENT__REQUEST__OP_WRITE_STREAM:
        good_path(&r->write_stream->path);
        need(r->write_stream->mode <= 07777);
        break;
    default:
        abort();
    }
}

static void good(const Sandbox__Agent__Request *r)
{
    need(r->version == AGENT_PROTOCOL_VERSION);
    switch (r->op_case) {
    case SANDBOX__AGENT__REQUEST__OP_EXEC:
        good_exec(r->exec);
        break;
    case SANDBOX__AGENT__REQUEST__OP_READ_FILE:
        good_path(&r->read_file->path);
        need(r->read_file->offset <= INT64_MAX);
        break;
    case SANDBOX__AGENT__REQUEST__OP_WRITE_FILE:
        good_path(&r->write_file->path);
        need(r->write_file->data.len <= FILE_CHUNK_MAX && r->write_file->mode <= 07777);
        break;
    case SANDBOX__AGENT__REQUEST__OP_LIST_DIR:
        good_path(&r->list_dir->path);
        break;
    case SANDBOX__AGENT__REQUEST__OP_STAT:
        good_path(&r->stat->path);
        break;
    case SANDBOX__AGENT__REQUEST__OP_MKDIR:
        good_path(&r->mkdir->path);
        need(r->mkdir->mode <= 07777);
        break;
    case SANDBOX__AGENT__REQUEST__OP_REMOVE:
        good_path(&r->remove->path);
        break;
    default:
        good_stream(r);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > AGENT_REQUEST_MAX)
        return 0;
    Sandbox__Agent__Request *r = (void *)pb_unpack(&sandbox__agent__request__descriptor, data, size);
    if (r == NULL)
        return 0;
    struct err e = {.code = 0};
    guest_status status = request_check(r, &e);
    need((status == STATUS(OK)) == (e.text[0] == '\0'));
    if (status == STATUS(OK))
        good(r);
    pb_free(r);
    return 0;
}

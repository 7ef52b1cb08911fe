// What a hostile guest may answer an operation: whatever the bytes, libsandbox's functions give their caller either an error
// with a sentence or something that keeps every promise of the public header.
//
// Input: one byte that chooses the operation, then frames (wire/frame.h), each the GuestResponse.body for one request.
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

// guest.c with this file's conn_call in place of a connection's.
#define conn_call fuzz_conn_call
#include "lib/guest.c"
#undef conn_call

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *rest;
static size_t rest_len;
static sandbox_handle_t handle = {.id = 7};

static void need(int promise)
{
    if (!promise)
        abort();
}

sandbox_error_t fuzz_conn_call(sandbox_conn_t *conn, Sandbox__ClientMessage *request, Sandbox__ServerMessage__ResponseCase want,
                               Sandbox__ServerMessage **ret_reply)
{
    need(want == SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST && request->guest->sandbox_id == handle.id);
    const uint8_t *body;
    size_t n;
    if (frame_find(rest, rest_len, IPC_FRAME_MAX, &body, &n) != 1)
        return fail(SANDBOX_ERR_DAEMON_UNREACHABLE, "no more answers");
    rest_len -= (size_t)(body + n - rest);
    rest = body + n;
    Sandbox__GuestResponse guest = SANDBOX__GUEST_RESPONSE__INIT;
    guest.sandbox_id = handle.id;
    guest.body = (ProtobufCBinaryData){.data = (uint8_t *)body, .len = n};
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = want;
    message.guest = &guest;
    struct buf packed = BUF_INIT(IPC_FRAME_MAX + 64);
    need(pb_append_frame(&packed, &message, IPC_FRAME_MAX + 32) == 0);
    *ret_reply = (Sandbox__ServerMessage *)pb_unpack(&sandbox__server_message__descriptor, packed.data + FRAME_HEAD,
                                                     packed.len - FRAME_HEAD);
    buf_free(&packed);
    need(*ret_reply != NULL);
    return SANDBOX_OK;
}

static void ended(sandbox_error_t r)
{
    need(r <= SANDBOX_OK && r >= SANDBOX_ERR_TIMEOUT);
    for (const char *c = sandbox_last_error(); r != SANDBOX_OK && *c != '\0'; c++)
        need((unsigned char)*c >= 0x20 && *c != 0x7F);
    need(r == SANDBOX_OK || sandbox_last_error()[0] != '\0');
}

static void exec(void)
{
    sandbox_exec_spec_t spec = {.command = "x"};
    sandbox_exec_result_t e = {0};
    sandbox_error_t r = sandbox_exec(&handle, &spec, &e);
    ended(r);
    if (r != SANDBOX_OK) {
        need(e.out == NULL && e.err == NULL);
        return;
    }
    need(e.exit_code >= -1 && e.exit_code <= 255 && e.term_signal >= 0 && e.term_signal <= 64);
    need((e.exit_code == -1) == (e.term_signal != 0));
    need(e.out_len <= SANDBOX_EXEC_STDOUT_HEAD && e.out[e.out_len] == '\0' && e.out_total >= e.out_len);
    need(e.err_len <= SANDBOX_EXEC_STDERR_HEAD && e.err[e.err_len] == '\0' && e.err_total >= e.err_len);
    need(e.output_truncated || (e.out_total == e.out_len && e.err_total == e.err_len));
    sandbox_exec_result_free(&e);
}

static void read_file(void)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    sandbox_error_t r = sandbox_read_file(&handle, "/workspace/f", &bytes, &n);
    ended(r);
    need(r == SANDBOX_OK ? n <= SANDBOX_MAX_FILE && bytes[n] == '\0' : bytes == NULL);
    free(bytes);
}

static void list_dir(void)
{
    sandbox_dirent_t *entries = NULL;
    size_t count = 0;
    bool truncated;
    sandbox_error_t r = sandbox_list_dir(&handle, "/workspace", &entries, &count, &truncated);
    ended(r);
    need((r == SANDBOX_OK) == (entries != NULL));
    for (size_t i = 0; i < count; i++) {
        const char *name = entries[i].name;
        need(name[0] != '\0' && strlen(name) <= NAME_BYTES_MAX && strchr(name, '/') == NULL);
        need(strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
        need(i == 0 || strcmp(entries[i - 1].name, name) < 0);
        need(entries[i].type <= SANDBOX_FILE_BLOCK_DEVICE && entries[i].mode <= 07777);
    }
    free(entries);
}

static void stat_file(void)
{
    sandbox_fstat_t st;
    sandbox_error_t r = sandbox_stat(&handle, "/workspace/f", &st);
    ended(r);
    if (r == SANDBOX_OK)
        need(st.type <= SANDBOX_FILE_BLOCK_DEVICE && st.mode <= 07777 && st.mtime_nsec < 1000000000);
}

static void change(void)
{
    static const uint8_t bytes[2 * FILE_CHUNK_MAX];
    ended(sandbox_write_file(&handle, "/workspace/f", bytes, sizeof bytes, 0, 0));
    ended(sandbox_mkdir(&handle, "/workspace/d", 0, true));
    ended(sandbox_remove(&handle, "/workspace/d", true));
}

static void processes(void)
{
    sandbox_process_t *list = NULL;
    size_t count = 0;
    sandbox_error_t r = sandbox_processes(&handle, &list, &count);
    ended(r);
    need((r == SANDBOX_OK) == (list != NULL) && count <= SANDBOX_MAX_PROCESSES);
    for (size_t i = 0; i < count; i++) {
        const sandbox_process_t *p = &list[i];
        need(p->process_id != 0 && p->command != NULL && strlen(p->command) < IPC_FRAME_MAX);
        need(p->term_signal >= 0 && p->term_signal <= 64 && p->exit_code >= -1 && p->exit_code <= 255);
        need((p->exit_code == -1) == (p->running || p->term_signal != 0));
    }
    free(list);
    ended(sandbox_process_signal(&handle, 1, 9, 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const operations[])(void) = {exec, read_file, list_dir, stat_file, change, processes};
    if (size < 1)
        return 0;
    rest = data + 1;
    rest_len = size - 1;
    operations[data[0] % (sizeof operations / sizeof operations[0])]();
    return 0;
}

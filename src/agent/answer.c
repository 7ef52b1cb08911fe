#include "agent/answer.h"

#include "agent/strv.h"
#include "base/cleanup.h"
#include "base/utf8.h"
#include "wire/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void answer_init(struct answer *a)
{
    memset(a, 0, sizeof *a);
    sandbox__guest__result__init(&a->result);
    a->data = BUF_INIT(FILE_CHUNK_MAX);
}

static void free_entries(Sandbox__Guest__ListDirResult *list)
{
    for (size_t i = 0; i < list->n_entries; i++) {
        free(list->entries[i]->name.data);
        free(list->entries[i]);
    }
    free(list->entries);
}

static void free_processes(Sandbox__Guest__ListProcessesResult *list)
{
    // Made in one block each; the strings are the table's.
    for (size_t i = 0; i < list->n_processes; i++)
        free(list->processes[i]);
    free(list->processes);
}

void answer_free(struct answer *a)
{
    if (a->result.result_case == SANDBOX__GUEST__RESULT__RESULT_LIST_PROCESSES)
        free_processes(&a->body.list_processes);
    if (a->result.result_case == SANDBOX__GUEST__RESULT__RESULT_LIST_DIR)
        free_entries(&a->body.list_dir);
    buf_free(&a->data);
    answer_init(a);
}

static void make_printable(char *text)
{
    size_t n = strlen(text), out = 0;
    for (size_t i = 0; i < n;) {
        size_t width = utf8_width((const uint8_t *)text + i, n - i);
        if (width == 0 || (width == 1 && ((uint8_t)text[i] < ' ' || text[i] == 0x7F))) {
            text[out++] = '?';
            i++;
            continue;
        }
        memmove(text + out, text + i, width);
        out += width;
        i += width;
    }
    text[out] = '\0';
}

void answer_refuse(struct answer *a, guest_status status, const struct err *e)
{
    struct err kept = *e;
    answer_free(a);
    a->err = kept;
    make_printable(a->err.text);
    a->result.status = status;
    a->result.message = a->err.text;
    a->result.error_number = (uint32_t)abs(a->err.code);
}

guest_status file_status(int negative_errno)
{
    switch (-negative_errno) {
    case ENOENT:
        return STATUS(NOT_FOUND);
    case EEXIST:
        return STATUS(EXISTS);
    case EXDEV:
        return STATUS(DENIED);
    case ENAMETOOLONG:
        return STATUS(BAD_REQUEST);
    case EMSGSIZE:
        return STATUS(TOO_LARGE);
    default:
        return STATUS(IO);
    }
}

static const char *reason(int negative_errno)
{
    switch (-negative_errno) {
    case EXDEV:
        return "it leads out of /workspace";
    case EMSGSIZE:
        return "more bytes came than the request allowed";
    case ENOTEMPTY:
        return "directory not empty";
    case EMEDIUMTYPE:
        return "it is not a regular file";
    default:
        return strerror(-negative_errno);
    }
}

void answer_file_error(struct answer *a, const char *verb, const char *path, int negative_errno)
{
    struct err e;
    err_set(&e, negative_errno, "Cannot %s %.200s: %s.", verb, path, reason(negative_errno));
    answer_refuse(a, file_status(negative_errno), &e);
}

void answer_path_error(struct answer *a, const char *verb, const ProtobufCBinaryData *path, int negative_errno)
{
    cleanup_free char *text = text_copy(path);
    answer_file_error(a, verb, text != NULL ? text : "", negative_errno);
}

void answer_transfer(struct answer *a, uint64_t bytes)
{
    sandbox__guest__transfer_result__init(&a->body.transfer);
    a->body.transfer.entries = 1;
    a->body.transfer.bytes = bytes;
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_TRANSFER;
    a->result.transfer = &a->body.transfer;
}

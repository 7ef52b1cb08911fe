// An answer in the making: a guest.Result, and the memory its parts point to.
#ifndef AGENT_ANSWER_H
#define AGENT_ANSWER_H

#include "agent/proto.h"
#include "base/buf.h"
#include "base/err.h"

struct answer {
    guest_result result;
    union {
        Sandbox__Guest__ReadFileResult read_file;
        Sandbox__Guest__WriteFileResult write_file;
        Sandbox__Guest__ListDirResult list_dir;
        Sandbox__Guest__StatResult stat;
        Sandbox__Guest__MkdirResult mkdir;
        Sandbox__Guest__RemoveResult remove;
        Sandbox__Guest__ListProcessesResult list_processes;
        Sandbox__Guest__SignalProcessResult signal_process;
        Sandbox__Guest__TransferResult transfer;
    } body;
    struct buf data;  // of read_file
    struct err err;   // holds result.message
};

// To be initialised in place: result points into it.
void answer_init(struct answer *a);
void answer_free(struct answer *a);

// Turns it into a refusal with the sentence and errno of `e`.  Bytes of names in the sentence that are not printable UTF-8
// become "?": message is text, and goes to terminals.
void answer_refuse(struct answer *a, guest_status status, const struct err *e);

// The refusal for a failed file operation: "Cannot `verb` `path`: reason."
void answer_file_error(struct answer *a, const char *verb, const char *path, int negative_errno);

// The same with a request's path.
void answer_path_error(struct answer *a, const char *verb, const ProtobufCBinaryData *path, int negative_errno);
// That one file of so many bytes was moved.
void answer_transfer(struct answer *a, uint64_t bytes);

// The status that stands for a negative errno of a file operation.
guest_status file_status(int negative_errno);

#define cleanup_answer __attribute__((cleanup(answer_free)))

#endif

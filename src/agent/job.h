// Transfers: what moves files through a stream line, in a child process of the agent's, because it takes as long as it takes.
//
// The child is forked like a command, into a control group of its own, so that what it writes is the sandbox's and a host that
// goes away ends it.  Its standard input is the line's STDIN frames, its standard output becomes STDOUT frames, and on its
// standard error it says its verdict: one guest.Result.  It reaches any path of the guest, as a command does, unless the
// request is confined to /workspace.
#ifndef AGENT_JOB_H
#define AGENT_JOB_H

#include "agent/answer.h"

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { VERDICT_MAX = 4096 };

// Whether an operation is one of these.
bool job_is(const Sandbox__Agent__Request *request);

// In the child: does it, and exits.
_Noreturn void job_main(const void *request);

// ---- the operations: each fills in the answer ----

void tar_in_run(const Sandbox__Guest__TarIn *request, struct answer *a);
void tar_out_run(const Sandbox__Guest__TarOut *request, struct answer *a);
void read_stream_run(const Sandbox__Guest__ReadStream *request, struct answer *a);
void write_stream_run(const Sandbox__Guest__WriteStream *request, struct answer *a);

// ---- of a ReadStream, for whoever does it ----

enum { READ_STREAM_HEAD = 16 };  // bytes before those of a described file

struct file_range {
    uint64_t size, offset, most;
};

// Opens what it asks for.  0 with *ret_fd; 1: `a` is the refusal; a negative errno.
int read_stream_open(const Sandbox__Guest__ReadStream *request, struct stat *ret_stat, int *ret_fd, struct answer *a);
// Which bytes of such a file it asks for.
struct file_range read_stream_range(const Sandbox__Guest__ReadStream *request, const struct stat *st);
void read_stream_describe(const struct file_range *range, uint8_t head[READ_STREAM_HEAD]);

// Blocking: everything, or a negative errno.
int write_fully(int fd, const void *bytes, size_t n);
// Some bytes, 0 at the end.
ssize_t read_some(int fd, void *bytes, size_t n);

#endif

// A stream line to the agent of agent_rig.h, as a client sees it.
#ifndef TESTS_UNIT_AGENT_STREAM_H
#define TESTS_UNIT_AGENT_STREAM_H

#include "agent_rig.h"
#include "wire/frame.h"
#include "wire/stream_frame.h"

enum { TALK_TEXT_MAX = 64 * 1024 };

struct talk {
    int fd;
    uint64_t id;  // of its line
    uint8_t in[FRAME_HEAD + STREAM_FRAME_MAX];
    size_t in_len;
    uint64_t bytes[2];            // of stdout and stderr so far
    char text[2][TALK_TEXT_MAX];  // their first ones, terminated
    size_t text_len[2];
    size_t window;  // as given back by the agent; what is sent is taken off by the test
    uint32_t process;
    uint64_t dropped;
    int end;  // FRAME_EXIT or FRAME_ERROR, when it came
    guest_result *result;
};

struct talk_options {
    const char *program;  // in place of a script
    bool terminal, open_stdin;
    uint32_t rows, cols, timeout_ms;
    uint64_t max_output;
};

// Opens a line with any request.
void talk_open(struct talk *t, const struct rig *rig, const Sandbox__Agent__Request *request);
void talk_start_with(struct talk *t, const struct rig *rig, const char *script, const struct talk_options *o);
#define talk_start(t, rig, script, ...) talk_start_with(t, rig, script, &(struct talk_options){__VA_ARGS__})
void talk_free(struct talk *t);

void talk_send(struct talk *t, enum stream_frame_type type, const void *payload, size_t n);
void talk_send_raw(struct talk *t, const void *body, size_t n);

// Takes one frame; false at the end of the line, or when none comes within RIG_WAIT_MS, which fails the test.
bool talk_step(struct talk *t);
// Until stdout's text ends in or holds `text`; false if the line ended first.
bool talk_until(struct talk *t, const char *text);
bool talk_until_ms(struct talk *t, const char *text, int ms);
// Until the last frame, after which the line must be closed.  Freed by talk_free.
guest_result *talk_end(struct talk *t);

// Until the agent has reported the end of line `id`; other reports before it are thrown away.
void talk_await_ended(const struct rig *rig, uint64_t id);

#endif

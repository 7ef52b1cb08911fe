// A client without a library: raw frames to the real engine (proto/sandbox.proto), for what libsandbox would never send.
#ifndef TESTS_SYSTEM_RAW_H
#define TESTS_SYSTEM_RAW_H

#include "sandbox.pb-c.h"
#include "system.h"
#include "wire/frame.h"
#include "wire/limits.h"

#define CLIENT_MESSAGE(...)                                                                                                    \
    (Sandbox__ClientMessage)                                                                                                   \
    {                                                                                                                          \
        .base = PROTOBUF_C_MESSAGE_INIT(&sandbox__client_message__descriptor), __VA_ARGS__                                     \
    }

static inline void cleanup_message_fn(Sandbox__ServerMessage **m)
{
    if (*m != NULL)
        sandbox__server_message__free_unpacked(*m, NULL);
}
#define cleanup_message __attribute__((cleanup(cleanup_message_fn)))

enum { FRAME_ROOM = FRAME_HEAD + IPC_FRAME_MAX };

int dial(void);
// All of it, or the test fails; try_send is false when the engine has ended the connection.
void send_bytes(int fd, const void *bytes, size_t n);
bool try_send(int fd, const void *bytes, size_t n);
// Fails the test when nothing comes for 20 s (times `slow`); false at end of file.
bool receive_bytes(int fd, void *bytes, size_t n);

// Bytes of the frame, head included.
size_t pack(const Sandbox__ClientMessage *m, uint8_t frame[FRAME_ROOM]);
void send_message(int fd, const Sandbox__ClientMessage *m);
// NULL at end of file.
Sandbox__ServerMessage *receive(int fd);

// A create that works over the small template, to be changed before it is sent.
Sandbox__CreateRequest small_create(void);
void ask_status(int fd, uint64_t id);
void ask_create(int fd, uint64_t id);
void ask_create_like(int fd, uint64_t id, const Sandbox__CreateRequest *request);
void ask_inspect(int fd, uint64_t id, uint32_t sandbox);
void ask_destroy(int fd, uint64_t id, uint32_t sandbox);
void ask_pause(int fd, uint64_t id, uint32_t sandbox);
void ask_resume(int fd, uint64_t id, uint32_t sandbox);
void ask_guest(int fd, uint64_t id, Sandbox__GuestRequest *request, uint32_t sandbox);
void ask_stat(int fd, uint64_t id, uint32_t sandbox, const char *path);
// A script for /bin/sh.
void ask_exec(int fd, uint64_t id, uint32_t sandbox, const char *script);

void expect(int fd, uint64_t id, Sandbox__ServerMessage__ResponseCase kind);
// `code` 0: any error.  Every error has a sentence.
void expect_error(int fd, uint64_t id, int code);
uint32_t expect_created(int fd, uint64_t id);
void the_engine_still_answers(void);

#endif

// A command of a session, from its request to its end, and who follows it.
//
// States: waiting (for the session's sandbox) -> starting (a worker asks the engine) -> running -> ended; whatever fails before
// the command runs ends it with an error, which is a status.  With a grant it is: running -> tracing (a worker asks the engine
// what the grant was used for) -> ended.  The grant is the session's owner's; who was not authenticated has none.
//
// Two kinds.  A job in one piece collects the heads of its output and answers with one JSON object.  A job of events makes an
// event of each piece of output, with a number that only grows, as it comes; followers are sent them as fast as each takes
// them.
//
// Whose output waits for whom.  A command that somebody follows waits when a follower does not take its events
// (EVENTS_WINDOW_BYTES); a detached one never waits: the oldest of its events go, and a follower who missed some is told which.
// Of a job that can be come back to (detached, or with an Idempotency-Key) the latest EVENTS_KEPT_BYTES are kept, also after
// its end, for KEPT_S; of others only what is still to be sent.
//
// Whose end is whose.  When the last follower of a command goes, it is killed, with all it started; not when it is kept.
#ifndef API_EXEC_JOB_H
#define API_EXEC_JOB_H

#include "api/exec_request.h"
#include "api/route.h"
#include "api/session.h"
#include "base/json_out.h"

enum {
    EXEC_ID_HEX = 24,
    EXEC_ID_MAX = 4 + EXEC_ID_HEX,
    HEAD_BYTES_MAX = 1024 * 1024,     // of stdout, and of stderr, in an answer in one piece
    EVENTS_KEPT_BYTES = 1024 * 1024,  // of a job that can be come back to
    EVENTS_WINDOW_BYTES = 64 * 1024,
    EVENT_COST = 128,                     // what an event counts beside its text
    OUTPUT_HELD_MAX = 256 * 1024 * 1024,  // bytes of output in memory, of all jobs: beyond, heads are cut and less is kept
    KEPT_S = 600,
    ENDED_MAX = 16,  // ended jobs a session keeps
    EVENTS_IN_A_TURN = 32,
};

enum job_state { JOB_WAITING, JOB_STARTING, JOB_RUNNING, JOB_TRACING, JOB_ENDED };

struct exec_event {
    TAILQ_ENTRY(exec_event) link;
    uint64_t seq;
    size_t n;
    char text[];  // as it is sent
};

// Somebody who waits for a job's answer, or follows its events.
struct follower {
    TAILQ_ENTRY(follower) link;
    struct exec_job *job;
    struct call *call;
    bool events;  // else the answer in one piece, or that it runs
    bool begun;
    uint64_t next_seq;
    struct exec_event *at;  // the next event, NULL: none yet
    uint64_t sent_ns;
};

struct replay;

struct exec_job {
    TAILQ_ENTRY(exec_job) link;  // in its session
    struct api *api;
    struct session *session;
    struct use use;
    char id[EXEC_ID_MAX + 1];
    enum job_state state;
    struct exec_request request;
    bool events;
    bool keyed;             // has, or had, an Idempotency-Key
    bool abandoned;         // nobody wants it; it is freed when its worker is done
    bool tried_again;       // its sandbox turned out to be gone before it began, and it got another
    struct replay *replay;  // NULL: none
    int64_t started_at;     // seconds since 1970
    uint64_t ended_ns;
    sandbox_stream_t *stream;
    uint32_t process_id;  // detached
    struct event *readable;
    bool paused;
    TAILQ_HEAD(, follower) followers;
    // events
    TAILQ_HEAD(, exec_event) ring;
    size_t ring_bytes;
    uint64_t last_seq;
    uint8_t split[2][4];  // the beginning of a character, of stdout and stderr
    size_t n_split[2];
    // in one piece
    struct buf head[2];
    uint64_t total[2];
    bool cut;
    // the end
    bool failed;  // it is an error, not a result
    unsigned status;
    char code[32];
    char message[384];
    sandbox_exec_result_t result;
    sandbox_grant_trace_t *trace;  // NULL: it had no grant, or nothing is known of it
};

// ---- exec_job.c ----

// Starts; takes over *request.  NULL without memory.
struct exec_job *exec_job_new(struct api *api, struct session *s, struct exec_request *request, bool keyed);
void exec_job_run(struct exec_job *job);
// Adds the caller of a request; from `after` + 1 on, when it is events that are followed.  False without memory.
bool exec_job_follow(struct exec_job *job, struct call *call, bool events, uint64_t after);
// Kills the command; its end comes as that of any other.
void exec_job_kill(struct exec_job *job);
struct exec_job *exec_job_find(struct session *s, struct http_text id);
bool exec_job_kept(const struct exec_job *job);
// Frees the jobs of a session that goes; with it goes everybody who follows one.
void exec_jobs_forget(struct session *s);
// Once a second: comments for the silent, and the end of what was kept long enough.
void exec_jobs_expire(struct session *s, uint64_t now);
void exec_job_free(struct exec_job *job);

// ---- exec_events.c ----

void events_started(struct exec_job *job);
void events_output(struct exec_job *job, unsigned which, const uint8_t *bytes, size_t n);
void events_dropped(struct exec_job *job, uint64_t bytes);
// The last event, of the result or the error.
void events_end(struct exec_job *job);
// Whether a follower's slowness makes the command wait.
bool events_must_wait(const struct exec_job *job);
void events_trim(struct exec_job *job);
void events_free(struct exec_job *job);
// Sends what there is and what fits.
void follower_send(struct follower *f);
void follower_keep_alive(struct follower *f, uint64_t now);
void result_put(struct json_out *j, const struct exec_job *job);

// ---- exec_followers.c ----

void followers_answer(struct exec_job *job);  // of a job in one piece that has ended, or of a detached one that runs
void followers_send(struct exec_job *job);
void follower_free(struct follower *f);

#endif

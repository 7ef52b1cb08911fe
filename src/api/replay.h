// Idempotency-Key: a request that is sent again is answered as the first time, and its command does not run again.
//
// An entry is a caller's key.  It is of one request (its path and body; another one with the same key is refused) and has
// either the job that the request became, which later ones then follow too, or the answer it got.  Entries live for the setting
// replay_s;
// beyond REPLAYS_MAX, the one answered longest ago goes.  Answers that say "try again" (429 and 5xx) are not kept: their
// commands did not run.
#ifndef API_REPLAY_H
#define API_REPLAY_H

#include "api/exec_job.h"

enum { REPLAYS_MAX = 128, REPLAY_KEY_BYTES_MAX = 255, REPLAY_HELD_MAX = 64 * 1024 * 1024 };

struct replays;
struct replay;

int replays_new(struct api *api, struct replays **ret);
struct replays *replays_free(struct replays *all);

enum replay_found {
    REPLAY_NEW,       // *ret is a new entry, for the job to be
    REPLAY_RUNNING,   // *ret has a job: replay_job
    REPLAY_ANSWERED,  // *ret has an answer: replay_reply
    REPLAY_OTHER,     // the key is another request's
    REPLAY_FULL,      // all entries are of commands that run
};

enum replay_found replay_find(struct replays *all, const struct call *call, struct http_text key, const char *body, size_t n,
                              struct replay **ret);
struct exec_job *replay_job(const struct replay *r);
void replay_set_job(struct replay *r, struct exec_job *job);
void replay_reply(const struct replay *r, struct call *call);
// The job's answer; *r is then the job's no more.
void replay_store(struct replay **r, unsigned status, const void *body, size_t n);
// The entry goes.  NULL is fine.
void replay_forget(struct replay *r);
// The dialect whose requests have keys.
const struct dialect *replay_dialect(void);

#endif

// The session dialect (spec 000, "HTTP control-plane API"): its operations, one function each.
#ifndef API_SESSION_OPS_H
#define API_SESSION_OPS_H

#include "api/route.h"
#include "api/session.h"

enum { TTL_SECONDS_MAX = 366 * 86400 };  // that a request may name; the engine's own maximum is less

// The caller's session that the path names.  NULL: an error has been replied, the same for one that is somebody else's and one
// that does not exist.
struct session *session_named(struct call *call);

// session_ops.c
void op_session_create(struct call *call, const char *body, size_t n);
void op_session_list(struct call *call, const char *body, size_t n);
void op_session_get(struct call *call, const char *body, size_t n);
void op_session_delete(struct call *call, const char *body, size_t n);
// session_renew.c
void op_session_renew(struct call *call, const char *body, size_t n);
// exec_ops.c
void op_exec(struct call *call, const char *body, size_t n);
void op_exec_list(struct call *call, const char *body, size_t n);
void op_exec_events(struct call *call, const char *body, size_t n);
void op_exec_kill(struct call *call, const char *body, size_t n);
// file_ops.c
void op_file_delete(struct call *call, const char *body, size_t n);
void op_stat(struct call *call, const char *body, size_t n);
void op_ls(struct call *call, const char *body, size_t n);
void op_mkdir(struct call *call, const char *body, size_t n);
// file_get.c, file_put.c
void op_file_get(struct call *call, const char *body, size_t n);
void op_file_put(struct call *call, const char *body, size_t n);

#endif

// What the broker gives up before it serves anybody.
//
// By then every file it needs has been read.  From here on:
//   - no_new_privs; no core dumps, and nobody of its user may look into it (its memory has the credentials);
//   - files: with Landlock nothing can be opened but what is directly or deeper in the folders of credentials.conf, grants.json
//   and
//     the guard's certificate and key, for reading, so that a reload finds it; nothing can be made, written or run;
//   - system calls: an allow-list.  No exec, no new process, no sockets but IPv4, IPv6 and Unix ones; the rest is EPERM.
// What a kernel lacks is said in the log (`landlock`, `filter`), not passed over.
#ifndef BROKER_CONFINE_H
#define BROKER_CONFINE_H

#include <stdbool.h>

struct confined {
    bool landlock, filter;  // what is in force
};

enum { CONFINE_FOLDERS = 4 };

// `dir_fd`: the folders that stay readable, or -1.  0, or a negative errno: then the program must not go on.
int confine(const int dir_fd[static CONFINE_FOLDERS], struct confined *ret);

#endif

// The listening sockets of the table of listeners.
#ifndef API_LISTENERS_H
#define API_LISTENERS_H

#include "api/api.h"

struct listeners;

// Opens them all, and starts to serve; the options' table lives as long.  0 or a negative errno with a sentence.
int listeners_open(struct api *api, struct listeners **ret, struct err *err);
// Removes the files of Unix sockets, and frees; the sockets are the server's.
struct listeners *listeners_free(struct listeners *l);

#endif

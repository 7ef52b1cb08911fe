// The three inputs of a build.  Each becomes a tar stream on a descriptor, so that everything behind it is one path.
#ifndef IMAGE_INPUT_H
#define IMAGE_INPUT_H

#include "base/err.h"

#include <stdbool.h>
#include <sys/types.h>

// A stream and who writes it.
struct input {
    int tar_fd;
    pid_t writer;  // 0 for a file
    int log_fd;    // what the writer said on its standard error; -1 for a file
};

#define INPUT_INIT ((struct input){.tar_fd = -1, .writer = 0, .log_fd = -1})
void input_close(struct input *input);  // kills the writer

// A tar file, or standard input for "-".
int input_tar(const char *path, struct input *ret_input, struct err *err);

// Everything below the folder `path` that lies on its filesystem.  The writer is this user, not confined: it only reads.
int input_dir(const char *path, struct input *ret_input, struct err *err);

struct debootstrap {
    const char *suite;
    const char *include;  // packages, by commas; NULL for none
    const char *mirror;   // an address or a sources file; NULL for the default
};

// What mmdebstrap makes of a suite.  It runs confined (confine.h), with the host's network: package scripts run as root of a
// user namespace, never of the host.  *ret_host_sources: the host's own package sources were used (it is Debian of this suite).
int input_debootstrap(const struct debootstrap *what, struct input *ret_input, bool *ret_host_sources, struct err *err);

// After the stream's end: 0, or a negative errno with a sentence if the writer failed.
int input_finish(struct input *input, struct err *err);

#endif

// The confined half of a build: a tar stream in, an ext4 image out.
//
// Actors: the parent (root, build.c) and this child (confine.h), which alone touches the archive, runs mkfs and patches the
// image.  The child writes fixed-size reports to a pipe: one for each phase it enters, and a last one with the result.  The
// parent believes nothing in them but as text and numbers to show; it hashes the image itself when the child is dead.
#ifndef IMAGE_BUILDER_H
#define IMAGE_BUILDER_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct builder_job {
    int tar_fd, image_fd, report_fd;
    uint64_t headroom_mib;
    bool strip;                // a package manager made the input
    const char *debian_suite;  // with `strip`: replace this host's package sources; or NULL
};

enum builder_phase { BUILDER_READING = 1, BUILDER_STAGING, BUILDER_MKFS, BUILDER_DONE, BUILDER_FAILED };

struct builder_report {
    uint32_t phase;
    uint32_t has_shell;
    uint64_t files;    // names in the image
    uint64_t devices;  // entries left out
    uint64_t xattrs;   // entries whose extended attributes were left out
    struct err err;    // of BUILDER_FAILED
};

// The `fn` of confine_start; `arg` is a struct builder_job.
int builder_run(void *arg);

#endif

// The walls that self_test.c tries.  Each returns true if it stands, else false with what was found in `why`.
#ifndef AGENT_SELF_TEST_WALLS_H
#define AGENT_SELF_TEST_WALLS_H

#include "base/err.h"

#include <stdbool.h>

typedef bool wall_fn(struct err *why);

// self_test_process.c
wall_fn wall_pid_one, wall_user_namespace, wall_capabilities, wall_seccomp, wall_syscalls;
// self_test_files.c
wall_fn wall_kernel_files, wall_devices, wall_root_writable;
// self_test_network.c
wall_fn wall_interfaces, wall_routes, wall_connections;

#endif

// A pseudo-terminal for a command.
#ifndef AGENT_TERMINAL_H
#define AGENT_TERMINAL_H

#include <stdint.h>

// A new terminal of this size (0: 24, 80).  *ret_master does not block; *ret_slave is for the child.  0 or a negative errno;
// -ENODEV: there is no /dev/ptmx in this root, or something else in its place.
int terminal_open(uint32_t rows, uint32_t cols, int *ret_master, int *ret_slave);
// Tells the terminal its new size, by which the foreground processes get SIGWINCH.  0 or a negative errno.
int terminal_resize(int master, uint32_t rows, uint32_t cols);

#endif

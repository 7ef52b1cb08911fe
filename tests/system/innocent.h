// A tenant beside the hostile one: a connection and a sandbox of its own, whose commands must go on being answered in time.
#ifndef TESTS_SYSTEM_INNOCENT_H
#define TESTS_SYSTEM_INNOCENT_H

#include <stdint.h>

enum { INNOCENT_WAIT_MS = 5000 };  // the longest one of its commands may take (times `slow`)

// Starts a thread that runs `command` in a sandbox of its own over and over.  Fails the test when it cannot.
void innocent_start(const char *command);
// Waits until one more command has been run from start to end, and fails the test if one since the last look (`what` says
// after which attack) failed or took longer than INNOCENT_WAIT_MS.
void innocent_look(const char *what);
// Ends thread, sandbox and connection.
void innocent_stop(void);

#endif

// SIGINT and SIGTERM while there may be a sandbox.
#ifndef CLI_WATCH_H
#define CLI_WATCH_H

// What the first signal does.  The second one ends the program at once; the engine then reclaims what it owned.
enum watch_mode {
    WATCH_EXIT,     // ends the program: nothing has been created
    WATCH_CLEANUP,  // destroys every sandbox and ends the calls in flight, which come back with an error; ends the program if
                    // it does not end by itself then
    WATCH_NOTE,     // is only noted
};

// Blocks both signals in this thread and all that come, and starts a thread that takes them.  0, or -1 with a message printed.
int watch_start(void);
void watch_mode(enum watch_mode mode);
// The signal that came, or 0.
int watch_signal(void);
// Waits at most `ms` for a signal and for what it does to be done; gives it, or 0.
int watch_wait(unsigned ms);

#endif

// Telling the service manager how the program is doing (the protocol of sd_notify(3)).
#ifndef SYS_NOTIFY_H
#define SYS_NOTIFY_H

// Sends `state` ("READY=1", "STOPPING=1", ...) to the socket named by NOTIFY_SOCKET.
// 1: sent.  0: nobody asked (the variable is not set).  A negative errno: it could not be sent.
int notify_state(const char *state);

#endif

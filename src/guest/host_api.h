// What runs in a sandbox beside the code: clients of its line to the broker.  Nothing here is trusted, and nothing depends on
// it: any program may speak HTTP to the socket itself, and meets the same checks.
#ifndef GUEST_HOST_API_H
#define GUEST_HOST_API_H

#define HOST_API_DEFAULT_SOCKET "/run/host-api.sock"

enum { HOST_API_REFUSED = 1, HOST_API_USAGE = 2, HOST_API_NO_LINE = 3 };

// Calls METHOD PATH [BODY | -] of `argv`; the body of the answer goes to standard output.  The exit status: 0 for 2xx,
// HOST_API_REFUSED for another (it is on standard error, with the body), HOST_API_USAGE, HOST_API_NO_LINE.
int host_api_call(int argc, char **argv);

// Passes connections on in a sandbox that can only be dialled into (docs/grants.md, "Rooms without a network").  Does not
// return before standard input ends, but for a failure.
int host_api_relay(const char *socket_path);

#endif

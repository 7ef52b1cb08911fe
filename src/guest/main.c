// host-api: calls routes that the run was granted, from a shell.
#include "guest/host_api.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: host-api METHOD PATH [BODY]     BODY - is standard input\n"
    "       host-api --relay SOCKET         for sandboxes without a network of their own\n"
    "\n"
    "Calls a route that this run was granted and prints the answer.  Exit status: 0 for 2xx; 1 for another\n"
    "answer, which is on standard error; 2 usage; 3 the line cannot be reached.\n"
    "\n"
    "HOST_API_SOCKET, SANDBOX_HOST_API: the line, " HOST_API_DEFAULT_SOCKET " without them.\n";

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "--relay") == 0)
        return host_api_relay(argv[2]);
    if (argc < 3 || argc > 4 || argv[1][0] == '-') {
        fputs(usage, stderr);
        return HOST_API_USAGE;
    }
    return host_api_call(argc - 1, argv + 1);
}

/* Runs one command in a sandbox.  Build: cc hello.c $(pkg-config --cflags --libs libsandbox) -o hello */
#include <libsandbox.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, sandbox_last_error());
    return 1;
}

static int run(sandbox_handle_t *h)
{
    sandbox_exec_spec_t cmd = {0};
    cmd.command = "echo \"$GREETING from a sandbox\"";
    sandbox_exec_result_t result = {0};
    if (sandbox_exec(h, &cmd, &result) != SANDBOX_OK)
        return failed("exec");
    fwrite(result.out, 1, result.out_len, stdout);
    printf("exit code %d, behind a %s wall\n", (int)result.exit_code, sandbox_isolation_name(sandbox_isolation(h)));
    sandbox_exec_result_free(&result);
    return 0;
}

int main(void)
{
    const char *socket = getenv("SANDBOX_SOCKET");
    if (sandbox_init(socket != NULL ? socket : "/var/run/sandbox-engine/engine.sock") != SANDBOX_OK)
        return failed("init");
    const char *env[] = {"GREETING=hello", NULL};
    sandbox_spec_t spec = {
        .memory_mib = 512, .vcpu_count = 1, .template_name = "python-agent", .env_vars = env, .pool_wait_ms = 500};
    sandbox_handle_t *h = NULL;
    if (sandbox_create(&spec, &h) != SANDBOX_OK)
        return failed("create");
    int status = run(h);
    sandbox_destroy(h);
    sandbox_cleanup();
    return status;
}

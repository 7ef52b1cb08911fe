#include "agent/exec_env.h"

#include <string.h>

static const char *const built_in[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LANG=C.UTF-8",
};

int exec_argv(const Sandbox__Guest__Exec *request, struct strv *argv)
{
    int r = 0;
    if (request->shell) {
        r = strv_add(argv, "/bin/sh", 7);
        if (r == 0)
            r = strv_add(argv, "-c", 2);
    }
    return r < 0 ? r : strv_add_all(argv, request->argv, request->n_argv);
}

int exec_env(const struct strv *base, const Sandbox__Guest__Exec *request, struct strv *env)
{
    int r = 0;
    for (size_t i = 0; i < sizeof built_in / sizeof built_in[0] && r == 0; i++)
        r = strv_set_env(env, built_in[i], strlen(built_in[i]));
    for (size_t i = 0; i < base->n && r == 0; i++)
        r = strv_set_env(env, base->v[i], strlen(base->v[i]));
    for (size_t i = 0; i < request->n_env && r == 0; i++)
        r = strv_set_env(env, request->env[i].data, request->env[i].len);
    return r;
}

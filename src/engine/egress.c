#include "engine/egress.h"

#include "libsandbox.h"

#include <stdlib.h>
#include <string.h>

// Too large for a stack; the engine has one thread for this.
static struct host_policy chosen;

int egress_choose(const struct config *config, const Sandbox__CreateRequest *message, const struct host_policy *asked,
                  struct egress **ret_egress, struct err *err)
{
    if (host_policy_choose(asked, message->egress_deny_all != 0, &config->allowed_services, &config->egress_ceiling, &chosen,
                           err) < 0)
        return err->code = SANDBOX_ERR_INVALID_SPEC;
    struct egress *egress = NULL;
    if (chosen.n > 0) {
        egress = malloc(sizeof *egress + chosen.n * sizeof chosen.rule[0]);
        if (egress == NULL)
            return err_set(err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        egress->refs = 1;
        egress->n = chosen.n;
        memcpy(egress->rule, chosen.rule, chosen.n * sizeof chosen.rule[0]);
    }
    *ret_egress = egress;
    return 0;
}

struct egress *egress_ref(struct egress *egress)
{
    if (egress != NULL)
        egress->refs++;
    return egress;
}

struct egress *egress_unref(struct egress *egress)
{
    if (egress != NULL && --egress->refs == 0)
        free(egress);
    return NULL;
}

enum network_kind egress_network(const struct egress *egress, const Sandbox__CreateRequest *message)
{
    if (egress == NULL)
        return NETWORK_NONE;
    return message->egress_transparent ? NETWORK_TRANSPARENT : NETWORK_PROXY;
}

enum network_kind egress_standing_network(const struct config *config)
{
    return config->allowed_services.n > 0 ? NETWORK_PROXY : NETWORK_NONE;
}

void egress_put(const struct egress *egress, struct broker_add *add)
{
    chosen.n = egress->n;
    memcpy(chosen.rule, egress->rule, egress->n * sizeof chosen.rule[0]);
    broker_put_policy(add, &chosen);
}

#include "engine/isolation/tiers.h"

#include "base/buf.h"
#include "libsandbox.h"
#include "sandbox.pb-c.h"
#include "sys/jail.h"

#include <stdio.h>

_Static_assert((int)TIER_REASON_MAX >= (int)JAIL_DETAIL_MAX, "what the jailer says of a tier is passed on whole");

static const char *const names[] = {"none", "process", "container", "kernel", "vm"};

// What an operator can do about a tier that does not work.
static const char *const fixes[] = {
    [SANDBOX_ISOLATION_PROCESS] = "use the container tier",
    [SANDBOX_ISOLATION_CONTAINER] =
        "needs Linux 6.1 or newer with user namespaces, overlayfs, loop devices and seccomp, mkfs.ext4, "
        "and the memory, pids and cpu cgroup controllers delegated to the engine's service",
    [SANDBOX_ISOLATION_KERNEL] = "use the container tier",
    [SANDBOX_ISOLATION_VM] = "needs a processor with hardware virtualization (VT-x or AMD-V) and its KVM module, or a machine "
                             "whose provider passes it "
                             "on (nested virtualization), /dev/kvm, and a kernel: sandbox-image kernel build",
};

void tiers_init(struct tiers *tiers)
{
    *tiers = (struct tiers){.tier[0].level = 0};
    for (uint32_t i = 0; i < TIERS; i++) {
        struct tier *tier = &tiers->tier[i];
        tier->level = SANDBOX_ISOLATION_VM - i;
        tier->name = names[tier->level];
        tier->fix = fixes[tier->level];
        tier_probed(tier, false, "this version of sandbox-engine has no driver for it");
    }
}

struct tier *tiers_at(struct tiers *tiers, uint32_t level)
{
    return &tiers->tier[SANDBOX_ISOLATION_VM - level];
}

void tier_probed(struct tier *tier, bool available, const char *reason)
{
    tier->available = available;
    snprintf(tier->reason, sizeof tier->reason, "%s", available ? "" : reason);
}

static const char *describe(const struct tiers *tiers, uint32_t floor, struct buf *out)
{
    bool first = true;
    for (int i = 0; i < TIERS; i++) {
        const struct tier *tier = &tiers->tier[i];
        // Weaker tiers that are missing too would not help; of those there, all are named.
        if (!tier->available && (tier->level < floor || tier->driver == NULL))
            continue;
        buf_printf(out, "%s%s %s", first ? "" : "; ", tier->name, tier->available ? "works" : "does not work: ");
        buf_append_text(out, tier->reason);
        first = false;
    }
    if (first)
        buf_append_text(out, "no tier that strong is built into this version");
    return buf_text(out);
}

static bool has(const struct tier *tier, struct tier_wants wants)
{
    return (!wants.volume || tier->driver->volumes) && (!wants.network || tier->driver->network) &&
           (!wants.host_api || tier->driver->host_api);
}

struct tier *tiers_choose(struct tiers *tiers, uint32_t floor, struct tier_wants wants, struct err *err)
{
    bool lacking = false;
    for (int i = 0; i < TIERS; i++) {
        struct tier *tier = &tiers->tier[i];
        if (!tier->available || tier->level < floor)
            continue;
        if (has(tier, wants))
            return tier;
        lacking = true;
    }
    if (lacking) {
        err_set_not_run(err, SANDBOX_ERR_INVALID_SPEC, SANDBOX__NOT_RUN__NOT_RUN_UNSUPPORTED,
                        "%s cannot be had behind the isolation floor \"%s\"; lower the floor to container, or create without",
                        wants.volume    ? "session_key: a session's volume"
                        : wants.network ? "egress: a network"
                                        : "grant_profile: a grant",
                        names[floor]);
        return NULL;
    }
    cleanup_buf struct buf text = BUF_INIT(TIERS * (TIER_REASON_MAX + 32));
    const char *here = describe(tiers, floor, &text);
    if (floor == SANDBOX_ISOLATION_NONE)
        err_set_not_run(err, SANDBOX_ERR_INVALID_SPEC, SANDBOX__NOT_RUN__NOT_RUN_ISOLATION,
                        "no isolation tier works on this machine (%s); run sandbox-cli doctor", here != NULL ? here : "");
    else
        err_set_not_run(
            err, SANDBOX_ERR_INVALID_SPEC, SANDBOX__NOT_RUN__NOT_RUN_ISOLATION,
            "the isolation floor is \"%s\", which cannot be met here (%s); lower the floor or run sandbox-cli doctor",
            names[floor], here != NULL ? here : "");
    return NULL;
}

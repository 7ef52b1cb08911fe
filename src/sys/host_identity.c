#include "sys/host_identity.h"

#include <cpuid.h>
#include <errno.h>
#include <string.h>
#include <sys/utsname.h>

static void put_text(char *out, size_t room, const char *text)
{
    size_t n = strlen(text);
    memcpy(out, text, n < room ? n : room - 1);
}

int host_identity_get(struct host_identity *ret_identity)
{
    struct host_identity id = {0};
    struct utsname uts;
    unsigned a, b, c, d;
    if (uname(&uts) < 0)
        return -errno;
    if (__get_cpuid(0, &a, &b, &c, &d) == 0)
        return -ENOTSUP;
    const unsigned vendor[] = {b, d, c};
    memcpy(id.processor, vendor, sizeof vendor);
    if (__get_cpuid(1, &a, &b, &c, &d) == 0)
        return -ENOTSUP;
    id.signature = a;
    put_text(id.kernel, sizeof id.kernel, uts.release);
    put_text(id.build, sizeof id.build, uts.version);
    *ret_identity = id;
    return 0;
}

bool host_identity_equal(const struct host_identity *a, const struct host_identity *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

// Build time only: writes guest_filter.c (guest_filter.h) to stdout.
#include "enter/seccomp_policy.h"

#include <stdio.h>
#include <string.h>

static void write_program(const char *name, const struct sock_fprog *program)
{
    printf("static struct sock_filter %s[] = {\n", name);
    for (unsigned i = 0; i < program->len; i++) {
        const struct sock_filter *f = &program->filter[i];
        printf("    {0x%04x, %u, %u, 0x%08xU},\n", (unsigned)f->code, (unsigned)f->jt, (unsigned)f->jf, (unsigned)f->k);
    }
    printf("};\n\n");
}

int main(void)
{
    struct filter filter;
    int r = seccomp_policy_build(SECCOMP_KERNEL_OWN, &filter);
    if (r < 0) {
        fprintf(stderr, "write-guest-filter: %s\n", strerror(-r));
        return 1;
    }
    printf("// Made by write-guest-filter from seccomp_policy.c and seccomp_exceptions.c.\n"
           "#include \"enter/guest_filter.h\"\n\n");
    write_program("allowed", &filter.allowed);
    write_program("exceptions", &filter.exceptions);
    printf("const struct filter guest_filter = {{%u, allowed}, {%u, exceptions}};\n", (unsigned)filter.allowed.len,
           (unsigned)filter.exceptions.len);
    seccomp_policy_free(&filter);
    return fflush(stdout) == 0 ? 0 : 1;
}

// What doctor looks at itself, without the engine: facts of this machine.  Each check adds one object
// {"name","status":"ok"|"warn"|"fail","detail","fix"} to a list.
#ifndef CLI_CHECKS_H
#define CLI_CHECKS_H

#include <jansson.h>

void add_check(json_t *checks, const char *name, const char *status, const char *detail, const char *fix);

void check_kernel(json_t *checks);
void check_cgroups(json_t *checks);
void check_disk_speed(json_t *checks);
void check_user_namespaces(json_t *checks);
void check_kvm(json_t *checks);
void check_templates(json_t *checks, const char *store);

#endif

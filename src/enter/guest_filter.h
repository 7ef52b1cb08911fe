// The filters as constants, made at build time by write_guest_filter.c: the agent has them in its program, since no sandbox
// has libseccomp for it.
#ifndef ENTER_GUEST_FILTER_H
#define ENTER_GUEST_FILTER_H

#include "enter/filter.h"

extern const struct filter guest_filter;

#endif

// cmocka 1.1.5 wants these headers before its own, in this order.
#ifndef TESTS_UNIT_UNIT_H
#define TESTS_UNIT_UNIT_H

// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#endif

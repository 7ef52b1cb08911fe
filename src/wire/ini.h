// INI text: sections and `key = value` lines.  Pure: no I/O, no allocation.
//
//     # a comment, also ; at the start of a line
//     [section]
//     key = the value, to the end of the line, without the spaces around it
//
// No quotes, no continuation lines, no comment behind a value: what stands there is the value.  Keys and section names are
// [A-Za-z0-9_.-]; bytes below 0x20 other than TAB are refused, so that nothing in a file is invisible.
#ifndef WIRE_INI_H
#define WIRE_INI_H

#include "base/err.h"

#include <stddef.h>

enum {
    INI_FILE_MAX = 64 * 1024,
    INI_NAME_MAX = 63,
    INI_VALUE_MAX = 4095,
};

// Called for each `key = value`; `section` is "" before the first one.  The texts are valid during the call only.
// 0 to go on; a negative number ends the reading and is returned from ini_parse.
typedef int ini_fn(void *arg, unsigned line, const char *section, const char *key, const char *value);

// 0; what `fn` returned; or -EBADMSG (bad line) or -EFBIG (more than INI_FILE_MAX bytes) with a sentence in *err that names the
// line.
int ini_parse(const char *text, size_t n, ini_fn *fn, void *arg, struct err *err);

#endif

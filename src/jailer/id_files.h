// Files of a folder whose names are ids: 32 hexadecimal digits, and perhaps a suffix.
#ifndef JAILER_ID_FILES_H
#define JAILER_ID_FILES_H

#include "sys/jail.h"

enum { ID_DIGITS = 2 * JAIL_VOLUME_ID };

// The first of those behind `after`, in the order of memcmp, at most JAIL_VOLUMES_LISTED; their number or a negative errno.
// `suffix` may stand behind the digits; "" for none.
int id_files_list(int dir, const char *suffix, const uint8_t after[static JAIL_VOLUME_ID],
                  uint8_t ret_ids[static JAIL_VOLUMES_LISTED][JAIL_VOLUME_ID]);

#endif

// Internationalised names (IDNA 2008, by libidn2), for wire/host_name.h.
#ifndef SYS_IDNA_H
#define SYS_IDNA_H

#include "wire/host_name.h"

// As a browser takes them: UTS 46, composed (NFC), not transitional.  Thread-safe.
extern const struct host_idna sys_idna;

#endif

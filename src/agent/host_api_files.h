// The clients of src/guest, as bytes (made by embed.py).
#ifndef AGENT_HOST_API_FILES_H
#define AGENT_HOST_API_FILES_H

#include <stddef.h>
#include <stdint.h>

extern const uint8_t host_api_program[], host_api_py[], host_api_js[];
extern const size_t host_api_program_len, host_api_py_len, host_api_js_len;

#endif

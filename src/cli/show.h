// A JSON object as text for people.
#ifndef CLI_SHOW_H
#define CLI_SHOW_H

#include <jansson.h>

// Plain members first, one a line; then an object inside as a group, and a list of objects as a table.
void show_object(json_t *object);

#endif

#include "show.h"

#include "cli.h"

#include <stdio.h>
#include <string.h>

enum { CELL_MAX = 512, COLUMN_GAP = 2 };

// One value in one cell: text as it is, a dash for null and an empty list, yes and no for true and false, the rest as JSON.
static const char *cell(const json_t *value, char *text, size_t room)
{
    if (json_is_string(value)) {
        snprintf(text, room, "%s", json_string_value(value));
    } else if (json_is_boolean(value)) {
        snprintf(text, room, "%s", json_is_true(value) ? "yes" : "no");
    } else if (value == NULL || json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0)) {
        snprintf(text, room, "-");
    } else {
        char *dumped = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
        snprintf(text, room, "%s", dumped != NULL ? dumped : "?");
        free(dumped);
    }
    return text;
}

static bool is_table(const json_t *value)
{
    return json_is_array(value) && json_array_size(value) > 0 && json_is_object(json_array_get(value, 0));
}

static bool is_plain(const json_t *value)
{
    return !json_is_object(value) && !is_table(value);
}

static int column_width(const json_t *rows, const char *key)
{
    char text[CELL_MAX];
    size_t width = strlen(key);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        size_t n = strlen(cell(json_object_get(json_array_get(rows, i), key), text, sizeof text));
        width = n > width ? n : width;
    }
    return (int)width + COLUMN_GAP;
}

// The keys of all rows, in the order they first appear.  A new reference.
static json_t *columns_of(const json_t *rows)
{
    json_t *columns = json_object();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        for (void *at = json_object_iter(row); at != NULL; at = json_object_iter_next(row, at))
            json_object_set_new(columns, json_object_iter_key(at), json_null());
    }
    return columns;
}

static void show_table(const json_t *rows)
{
    char text[CELL_MAX];
    json_t *columns = columns_of(rows);
    fputs("  ", stdout);
    for (void *at = json_object_iter(columns); at != NULL; at = json_object_iter_next(columns, at))
        paint(PAINT_HEAD, column_width(rows, json_object_iter_key(at)), json_object_iter_key(at));
    putchar('\n');
    for (size_t i = 0; i < json_array_size(rows); i++) {
        fputs("  ", stdout);
        for (void *at = json_object_iter(columns); at != NULL; at = json_object_iter_next(columns, at)) {
            const char *key = json_object_iter_key(at);
            const json_t *value = json_object_get(json_array_get(rows, i), key);
            put_plain(column_width(rows, key), cell(value, text, sizeof text));
        }
        putchar('\n');
    }
    json_decref(columns);
}

static void show_members(json_t *object, int indent)
{
    char text[CELL_MAX];
    int width = 0;
    for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
        int n = (int)strlen(json_object_iter_key(at));
        width = n > width && is_plain(json_object_iter_value(at)) ? n : width;
    }
    for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
        if (!is_plain(json_object_iter_value(at)))
            continue;
        put_plain(indent, "");
        put_plain(width + COLUMN_GAP, json_object_iter_key(at));
        put_plain(0, cell(json_object_iter_value(at), text, sizeof text));
        putchar('\n');
    }
}

void show_object(json_t *object)
{
    show_members(object, 0);
    for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
        json_t *value = json_object_iter_value(at);
        if (is_plain(value))
            continue;
        putchar('\n');
        paint(PAINT_HEAD, 0, json_object_iter_key(at));
        putchar('\n');
        if (json_is_object(value))
            show_members(value, COLUMN_GAP);
        else
            show_table(value);
    }
}

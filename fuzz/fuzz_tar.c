// Archives: whatever comes, in pieces of any size, memory stays bounded and each entry's data adds up.
#include "wire/limits.h"
#include "wire/tar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
    uint64_t due;
    bool in_file;
};

static int on_entry(void *arg, const struct tar_entry *e)
{
    struct seen *s = arg;
    char clean[PATH_BYTES_MAX + 1];
    size_t n = strlen(e->path);
    if (n == 0 || n > PATH_BYTES_MAX || s->in_file || e->mtime_nsec >= 1000000000)
        abort();
    if (tar_path(e->path, clean) == 0 && (clean[0] == '/' || strstr(clean, "//") != NULL || strlen(clean) > n))
        abort();
    s->in_file = e->type == TAR_FILE;
    s->due = e->size;
    return 0;
}

static int on_data(void *arg, const uint8_t *bytes, size_t n)
{
    struct seen *s = arg;
    if (!s->in_file || n == 0 || n > s->due || bytes[n - 1] == bytes[n - 1] + 1)
        abort();
    s->due -= n;
    return 0;
}

static int on_entry_end(void *arg)
{
    struct seen *s = arg;
    if (!s->in_file || s->due != 0)
        abort();
    s->in_file = false;
    return 0;
}

static int read_in_pieces(const uint8_t *data, size_t size, size_t piece)
{
    static const struct tar_sink sink = {.on_entry = on_entry, .on_data = on_data, .on_entry_end = on_entry_end};
    struct seen seen = {0};
    struct tar_reader *r = tar_reader_new(&sink, &seen);
    if (r == NULL)
        return 0;
    int result = 0;
    for (size_t at = 0; at < size && result == 0; at += piece)
        result = tar_reader_feed(r, data + at, size - at < piece ? size - at : piece);
    if (result == 0)
        result = tar_reader_finish(r);
    tar_reader_free(r);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (read_in_pieces(data, size, size + 1) != read_in_pieces(data, size, 333))
        abort();
    return 0;
}

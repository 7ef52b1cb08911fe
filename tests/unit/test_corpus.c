// Every fuzz target runs over every file of its corpus, in any build: what fuzzing once found stays found.
//
// The targets are compiled with their entry points renamed (tests/unit/meson.build).  $FUZZ_CORPUS is fuzz/corpus.
#include "base/buf.h"
#include "base/cleanup.h"
#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>

enum { CORPUS_FILE_MAX = 16 * 1024 * 1024 };

#define TARGET(name) int fuzz_one_##name(const uint8_t *data, size_t size);
#include "corpus_targets.h"
#undef TARGET

static void run_file(int dir, const char *name, int (*one)(const uint8_t *data, size_t size))
{
    cleanup_fd int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    cleanup_buf struct buf bytes = BUF_INIT(CORPUS_FILE_MAX);
    uint8_t *space;
    ssize_t n;
    do {
        assert_int_equal(buf_reserve(&bytes, 4096, &space), 0);
        n = read(fd, space, 4096);
        assert_true(n >= 0);
        buf_commit(&bytes, (size_t)n);
    } while (n > 0);
    // An exact copy, so that a sanitizer sees a read past the end.
    cleanup_free uint8_t *exact = malloc(bytes.len > 0 ? bytes.len : 1);
    if (bytes.len > 0)
        memcpy(exact, bytes.data, bytes.len);
    assert_int_equal(one(exact, bytes.len), 0);
}

static void run_corpus(const char *target, int (*one)(const uint8_t *data, size_t size))
{
    const char *corpus = getenv("FUZZ_CORPUS");
    assert_non_null(corpus);
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", corpus, target);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    int files = 0;
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        if (d->d_name[0] != '.') {
            run_file(dirfd(dir), d->d_name, one);
            files++;
        }
    closedir(dir);
    assert_true(files >= 3);
}

#define TARGET(name)                                                                                                           \
    static void corpus_##name(void **state)                                                                                    \
    {                                                                                                                          \
        run_corpus(#name, fuzz_one_##name);                                                                                    \
    }
#include "corpus_targets.h"
#undef TARGET

int main(void)
{
#define TARGET(name) cmocka_unit_test(corpus_##name),
    const struct CMUnitTest tests[] = {
#include "corpus_targets.h"
    };
#undef TARGET
    return cmocka_run_group_tests_name("corpus", tests, NULL, NULL);
}

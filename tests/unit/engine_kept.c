// Machines of the played jailer that are kept while they run, and what is made of them: a model of each one's memory.
//
// A machine has MEMORY_BYTES, of which it writes some pages before each time that it is kept.  The whole is noted under a
// number, which is what its "state" says; a machine that is started from that state must find exactly these bytes, and so must
// each one after it.
#include "base/cleanup.h"
#include "engine_stage.h"
#include "wire/page_delta.h"
#include "wire/vmm.h"
#include "wire/vmstate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGES = KEPT_MEMORY_BYTES / PAGE_DELTA_PAGE, LIST = PAGES / 8, WORDS = 32, WRITES = 24, NOTED = 128 };
enum { FD_STATE = 3, FD_MEMORY, FD_LAYER };

static uint8_t *noted[NOTED];
static unsigned notes;
static pthread_mutex_t handed_lock = PTHREAD_MUTEX_INITIALIZER;
static int handed[VMM_REQUEST_FDS_MAX] = {-1, -1, -1};  // the last machine's files; under the lock

static bool read_memory(int fd, uint8_t *memory)
{
    for (size_t at = 0; at < KEPT_MEMORY_BYTES;) {
        ssize_t n = pread(fd, memory + at, KEPT_MEMORY_BYTES - at, (off_t)at);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

// ---- being kept ----

static void guest_writes(struct machine *m)
{
    for (int i = 0; i < WRITES; i++) {
        uint64_t page = (uint64_t)rand_r(&m->seed) % PAGES;
        // A third of them become zeros, which are not the same as what was never written.
        memset(m->memory + page * PAGE_DELTA_PAGE, i % 3 == 0 ? 0 : rand_r(&m->seed) % 256, PAGE_DELTA_PAGE);
        page_delta_add(m->own, page, 1);
    }
}

static bool write_delta(int fd, const struct machine *m)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size != 0 || ftruncate(fd, KEPT_MEMORY_BYTES) < 0)
        return false;
    for (uint64_t page = 0; page < PAGES; page++) {
        off_t at = (off_t)(page * PAGE_DELTA_PAGE);
        if (page_delta_has(m->own, page) && pwrite(fd, m->memory + at, PAGE_DELTA_PAGE, at) != PAGE_DELTA_PAGE)
            return false;
    }
    return pwrite(fd, m->own, LIST, KEPT_MEMORY_BYTES) == LIST;
}

static bool write_text(int fd, const char *what, unsigned number)
{
    char text[WORDS] = "";
    struct stat st;
    snprintf(text, sizeof text, "%s kept %u", what, number);
    return fstat(fd, &st) == 0 && st.st_size == 0 && write(fd, text, sizeof text) == (ssize_t)sizeof text;
}

// As one may whose guest has taken it over.
static void spoil_sizes(const struct stage *s, const int *fds)
{
    const uint64_t most = (uint64_t)VMM_MEMORY_MIB_MAX << 20;
    int r = 0;
    switch ((enum play_keep)atomic_load(&s->play->keep)) {
    case KEEP_LARGE_STATE:
        r = ftruncate(fds[0], VMSTATE_FILE_MAX + 1);
        break;
    case KEEP_NO_STATE:
        r = ftruncate(fds[0], 0);
        break;
    case KEEP_LARGE_MEMORY:  // of the right form, but for a much larger machine
        r = ftruncate(fds[1], (off_t)page_delta_file_bytes(most));
        break;
    case KEEP_CUT_MEMORY:
        r = ftruncate(fds[1], KEPT_MEMORY_BYTES + LIST - 1);
        break;
    default:
        break;
    }
    if (r < 0)
        abort();
}

int kept_save(struct stage *s, unsigned slot, const int *fds, size_t count)
{
    struct machine *m = &s->slot[slot].machine;
    atomic_fetch_add(&s->play->kept, 1);
    switch ((enum play_keep)atomic_load(&s->play->keep)) {
    case KEEP_NO_ROOM:
        return -ENOSPC;
    case KEEP_ENDS:
        stage_end_slot(s, slot, 1 << 8, false);
        return 1;
    case KEEP_HELD:
        return 2;  // asked for again
    default:
        break;
    }
    if (m->own == NULL)
        m->own = calloc(1, LIST);
    if (m->memory == NULL)
        m->memory = calloc(1, KEPT_MEMORY_BYTES);
    if (count != 3 || notes == NOTED || m->own == NULL || m->memory == NULL)
        abort();
    guest_writes(m);
    noted[notes] = malloc(KEPT_MEMORY_BYTES);
    memcpy(noted[notes], m->memory, KEPT_MEMORY_BYTES);
    if (!write_text(fds[0], "state", notes) || !write_delta(fds[1], m) || !write_text(fds[2], "layer", notes))
        atomic_store(&s->play->broken, true);
    notes++;
    spoil_sizes(s, fds);
    pthread_mutex_lock(&handed_lock);
    for (size_t i = 0; i < VMM_REQUEST_FDS_MAX; i++) {
        close_fd(&handed[i]);
        handed[i] = dup(fds[i]);
    }
    pthread_mutex_unlock(&handed_lock);
    return 0;
}

void rig_write_late(void)
{
    static uint8_t page[PAGE_DELTA_PAGE];
    memset(page, 0xee, sizeof page);
    pthread_mutex_lock(&handed_lock);
    for (size_t i = 0; i < VMM_REQUEST_FDS_MAX; i++) {
        struct stat st;
        if (handed[i] < 0 || fstat(handed[i], &st) < 0)
            abort();
        for (off_t at = 0; at < st.st_size; at += (off_t)sizeof page) {
            size_t n = st.st_size - at < (off_t)sizeof page ? (size_t)(st.st_size - at) : sizeof page;
            if (pwrite(handed[i], page, n, at) != (ssize_t)n)
                abort();
        }
    }
    pthread_mutex_unlock(&handed_lock);
}

// ---- coming back ----

bool kept_is(int state)
{
    char text[WORDS + 1] = "";
    return pread(state, text, WORDS, 0) == WORDS && strncmp(text, "state kept ", 11) == 0;
}

// For reading only, and unable to change.
static bool is_fixed(int fd, bool sealed)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY && (!sealed || fcntl(fd, F_GET_SEALS) == seals);
}

static bool is_kept(const int fds[static JAIL_FDS_MAX], const uint8_t *memory)
{
    char text[WORDS + 1] = "", layer[WORDS + 1] = "", wanted[WORDS + 1];
    unsigned number = NOTED;
    if (pread(fds[FD_STATE], text, WORDS, 0) != WORDS || sscanf(text, "state kept %u", &number) != 1 || number >= notes)
        return false;
    snprintf(wanted, sizeof wanted, "layer kept %u", number);
    return is_fixed(fds[FD_STATE], true) && is_fixed(fds[FD_MEMORY], true) && is_fixed(fds[FD_LAYER], false) &&
           pread(fds[FD_LAYER], layer, WORDS, 0) == WORDS && strcmp(layer, wanted) == 0 &&
           memcmp(memory, noted[number], KEPT_MEMORY_BYTES) == 0;
}

void kept_begin(struct stage *s, struct machine *m, const int fds[static JAIL_FDS_MAX])
{
    m->memory = malloc(KEPT_MEMORY_BYTES);
    if (m->memory == NULL || !read_memory(fds[FD_MEMORY], m->memory))
        abort();
    if (!kept_is(fds[FD_STATE]))
        return;
    atomic_fetch_add(&s->play->forked, 1);
    if (!is_kept(fds, m->memory))
        atomic_store(&s->play->broken, true);
}

void kept_end(struct machine *m)
{
    free(m->memory);
    free(m->own);
    m->memory = m->own = NULL;
}

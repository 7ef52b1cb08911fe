// Snapshots, forks and suspends of machines as a client sees them.  Jailer, monitors and machines are played (engine_kept.c),
// which have a model of each machine's memory and tell when what is started from a snapshot has another.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/pb.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIND(name) SANDBOX__CLIENT_MESSAGE__REQUEST_##name
#define ANSWER(name) SANDBOX__SERVER_MESSAGE__RESPONSE_##name
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SET(text) "--set", text
#define READY "\"event\":\"template_snapshot_ready\""

enum { SMALL = 64 };

struct name {
    char text[32];
};

static void with_templates(struct rig *rig)
{
    rig_with_machines(rig);
    atomic_store(&rig->play.has_templates, true);
}

static bool logged(const struct rig *rig, const char *text)
{
    cleanup_free char *log = rig_log(rig);
    return strstr(log, text) != NULL;
}

// With a template of the shape that rig_create asks for; or without, where machines boot.
static struct rig *start(const char *const *args, bool has_template)
{
    struct rig *rig = rig_launch(args, has_template ? with_templates : rig_with_machines);
    rig_await_ready(rig);
    if (!has_template)
        return rig;
    int fd = rig_connect(rig);
    rig_create(fd);
    RIG_AWAIT(logged(rig, READY));
    close(fd);
    RIG_AWAIT(rig->play.live == 0);
    return rig;
}

// ---- requests ----

static void send_about(int fd, uint64_t id, int kind, const char *name, uint32_t sandbox)
{
    Sandbox__SnapshotCreateRequest create = SANDBOX__SNAPSHOT_CREATE_REQUEST__INIT;
    Sandbox__SnapshotDeleteRequest gone = SANDBOX__SNAPSHOT_DELETE_REQUEST__INIT;
    Sandbox__SnapshotListRequest list = SANDBOX__SNAPSHOT_LIST_REQUEST__INIT;
    Sandbox__SuspendRequest suspend = SANDBOX__SUSPEND_REQUEST__INIT;
    create.sandbox_id = suspend.sandbox_id = sandbox;
    gone.id = (char *)name;
    Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
    m.request_id = id;
    m.request_case = (Sandbox__ClientMessage__RequestCase)kind;
    if (kind == KIND(SNAPSHOT_CREATE))
        m.snapshot_create = &create;
    else if (kind == KIND(SNAPSHOT_DELETE))
        m.snapshot_delete = &gone;
    else if (kind == KIND(SUSPEND))
        m.suspend = &suspend;
    else
        m.snapshot_list = &list;
    rig_send(fd, &m);
}

static struct name expect_taken(int fd, uint64_t id, bool unsynced)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != ANSWER(SNAPSHOT_CREATE))
        fail_msg("no snapshot: %s", m->response_case == ANSWER(ERROR) ? m->error->message : "?");
    const Sandbox__Snapshot *s = m->snapshot_create->snapshot;
    assert_int_equal(m->request_id, id);
    assert_true(s->memory);
    assert_int_equal(s->unsynced, unsynced);
    assert_int_equal(s->depth, 1);
    assert_true(s->bytes > 0);
    struct name name;
    snprintf(name.text, sizeof name.text, "%s", s->id);
    pb_free(m);
    return name;
}

static struct name take(int fd, uint32_t sandbox)
{
    send_about(fd, 70, KIND(SNAPSHOT_CREATE), NULL, sandbox);
    return expect_taken(fd, 70, false);
}

static void send_fork(int fd, uint64_t id, const char *name, uint32_t count)
{
    Sandbox__ForkRequest fork = SANDBOX__FORK_REQUEST__INIT;
    fork.snapshot_id = (char *)name;
    fork.count = count;
    Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
    m.request_id = id;
    m.request_case = KIND(FORK);
    m.fork = &fork;
    rig_send(fd, &m);
}

static void expect_forked(int fd, uint64_t id, uint32_t count, uint32_t *ret_ids)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != ANSWER(FORK))
        fail_msg("no forks: %s", m->response_case == ANSWER(ERROR) ? m->error->message : "?");
    assert_int_equal(m->request_id, id);
    assert_true(m->fork->memory);
    assert_int_equal(m->fork->n_sandboxes, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(m->fork->sandboxes[i]->start, "fork");
        ret_ids[i] = m->fork->sandboxes[i]->sandbox_id;
    }
    pb_free(m);
}

static uint32_t fork_one(int fd, const char *name)
{
    uint32_t id;
    send_fork(fd, 80, name, 1);
    expect_forked(fd, 80, 1, &id);
    return id;
}

static void delete (int fd, const char *name)
{
    send_about(fd, 71, KIND(SNAPSHOT_DELETE), name, 0);
    rig_expect(fd, 71, ANSWER(SNAPSHOT_DELETE));
}

static void destroy(int fd, uint32_t sandbox)
{
    rig_send_simple(fd, RIG_DESTROY, 90, sandbox);
    rig_expect(fd, 90, ANSWER(DESTROY));
}

static unsigned listed(int fd)
{
    send_about(fd, 72, KIND(SNAPSHOT_LIST), NULL, 0);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, ANSWER(SNAPSHOT_LIST));
    unsigned n = (unsigned)m->snapshot_list->n_snapshots;
    pb_free(m);
    return n;
}

// "running", ...; whether it is that.
static bool has_state(int fd, uint32_t sandbox, const char *state, const struct rig *rig)
{
    (void)rig;
    rig_send_simple(fd, RIG_INSPECT, 95, sandbox);
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != ANSWER(INSPECT))
        fail_msg("no inspection: %s", m->response_case == ANSWER(ERROR) ? m->error->message : "?");
    bool same = strcmp(m->inspect->state, state) == 0;
    bool in_memory = strcmp(state, "suspended") != 0;
    assert_int_equal(m->inspect->memory_private_mib, in_memory ? 3 : 0);
    assert_int_equal(m->inspect->memory_shared_mib, in_memory ? 5 : 0);
    pb_free(m);
    return same;
}

// How many there are in the folder of snapshots, hidden ones as well.
static unsigned count_stored(const struct rig *rig, bool all)
{
    char path[128];
    rig_path(rig, "state/snapshots", path, sizeof path);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && (all || e->d_name[0] == '.');
    closedir(dir);
    return n;
}

static unsigned stored(const struct rig *rig)
{
    return count_stored(rig, true);
}

static void file_path(const struct rig *rig, const char *name, const char *file, char path[static 192])
{
    char text[96];
    snprintf(text, sizeof text, "state/snapshots/%s/%s", name, file);
    rig_path(rig, text, path, 192);
}

// ---- snapshots and forks ----

static void forks_have_the_memory(const bool has_template)
{
    struct rig *rig = start(NULL, has_template);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t parent = rig_create(fd), forks[6];
    unsigned identities = rig->play.identities;
    struct name first = take(fd, parent);
    assert_int_equal(rig->play.vm_pauses, 1);
    assert_int_equal(rig->play.vm_resumes, 1);
    RIG_AWAIT(rig->play.suspends == 1 && rig->play.resumes == 1);
    assert_true(has_state(fd, parent, "running", rig));
    send_fork(fd, 1, first.text, 6);
    expect_forked(fd, 1, 6, forks);
    assert_int_equal(rig->play.forked, 6);
    assert_int_equal(rig->play.identities, identities + 6);
    // What is kept of a machine later is not what was kept of it first.
    struct name second = take(fd, parent);
    fork_one(fd, first.text);
    fork_one(fd, second.text);
    char path[192];
    struct stat st;
    file_path(rig, first.text, "base.snap", path);
    assert_int_equal(stat(path, &st) == 0, has_template);
    if (has_template)
        assert_true(st.st_nlink >= 3);  // the template's own file, and both snapshots'
    delete (fd, first.text);
    delete (fd, second.text);
    RIG_AWAIT(stored(rig) == 0);
    rig_stop(rig);
}

static void forks_of_clones_have_the_memory(void **state)
{
    forks_have_the_memory(true);
}

static void forks_of_machines_that_booted_have_the_memory(void **state)
{
    forks_have_the_memory(false);
}

static void chains_have_the_memory_at_any_depth(void **state)
{
    enum { DEPTH = 12 };
    struct rig *rig = start(ARGS(SET("max_owned_per_connection=40")), true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    struct name name[DEPTH];
    for (unsigned i = 0; i < DEPTH; i++) {
        name[i] = take(fd, sandbox);
        uint32_t fork = fork_one(fd, name[i].text);
        destroy(fd, sandbox);
        sandbox = fork;
        // Every other one is deleted at once, while what stands on it lives.
        if (i % 2 == 0)
            delete (fd, name[i].text);
    }
    for (unsigned i = 1; i < DEPTH; i += 2) {
        destroy(fd, fork_one(fd, name[i].text));
        delete (fd, name[i].text);
    }
    assert_int_equal(rig->play.forked, DEPTH + DEPTH / 2);
    RIG_AWAIT(stored(rig) == 0);
    rig_stop(rig);
}

static void a_template_that_gives_way_stays_below_its_snapshots(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t parent = rig_create(fd);
    char path[160], command[256];
    rig_path(rig, "state/booted", path, sizeof path);
    snprintf(command, sizeof command, "rm -r %s/*", path);
    struct name before = take(fd, parent);
    assert_int_equal(system(command), 0);
    struct name after = take(fd, parent);  // its file has another name left; then none
    delete (fd, before.text);
    delete (fd, after.text);
    RIG_AWAIT(stored(rig) == 0);
    struct name last = take(fd, parent);
    fork_one(fd, last.text);
    assert_int_equal(rig->play.forked, 1);
    rig_stop(rig);
}

static void snapshots_survive_the_engine(void **state)
{
    struct rig *rig = start(NULL, true);
    int fd = rig_connect(rig);
    struct name name = take(fd, rig_create(fd));
    close(fd);
    rig_again(rig, NULL);
    fd = rig_connect(rig);
    assert_int_equal(listed(fd), 1);
    uint32_t forks[3];
    send_fork(fd, 1, name.text, 3);
    expect_forked(fd, 1, 3, forks);
    // One is kept again, over what was loaded.
    fork_one(fd, take(fd, forks[0]).text);
    close(fd);
    rig_stop(rig);
}

static void a_deleted_one_lasts_until_its_forks_are_made(void **state)
{
    struct rig *rig = start(ARGS(SET("max_creates=1")), true);
    cleanup_fd int fd = rig_connect(rig), other = rig_connect(rig);
    struct name name = take(fd, rig_create(fd));
    uint32_t forks[8];
    send_fork(fd, 1, name.text, 8);
    send_about(other, 2, KIND(SNAPSHOT_DELETE), name.text, 0);
    rig_expect(other, 2, ANSWER(SNAPSHOT_DELETE));
    expect_forked(fd, 1, 8, forks);
    RIG_AWAIT(stored(rig) == 0);
    rig_stop(rig);
}

// ---- what the guest says, and pauses ----

static void a_silent_guest_is_kept_and_marked(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t parent = rig_create(fd);
    atomic_store(&rig->play.mute_syncs, true);
    for (unsigned i = 0; i < 2; i++) {  // the second time it is not asked again, since it has not answered
        send_about(fd, 1, KIND(SNAPSHOT_CREATE), NULL, parent);
        struct name name = expect_taken(fd, 1, true);
        fork_one(fd, name.text);
    }
    assert_int_equal(rig->play.syncs, 1);
    RIG_AWAIT(rig->play.suspends == 2 && rig->play.resumes == 2);
    rig_stop(rig);
}

static void a_paused_one_stays_paused(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t parent = rig_create(fd);
    rig_send_simple(fd, RIG_PAUSE, 1, parent);
    rig_expect(fd, 1, ANSWER(PAUSE));
    unsigned pauses = rig->play.vm_pauses, resumes = rig->play.vm_resumes;
    send_about(fd, 2, KIND(SNAPSHOT_CREATE), NULL, parent);
    struct name name = expect_taken(fd, 2, true);
    assert_int_equal(rig->play.vm_pauses, pauses);
    assert_int_equal(rig->play.vm_resumes, resumes);
    assert_int_equal(rig->play.syncs, 0);
    assert_true(has_state(fd, parent, "paused", rig));
    fork_one(fd, name.text);
    rig_stop(rig);
}

static void pauses_wait_for_a_snapshot_and_it_for_them(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t parent = rig_create(fd);
    atomic_store(&rig->play.keep, KEEP_HELD);
    send_about(fd, 1, KIND(SNAPSHOT_CREATE), NULL, parent);
    RIG_AWAIT(rig->play.kept == 1);
    rig_send_simple(fd, RIG_PAUSE, 2, parent);
    send_about(fd, 3, KIND(SNAPSHOT_CREATE), NULL, parent);
    rig_expect_error(fd, 3, SANDBOX_ERR_GUEST_UNAVAILABLE, "being taken");
    assert_true(rig_silent(fd, 50));
    atomic_store(&rig->play.keep, KEEP_OK);
    // In either order: the snapshot is still to be written when the sandbox can be paused.
    bool taken = false, paused = false;
    while (!taken || !paused) {
        Sandbox__ServerMessage *m = rig_receive(fd);
        taken = taken || (m->request_id == 1 && m->response_case == ANSWER(SNAPSHOT_CREATE));
        paused = paused || (m->request_id == 2 && m->response_case == ANSWER(PAUSE));
        if (m->response_case == ANSWER(ERROR))
            fail_msg("%s", m->error->message);
        pb_free(m);
    }
    assert_true(has_state(fd, parent, "paused", rig));
    // One that is asked for while a pause is under way is of a paused one.
    rig_send_simple(fd, RIG_RESUME, 4, parent);
    rig_expect(fd, 4, ANSWER(RESUME));
    rig_send_simple(fd, RIG_PAUSE, 5, parent);
    send_about(fd, 6, KIND(SNAPSHOT_CREATE), NULL, parent);
    rig_expect(fd, 5, ANSWER(PAUSE));
    expect_taken(fd, 6, true);
    rig_stop(rig);
}

// ---- what goes wrong ----

static void a_full_disk_leaves_the_parent_running(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t parent = rig_create(fd);
    atomic_store(&rig->play.keep, KEEP_NO_ROOM);
    send_about(fd, 1, KIND(SNAPSHOT_CREATE), NULL, parent);
    rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, "no room");
    assert_int_equal(rig->play.vm_resumes, 1);
    RIG_AWAIT(rig->play.resumes == 1 && stored(rig) == 0);
    send_about(fd, 2, KIND(SUSPEND), NULL, parent);
    rig_expect_error(fd, 2, SANDBOX_ERR_INTERNAL, "no room");
    RIG_AWAIT(rig->play.vm_resumes == 2 && rig->play.resumes == 2);
    assert_true(has_state(fd, parent, "running", rig));
    atomic_store(&rig->play.keep, KEEP_OK);
    take(fd, parent);
    rig_stop(rig);
}

static void a_machine_that_ends_leaves_nothing(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    for (unsigned i = 0; i < 2; i++) {
        uint32_t parent = rig_create(fd);
        atomic_store(&rig->play.keep, KEEP_ENDS);
        send_about(fd, 1, i == 0 ? KIND(SNAPSHOT_CREATE) : KIND(SUSPEND), NULL, parent);
        rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended");
        RIG_AWAIT(stored(rig) == 0);
        atomic_store(&rig->play.keep, KEEP_OK);
        destroy(fd, parent);
    }
    rig_stop(rig);
}

static void a_client_that_goes_leaves_nothing(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int keeper = rig_connect(rig);
    for (unsigned i = 0; i < 4; i++) {
        int fd = rig_connect(rig);
        uint32_t parent = rig_create(fd);
        unsigned kept = rig->play.kept;
        atomic_store(&rig->play.keep, i % 2 == 0 ? KEEP_HELD : KEEP_OK);
        send_about(fd, 1, i < 2 ? KIND(SNAPSHOT_CREATE) : KIND(SUSPEND), NULL, parent);
        RIG_AWAIT(rig->play.kept > kept);
        close(fd);
        RIG_AWAIT(rig->play.live == 0);
        atomic_store(&rig->play.keep, KEEP_OK);
        RIG_AWAIT(count_stored(rig, false) == 0);  // what was durable before may stay
        assert_true(rig_status_has(keeper, "sandboxes"));
    }
    rig_stop(rig);
}

static void a_monitor_that_never_writes_is_ended(void **state)
{
    struct rig *rig = start(ARGS(SET("guest_deadline_ms=100")), true);
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.keep, KEEP_HELD);
    for (unsigned i = 0; i < 2; i++) {
        uint32_t parent = rig_create(fd);
        send_about(fd, 1, i == 0 ? KIND(SNAPSHOT_CREATE) : KIND(SUSPEND), NULL, parent);
        rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended");
        RIG_AWAIT(stored(rig) == 0);
        destroy(fd, parent);
    }
    assert_true(logged(rig, "did not write its snapshot in time"));
    rig_stop(rig);
}

static void few_snapshots_stay_loaded(void **state)
{
    enum { LOADED = 4 };  // FORKS_LOADED_MAX
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t parent = rig_create(fd);
    struct name name[LOADED + 1];
    for (unsigned i = 0; i <= LOADED; i++) {
        name[i] = take(fd, parent);
        fork_one(fd, name[i].text);
        assert_int_equal(logged(rig, "\"event\":\"snapshot_unloaded\""), i == LOADED);
    }
    // That was the first; it is loaded again, and so is what gives way to it.
    for (unsigned i = 0; i <= LOADED; i++)
        fork_one(fd, name[i].text);
    assert_int_equal(rig->play.forked, 2 * (LOADED + 1));
    rig_stop(rig);
    // By their size.
    rig = start(ARGS(SET("template_memory_mib=1")), true);
    cleanup_fd int again = rig_connect(rig);
    parent = rig_create(again);
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < 12; k++)
            name[i] = take(again, parent);  // each writes some more
        fork_one(again, name[i].text);
    }
    assert_true(logged(rig, "\"event\":\"snapshot_unloaded\""));
    rig_stop(rig);
}

// The engine's descriptors of memory that snapshots were loaded into.
static unsigned loaded_memories(const struct rig *rig)
{
    unsigned n = 0;
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)rig->engine);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char target[64] = "";
        n += readlinkat(dirfd(dir), e->d_name, target, sizeof target - 1) > 0 && strncmp(target, "/memfd:snapshot", 15) == 0;
    }
    closedir(dir);
    return n;
}

static void a_deleted_one_is_not_held(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    struct name name = take(fd, rig_create(fd));
    uint32_t fork = fork_one(fd, name.text);
    assert_true(loaded_memories(rig) > 0);
    delete (fd, name.text);
    RIG_AWAIT(stored(rig) == 0);
    assert_int_equal(logged(rig, "\"event\":\"snapshot_unloaded\""), 1);
    destroy(fd, fork);
    RIG_AWAIT(loaded_memories(rig) == 0);
    // Deleted while it is being loaded, for forks that are still made.
    name = take(fd, rig_create(fd));
    uint32_t forks[8];
    cleanup_fd int other = rig_connect(rig);
    send_fork(fd, 1, name.text, 8);
    send_about(other, 2, KIND(SNAPSHOT_DELETE), name.text, 0);
    rig_expect(other, 2, ANSWER(SNAPSHOT_DELETE));
    expect_forked(fd, 1, 8, forks);
    for (unsigned i = 0; i < 8; i++)
        destroy(fd, forks[i]);
    RIG_AWAIT(loaded_memories(rig) == 0);
    rig_stop(rig);
}

static void change_byte(const char *path)
{
    cleanup_fd int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat st;
    uint8_t byte;
    assert_true(file >= 0 && fstat(file, &st) == 0 && st.st_size > 0);
    assert_int_equal(pread(file, &byte, 1, st.st_size / 2), 1);
    byte ^= 1;
    assert_int_equal(pwrite(file, &byte, 1, st.st_size / 2), 1);
}

static void damage_is_refused_by_name(void **state)
{
    static const char *const files[] = {"base.snap", "disk.delta", "key.bin", "memory.delta", "vmstate.bin", "manifest.bin"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct rig *rig = start(NULL, true);
        cleanup_fd int fd = rig_connect(rig);
        uint32_t parent = rig_create(fd);
        struct name name = take(fd, parent), whole = take(fd, parent);
        char path[192];
        file_path(rig, name.text, files[i], path);
        change_byte(path);
        send_fork(fd, 1, name.text, 2);
        rig_expect_error(fd, 1, SANDBOX_ERR_INVALID_SPEC, files[i]);
        assert_int_equal(rig->play.forked, 0);
        RIG_AWAIT(logged(rig, "\"event\":\"snapshot_refused\""));
        if (strcmp(files[i], "base.snap") != 0)  // which they have in common
            fork_one(fd, whole.text);
        if (unlink(path) < 0)
            fail_msg("cannot remove %s", path);
        send_fork(fd, 2, name.text, 1);
        rig_expect_error(fd, 2, strcmp(files[i], "manifest.bin") == 0 ? SANDBOX_ERR_INTERNAL : SANDBOX_ERR_INVALID_SPEC, "");
        rig_stop(rig);
    }
}

static void files_of_another_are_refused(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t parent = rig_create(fd);
    struct name one = take(fd, parent), two = take(fd, parent);
    char folder[192], other[192], command[2048];
    file_path(rig, one.text, "", folder);
    file_path(rig, two.text, "", other);
    // All but the description.
    snprintf(command, sizeof command,
             "mv %s/snapshot.bin %s/../keep && rm %s/* && cp -a %s/* %s && mv %s/../keep %s/snapshot.bin", folder, folder,
             folder, other, folder, folder, folder);
    assert_int_equal(system(command), 0);
    send_fork(fd, 1, one.text, 1);
    rig_expect_error(fd, 1, SANDBOX_ERR_INVALID_SPEC, "another one");
    fork_one(fd, two.text);
    rig_stop(rig);
}

// A monitor keeps the descriptors of the files that it wrote, and a guest may take it over at any time.
static void what_was_kept_cannot_be_changed_by_its_monitor(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    struct name first = take(fd, rig_create(fd));
    rig_write_late();
    uint32_t fork = fork_one(fd, first.text);
    // Nor does what a fork stands on follow what becomes of the files.
    char path[192];
    file_path(rig, first.text, "memory.delta", path);
    change_byte(path);
    struct name second = take(fd, fork);
    rig_write_late();
    fork_one(fd, second.text);
    assert_int_equal(rig->play.forked, 2);
    rig_stop(rig);
}

static void files_of_impossible_sizes_are_refused(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t parent = rig_create(fd);
    for (int kind = KEEP_LARGE_STATE; kind <= KEEP_CUT_MEMORY; kind++) {
        atomic_store(&rig->play.keep, kind);
        unsigned resumes = rig->play.vm_resumes, told = rig->play.resumes;
        send_about(fd, 1, KIND(SNAPSHOT_CREATE), NULL, parent);
        rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, "goes on");
        send_about(fd, 2, KIND(SUSPEND), NULL, parent);
        rig_expect_error(fd, 2, SANDBOX_ERR_INTERNAL, "goes on");
        // And so it does, also where its memory had been written already.
        assert_int_equal(rig->play.vm_resumes, resumes + 2);
        RIG_AWAIT(rig->play.resumes == told + 2 && stored(rig) == 0);
        assert_true(has_state(fd, parent, "running", rig));
    }
    atomic_store(&rig->play.keep, KEEP_OK);
    fork_one(fd, take(fd, parent).text);
    rig_stop(rig);
}

static void an_engine_that_is_killed_leaves_all_or_nothing(void **state)
{
    unsigned seed = 11;
    struct rig *rig = start(NULL, true);
    for (unsigned round = 0; round < 8; round++) {
        int fd = rig_connect(rig);
        uint32_t parent = rig_create(fd);
        unsigned before = listed(fd);
        send_about(fd, 1, KIND(SNAPSHOT_CREATE), NULL, parent);
        for (int spin = rand_r(&seed) % 8; spin > 0; spin--)
            rig_tick();
        rig_killed(rig, NULL);
        close(fd);
        fd = rig_connect(rig);
        unsigned after = listed(fd);
        assert_true(after == before || after == before + 1);
        assert_int_equal(stored(rig), after);
        close(fd);
    }
    rig_stop(rig);
}

// ---- suspend ----

static void resume(int fd, uint32_t sandbox)
{
    rig_send_simple(fd, RIG_RESUME, 85, sandbox);
    rig_expect(fd, 85, ANSWER(RESUME));
}

static void suspend(int fd, uint32_t sandbox)
{
    send_about(fd, 84, KIND(SUSPEND), NULL, sandbox);
    rig_expect(fd, 84, ANSWER(SUSPEND));
}

static void a_suspended_one_comes_back(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    unsigned live = rig->play.live;
    for (unsigned i = 0; i < 4; i++) {
        if (i % 2 == 1) {
            rig_send_simple(fd, RIG_PAUSE, 1, sandbox);
            rig_expect(fd, 1, ANSWER(PAUSE));
        }
        suspend(fd, sandbox);
        RIG_AWAIT(rig->play.live == live - 1);  // its machine has gone
        assert_true(has_state(fd, sandbox, "suspended", rig));
        suspend(fd, sandbox);  // is nothing
        rig_send_exec(fd, 2, sandbox, 1000);
        rig_expect_error(fd, 2, SANDBOX_ERR_GUEST_UNAVAILABLE, "suspended");
        rig_send_simple(fd, RIG_PAUSE, 3, sandbox);
        rig_expect_error(fd, 3, SANDBOX_ERR_GUEST_UNAVAILABLE, "suspended");
        send_about(fd, 4, KIND(SNAPSHOT_CREATE), NULL, sandbox);
        rig_expect_error(fd, 4, SANDBOX_ERR_GUEST_UNAVAILABLE, "suspended");
        resume(fd, sandbox);
        assert_int_equal(rig->play.forked, i + 1);  // with the memory it had
        assert_int_equal(rig->play.live, live);
        resume(fd, sandbox);
        rig_send_stat(fd, 5, sandbox);
        rig_expect(fd, 5, ANSWER(GUEST));
    }
    // Neither a create's configuration again, nor anything on the disk.
    assert_int_equal(stored(rig), 0);
    take(fd, sandbox);
    rig_stop(rig);
}

static void a_suspended_one_goes_with_its_owner(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    suspend(fd, sandbox);
    destroy(fd, sandbox);
    rig_send_simple(fd, RIG_RESUME, 1, sandbox);
    rig_expect_error(fd, 1, SANDBOX_ERR_PERMISSION_DENIED, "");
    int other = rig_connect(rig);
    suspend(other, rig_create(other));
    close(other);
    RIG_AWAIT(rig_status_has(fd, "\"suspended\":0,\"closing\":0,\"gone\":0"));
    // While it comes back.
    sandbox = rig_create(fd);
    suspend(fd, sandbox);
    atomic_store(&rig->play.hold_boots, true);
    rig_send_simple(fd, RIG_RESUME, 2, sandbox);
    RIG_AWAIT(rig->play.forked == 1);
    rig_send_simple(fd, RIG_DESTROY, 3, sandbox);
    for (int i = 0; i < 2; i++) {
        Sandbox__ServerMessage *m = rig_receive(fd);
        assert_true(m->response_case == (m->request_id == 2 ? ANSWER(ERROR) : ANSWER(DESTROY)));
        pb_free(m);
    }
    RIG_AWAIT(rig_status_has(fd, "\"suspended\":0,\"closing\":0,\"gone\":0"));
    rig_stop(rig);
}

static void one_that_does_not_come_back_has_ended(void **state)
{
    struct rig *rig = start(ARGS(SET("start_deadline_ms=700")), true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    suspend(fd, sandbox);
    // It cannot be started: it stays where it is.
    atomic_store(&rig->play.start_error, -EAGAIN);
    rig_send_simple(fd, RIG_RESUME, 1, sandbox);
    rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, "stays suspended");
    atomic_store(&rig->play.start_error, 0);
    resume(fd, sandbox);
    // It is started, and does not call.
    suspend(fd, sandbox);
    atomic_store(&rig->play.hold_boots, true);
    rig_send_simple(fd, RIG_RESUME, 2, sandbox);
    rig_expect_error(fd, 2, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended");
    atomic_store(&rig->play.hold_boots, false);
    destroy(fd, sandbox);
    // It calls, and cannot take an identity.
    sandbox = rig_create(fd);
    suspend(fd, sandbox);
    atomic_store(&rig->play.clones_same, true);
    rig_send_simple(fd, RIG_RESUME, 3, sandbox);
    rig_expect_error(fd, 3, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended");
    destroy(fd, sandbox);
    rig_stop(rig);
}

static void a_suspended_one_that_was_changed_is_refused(void **state)
{
    struct rig *rig = start(NULL, true);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    suspend(fd, sandbox);
    rig_write_late();
    for (unsigned i = 0; i < 3; i++) {  // the answer is the same each time
        rig_send_simple(fd, RIG_RESUME, 1, sandbox);
        rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, "stays suspended");
        assert_true(logged(rig, "has changed since it was taken"));
    }
    assert_int_equal(rig->play.forked, 0);
    destroy(fd, sandbox);
    rig_stop(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_of_clones_have_the_memory),
        cmocka_unit_test(forks_of_machines_that_booted_have_the_memory),
        cmocka_unit_test(chains_have_the_memory_at_any_depth),
        cmocka_unit_test(a_template_that_gives_way_stays_below_its_snapshots),
        cmocka_unit_test(snapshots_survive_the_engine),
        cmocka_unit_test(a_deleted_one_lasts_until_its_forks_are_made),
        cmocka_unit_test(a_silent_guest_is_kept_and_marked),
        cmocka_unit_test(a_paused_one_stays_paused),
        cmocka_unit_test(pauses_wait_for_a_snapshot_and_it_for_them),
        cmocka_unit_test(a_full_disk_leaves_the_parent_running),
        cmocka_unit_test(a_machine_that_ends_leaves_nothing),
        cmocka_unit_test(a_client_that_goes_leaves_nothing),
        cmocka_unit_test(a_monitor_that_never_writes_is_ended),
        cmocka_unit_test(few_snapshots_stay_loaded),
        cmocka_unit_test(a_deleted_one_is_not_held),
        cmocka_unit_test(damage_is_refused_by_name),
        cmocka_unit_test(files_of_another_are_refused),
        cmocka_unit_test(what_was_kept_cannot_be_changed_by_its_monitor),
        cmocka_unit_test(files_of_impossible_sizes_are_refused),
        cmocka_unit_test(an_engine_that_is_killed_leaves_all_or_nothing),
        cmocka_unit_test(a_suspended_one_comes_back),
        cmocka_unit_test(a_suspended_one_goes_with_its_owner),
        cmocka_unit_test(one_that_does_not_come_back_has_ended),
        cmocka_unit_test(a_suspended_one_that_was_changed_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

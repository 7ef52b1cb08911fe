// sandbox-engine and templates of machines: made once, kept, loaded again, refused when damaged; clones of them, and the
// limits. Jailer, monitors and machines are played (engine_templates.c), which tell when a clone is started from anything but
// what was saved of its own shape.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/isolation/snapshot_store.h"
#include "engine/isolation/vm_template.h"
#include "engine_broker.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/pb.h"
#include "wire/vmm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SET(text) "--set", text

#define READY "\"event\":\"template_snapshot_ready\""
#define FAILED "\"event\":\"template_snapshot_failed\""
#define REFUSED "\"event\":\"template_snapshot_refused\""
#define UNLOADED "\"event\":\"template_snapshot_unloaded\""

enum { SMALL = 64, LARGE = 128 };

static void with_templates(struct rig *rig)
{
    rig_with_machines(rig);
    atomic_store(&rig->play.has_templates, true);
}

static struct rig *start(const char *const *args)
{
    struct rig *rig = rig_launch(args, with_templates);
    rig_await_ready(rig);
    return rig;
}

static unsigned logged(const struct rig *rig, const char *text)
{
    char *log = rig_log(rig);
    unsigned n = 0;
    for (const char *at = log; (at = strstr(at, text)) != NULL; at++)
        n++;
    free(log);
    return n;
}

static void send_create(int fd, uint64_t id, uint64_t memory_mib)
{
    Sandbox__CreateRequest spec = rig_spec();
    spec.memory_mib = memory_mib;
    rig_send_create(fd, id, &spec);
}

// The sandbox, which was started in this way.
static uint32_t expect_created(int fd, uint64_t id, const char *how)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->request_id, id);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE)
        fail_msg("not created: %s", m->error->message);
    assert_string_equal(m->create->start, how);
    uint32_t sandbox = m->create->sandbox_id;
    pb_free(m);
    return sandbox;
}

// Created and destroyed.
static void create(const struct rig *rig, int fd, uint64_t memory_mib, const char *how)
{
    unsigned stops = rig->play.stops;
    send_create(fd, 1, memory_mib);
    rig_send_simple(fd, RIG_DESTROY, 2, expect_created(fd, 1, how));
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    RIG_AWAIT(rig->play.stops > stops);
}

static void make_template(const struct rig *rig, int fd, uint64_t memory_mib)
{
    unsigned ready = logged(rig, READY);
    create(rig, fd, memory_mib, "cold");
    RIG_AWAIT(logged(rig, READY) > ready);
}

// ---- what is stored ----

enum { SNAPSHOT_NAMES = SNAPSHOTS_STORED_MAX + 4 };

// The names in the folder of snapshots, those that are not finished as well.
static unsigned stored(const struct rig *rig, char found[SNAPSHOT_NAMES][SNAPSHOT_KEY_DIGITS + 2])
{
    char path[128];
    rig_path(rig, "state/booted", path, sizeof path);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            assert_true(n < SNAPSHOT_NAMES);
            assert_true(snprintf(found[n++], SNAPSHOT_KEY_DIGITS + 2, "%s", e->d_name) < SNAPSHOT_KEY_DIGITS + 2);
        }
    closedir(dir);
    return n;
}

static unsigned stored_count(const struct rig *rig)
{
    static char found[SNAPSHOT_NAMES][SNAPSHOT_KEY_DIGITS + 2];
    return stored(rig, found);
}

static void file_path(const struct rig *rig, const char *snapshot, const char *file, char *path, size_t size)
{
    char name[SNAPSHOT_KEY_DIGITS + 64];
    snprintf(name, sizeof name, "state/booted/%s/%s", snapshot, file);
    rig_path(rig, name, path, size);
}

// ---- templates and clones ----

static void a_template_boots_once_and_creates_are_clones(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    make_template(rig, fd, SMALL);
    for (unsigned i = 1; i <= 5; i++) {
        create(rig, fd, SMALL, "restored");
        assert_int_equal(rig->play.clones, i);
        assert_int_equal(rig->play.identities, i + 1);  // the trial's too, each another one
    }
    assert_int_equal(rig->play.template_starts, 1);
    assert_int_equal(rig->play.prepares, 1);
    assert_int_equal(rig->play.template_snapshots, 1);
    assert_int_equal(rig->play.trials, 1);
    assert_int_equal(rig->play.recordings, 1);
    assert_int_equal(stored_count(rig), 1);
    RIG_AWAIT(rig->play.live == 0);
    rig_stop(rig);
}

static void another_shape_is_another_template(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    make_template(rig, fd, SMALL);
    make_template(rig, fd, LARGE);
    create(rig, fd, SMALL, "restored");
    create(rig, fd, LARGE, "restored");
    Sandbox__CreateRequest spec = rig_spec();
    spec.vcpu_count = 2;
    rig_send_create(fd, 1, &spec);
    expect_created(fd, 1, "cold");
    RIG_AWAIT(rig->play.template_starts == 3);
    rig_stop(rig);
}

// What the played machine is told of them is what its monitor was given, or the rig is broken.
static void clones_have_lines_and_volumes(void **state)
{
    ProtobufCBinaryData entry = {.len = sizeof "index.example.org" - 1, .data = (uint8_t *)"index.example.org"};
    struct rig *rig = rig_launch(ARGS(SET(PLAYED_BROKER), SET("pool_auto=0")), with_templates);
    struct played_broker *broker = played_broker_start(rig);
    rig_await_ready(rig);
    cleanup_fd int fd = rig_connect(rig);
    RIG_AWAIT(broker->hellos == 1);
    make_template(rig, fd, SMALL);
    for (unsigned i = 1; i < 8; i++) {
        unsigned clones = rig->play.clones;
        Sandbox__CreateRequest spec = (i & 1) != 0 ? rig_session_spec("key", 60) : rig_spec();
        spec.memory_mib = SMALL;
        spec.n_egress_allow = (i & 2) != 0;
        spec.egress_allow = &entry;
        spec.egress_transparent = (i & 6) == 6;
        rig_send_create(fd, 1, &spec);
        uint32_t sandbox = expect_created(fd, 1, "restored");
        assert_int_equal(rig->play.clones, clones + 1);
        assert_int_equal(rig->play.line != 0, (i & 2) != 0);
        rig_send_simple(fd, RIG_DESTROY, 2, sandbox);
        rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
        RIG_AWAIT(rig->play.live == 0);
    }
    assert_int_equal(rig->play.template_starts, 1);  // one shape for all of them
    rig_stop(rig);
    assert_true(played_broker_stop(broker));
}

static void a_warm_clone_is_built_and_waits(void **state)
{
    struct rig *rig = start(ARGS(SET("pool=debian:64:1=1")));
    cleanup_fd int fd = rig_connect(rig);
    RIG_AWAIT(logged(rig, READY) == 1);
    RIG_AWAIT(rig_status_has(fd, "\"ready\":1,\"filling\":0"));
    send_create(fd, 1, SMALL);
    expect_created(fd, 1, "pool");  // that one had booted
    RIG_AWAIT(rig->play.clones == 1 && rig_status_has(fd, "\"ready\":1,\"filling\":0"));
    assert_int_equal(rig->play.claims, 0);
    assert_int_equal(rig->play.identities, 1);  // the trial's
    send_create(fd, 2, SMALL);
    expect_created(fd, 2, "pool");
    assert_int_equal(rig->play.claims, 1);
    assert_int_equal(rig->play.identities, 2);
    rig_stop(rig);
}

static void a_clone_without_an_identity_is_not_given_out(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    make_template(rig, fd, SMALL);
    atomic_store(&rig->play.clones_same, true);
    send_create(fd, 1, SMALL);
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "");
    assert_int_equal(logged(rig, "\"event\":\"clone_without_identity\""), 1);
    assert_int_equal(rig->play.configures, 1);  // of the one that booted
    RIG_AWAIT(rig->play.live == 0);
    atomic_store(&rig->play.clones_same, false);
    create(rig, fd, SMALL, "restored");
    rig_stop(rig);
}

// ---- what goes wrong while one is made ----

static void a_template_that_fails_leaves_boots_and_nothing_else(void **state)
{
    static const struct {
        enum play_template fault;
        const char *step;
    } cases[] = {
        {TEMPLATE_ENDS, "preparing it"},     {TEMPLATE_UNSAVED, "saving it"},     {TEMPLATE_CLOSES, "saving it"},
        {TEMPLATE_TRIAL_FAILS, "trying it"}, {TEMPLATE_TRIAL_MUTE, "trying it"},  {TEMPLATE_TRIAL_ENDS, "trying it"},
        {TEMPLATE_TRIAL_SAME, "trying it"},  {TEMPLATE_TRIAL_EARLY, "trying it"}, {TEMPLATE_UNRECORDED, "recording its"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig *rig = start(ARGS(SET("start_deadline_ms=1000")));
        cleanup_fd int fd = rig_connect(rig);
        char step[64];
        snprintf(step, sizeof step, "\"step\":\"%s", cases[i].step);
        atomic_store(&rig->play.template, cases[i].fault);
        create(rig, fd, SMALL, "cold");
        RIG_AWAIT(logged(rig, FAILED) == 1);
        if (logged(rig, step) != 1)
            fail_msg("fault %d: not %s: %s", (int)cases[i].fault, step, rig_log(rig));
        RIG_AWAIT(rig->play.live == 0);
        RIG_AWAIT(stored_count(rig) == 0);  // removed on another thread
        create(rig, fd, SMALL, "cold");
        assert_int_equal(rig->play.template_starts, 1);  // not again so soon
        atomic_store(&rig->play.template, TEMPLATE_OK);
        make_template(rig, fd, LARGE);  // others are not held up
        create(rig, fd, LARGE, "restored");
        rig_stop(rig);
    }
}

static void a_template_that_never_boots_is_given_up_as_a_sandbox_is(void **state)
{
    struct rig *rig = start(ARGS(SET("start_deadline_ms=300")));
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.hold_boots, true);
    send_create(fd, 1, SMALL);
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "not ready within 300 ms");
    RIG_AWAIT(rig->play.live == 0);
    assert_int_equal(rig->play.template_starts, 1);
    RIG_AWAIT(logged(rig, "\"step\":\"booting it\"") == 1);
    atomic_store(&rig->play.hold_boots, false);
    create(rig, fd, SMALL, "cold");
    rig_stop(rig);
}

static void one_that_is_being_made_holds_up_no_end(void **state)
{
    static const enum play_template silent[] = {TEMPLATE_SILENT, TEMPLATE_TRIAL_MUTE};
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
        struct rig *rig = start(NULL);
        cleanup_fd int fd = rig_connect(rig);
        atomic_store(&rig->play.template, silent[i]);
        create(rig, fd, SMALL, "cold");
        if (silent[i] == TEMPLATE_SILENT)
            RIG_AWAIT(rig->play.prepares == 1);
        else
            RIG_AWAIT(rig->play.trials == 1);
        rig_again(rig, NULL);  // what was not finished is gone
        assert_int_equal(stored_count(rig), 0);
        rig_stop(rig);
    }
}

static void an_image_that_changes_while_its_template_is_made_is_another(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.template, TEMPLATE_SILENT);
    create(rig, fd, SMALL, "cold");
    RIG_AWAIT(rig->play.prepares == 1);
    rig_write_template(rig, "debian", "another file system");
    atomic_store(&rig->play.template, TEMPLATE_OK);
    make_template(rig, fd, SMALL);
    assert_int_equal(rig->play.template_starts, 2);
    create(rig, fd, SMALL, "restored");
    RIG_AWAIT(rig->play.live == 0);
    rig_stop(rig);
}

// ---- the next engine ----

static void stored_snapshots_serve_the_next_engine(void **state)
{
    struct rig *rig = start(NULL);
    int fd = rig_connect(rig);
    make_template(rig, fd, SMALL);
    close(fd);
    for (int life = 0; life < 2; life++) {
        rig_again(rig, NULL);
        fd = rig_connect(rig);
        make_template(rig, fd, SMALL);
        create(rig, fd, SMALL, "restored");
        close(fd);
    }
    assert_int_equal(rig->play.template_starts, 1);
    rig_stop(rig);
}

static void another_image_or_kernel_is_another_template(void **state)
{
    struct rig *rig = start(NULL);
    int fd = rig_connect(rig);
    make_template(rig, fd, SMALL);
    rig_write_template(rig, "debian", "another file system");
    make_template(rig, fd, SMALL);  // of a running engine
    assert_int_equal(rig->play.template_starts, 2);
    close(fd);
    rig_write_kernel(rig, "another kernel");
    rig_again(rig, NULL);
    fd = rig_connect(rig);
    make_template(rig, fd, SMALL);
    assert_int_equal(rig->play.template_starts, 3);
    assert_int_equal(stored_count(rig), 3);
    close(fd);
    rig_stop(rig);
}

// ---- damage ----

static void flip(const char *path, const char *other)
{
    (void)other;
    cleanup_fd int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, 3), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 3), 1);
}

static void cut(const char *path, const char *other)
{
    (void)other;
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 1), 0);
}

static void extend(const char *path, const char *other)
{
    (void)other;
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size + 1), 0);
}

static void take_away(const char *path, const char *other)
{
    (void)other;
    assert_int_equal(unlink(path), 0);
}

static void swap(const char *path, const char *other)
{
    assert_int_equal(renameat2(AT_FDCWD, path, AT_FDCWD, other, RENAME_EXCHANGE), 0);
}

static void lead_elsewhere(const char *path, const char *other)
{
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(other, path), 0);
}

typedef void damage_fn(const char *path, const char *other);
static damage_fn *const damages[] = {flip, cut, extend, take_away, swap, lead_elsewhere};
static const char *const names[] = {"disk.delta", "key.bin", "memory.snap", "vmstate.bin", "working-set.bin", "manifest.bin"};

// The template is loaded by the next engine, and another shape's is there to be taken for it.
static struct rig *two_templates(char ours[SNAPSHOT_KEY_DIGITS + 2], char other[SNAPSHOT_KEY_DIGITS + 2])
{
    static char both[SNAPSHOT_NAMES][SNAPSHOT_KEY_DIGITS + 2];
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    make_template(rig, fd, SMALL);
    assert_int_equal(stored(rig, both), 1);
    strcpy(ours, both[0]);
    make_template(rig, fd, LARGE);
    assert_int_equal(stored(rig, both), 2);
    strcpy(other, strcmp(both[0], ours) == 0 ? both[1] : both[0]);
    return rig;
}

static void damaged(struct rig *rig, const char *file)
{
    rig_again(rig, NULL);
    cleanup_fd int fd = rig_connect(rig);
    unsigned clones = rig->play.clones, boots = rig->play.template_starts;
    create(rig, fd, SMALL, "cold");
    RIG_AWAIT(logged(rig, READY) == 1);
    if (logged(rig, REFUSED) != 1 || logged(rig, file) == 0)
        fail_msg("%s: not refused by name: %s", file, rig_log(rig));
    assert_int_equal(rig->play.clones, clones);  // nothing ran of it
    assert_int_equal(rig->play.template_starts, boots + 1);
    create(rig, fd, SMALL, "restored");
}

static void a_damaged_file_is_refused_by_name_and_nothing_runs_of_it(void **state)
{
    char ours[SNAPSHOT_KEY_DIGITS + 2], other[SNAPSHOT_KEY_DIGITS + 2], path[256], others[256];
    for (size_t d = 0; d < sizeof damages / sizeof damages[0]; d++) {
        struct rig *rig = two_templates(ours, other);
        for (size_t f = 0; f < sizeof names / sizeof names[0]; f++) {
            if (damages[d] == take_away && strcmp(names[f], "manifest.bin") == 0)
                continue;  // that is none at all
            file_path(rig, ours, names[f], path, sizeof path);
            file_path(rig, other, names[f], others, sizeof others);
            damages[d](path, others);
            damaged(rig, damages[d] == swap && strcmp(names[f], "manifest.bin") == 0 ? "has changed since" : names[f]);
        }
        rig_stop(rig);
    }
}

// With its manifest, so that every digest is right.
static void a_snapshot_in_the_place_of_another_is_refused(void **state)
{
    char ours[SNAPSHOT_KEY_DIGITS + 2], other[SNAPSHOT_KEY_DIGITS + 2], path[256], others[256];
    struct rig *rig = two_templates(ours, other);
    file_path(rig, ours, "", path, sizeof path);
    file_path(rig, other, "", others, sizeof others);
    swap(path, others);
    damaged(rig, "key.bin");
    rig_stop(rig);
}

static void a_disk_that_changes_while_it_is_in_use_is_checked_again(void **state)
{
    static char names_there[SNAPSHOT_NAMES][SNAPSHOT_KEY_DIGITS + 2];
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    char path[256];
    make_template(rig, fd, SMALL);
    create(rig, fd, SMALL, "restored");
    assert_int_equal(stored(rig, names_there), 1);
    file_path(rig, names_there[0], "disk.delta", path, sizeof path);
    flip(path, NULL);
    create(rig, fd, SMALL, "cold");
    RIG_AWAIT(logged(rig, READY) == 2);
    assert_int_equal(logged(rig, REFUSED), 1);
    assert_int_equal(rig->play.template_starts, 2);
    create(rig, fd, SMALL, "restored");
    // The others are in memory: what happens to their files is found at the next load.
    file_path(rig, names_there[0], "memory.snap", path, sizeof path);
    flip(path, NULL);
    create(rig, fd, SMALL, "restored");
    rig_stop(rig);
}

static void one_that_no_machine_comes_of_is_made_anew(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    make_template(rig, fd, SMALL);
    RIG_AWAIT(rig->play.live == 0);  // so that the next is in the first place
    atomic_store(&rig->play.end_reason, VMM_REASON_SETUP_FAILED);
    atomic_store(&rig->play.hold_boots, true);
    send_create(fd, 1, SMALL);
    RIG_AWAIT(rig->play.clones == 1);
    atomic_store(&rig->play.kill_slot, 1);
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "");
    RIG_AWAIT(logged(rig, REFUSED) == 1);
    atomic_store(&rig->play.end_reason, 0);
    atomic_store(&rig->play.hold_boots, false);
    make_template(rig, fd, SMALL);
    assert_int_equal(rig->play.template_starts, 2);
    create(rig, fd, SMALL, "restored");
    rig_stop(rig);
}

// ---- limits ----

static void no_more_are_loaded_than_there_may_be(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    for (unsigned i = 0; i < TEMPLATES_LOADED_MAX; i++)
        make_template(rig, fd, SMALL + i);
    create(rig, fd, SMALL, "restored");  // the second is now the one that was used longest ago
    assert_int_equal(logged(rig, UNLOADED), 0);
    make_template(rig, fd, LARGE);
    RIG_AWAIT(logged(rig, UNLOADED) == 1);
    create(rig, fd, SMALL, "restored");
    make_template(rig, fd, SMALL + 1);  // cold, and from the disk again
    assert_int_equal(rig->play.template_starts, TEMPLATES_LOADED_MAX + 1);
    RIG_AWAIT(logged(rig, UNLOADED) == 2);
    create(rig, fd, SMALL + 1, "restored");
    rig_stop(rig);
}

static void no_more_memory_is_held_than_may_be(void **state)
{
    struct rig *rig = start(ARGS(SET("template_memory_mib=1")));
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.template_kib, 500);
    make_template(rig, fd, SMALL);
    make_template(rig, fd, LARGE);
    assert_int_equal(logged(rig, UNLOADED), 0);
    make_template(rig, fd, LARGE + 1);
    RIG_AWAIT(logged(rig, UNLOADED) == 1);
    create(rig, fd, LARGE, "restored");
    create(rig, fd, LARGE + 1, "restored");
    // One that is larger than all there is to be had serves alone.
    atomic_store(&rig->play.template_kib, 2000);
    make_template(rig, fd, LARGE + 2);
    RIG_AWAIT(logged(rig, UNLOADED) == 3);
    create(rig, fd, LARGE + 2, "restored");
    rig_stop(rig);
}

static void shapes_beyond_those_known_at_once_take_the_oldest_s_place(void **state)
{
    struct rig *rig = rig_launch(NULL, rig_with_machines);  // each template fails at once
    rig_await_ready(rig);
    cleanup_fd int fd = rig_connect(rig);
    for (unsigned i = 0; i < TEMPLATE_SHAPES_MAX + 1; i++) {
        create(rig, fd, SMALL + i, "cold");
        RIG_AWAIT(rig->play.template_starts == i + 1 && logged(rig, FAILED) == i + 1);
    }
    create(rig, fd, SMALL + 1, "cold");  // still known: not tried so soon
    create(rig, fd, SMALL, "cold");      // forgotten, and so tried again
    RIG_AWAIT(rig->play.template_starts == TEMPLATE_SHAPES_MAX + 2);
    rig_stop(rig);
}

// What a client took is not among those that give way, however old it is.
static void no_more_are_stored_than_may_be(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    char clients[128];
    struct stat st;
    rig_path(rig, "state/snapshots/snp_0000000000001", clients, sizeof clients);
    assert_int_equal(mkdir(clients, 0700), 0);
    assert_int_equal(utimensat(AT_FDCWD, clients, (const struct timespec[2]){0}, 0), 0);
    for (unsigned i = 0; i < SNAPSHOTS_STORED_MAX; i++)
        make_template(rig, fd, SMALL + i);
    assert_int_equal(stored_count(rig), SNAPSHOTS_STORED_MAX);
    make_template(rig, fd, SMALL + SNAPSHOTS_STORED_MAX);
    assert_int_equal(stored_count(rig), SNAPSHOTS_STORED_MAX);
    make_template(rig, fd, SMALL);  // which was the oldest
    assert_int_equal(rig->play.template_starts, SNAPSHOTS_STORED_MAX + 2);
    assert_int_equal(stat(clients, &st), 0);
    rig_stop(rig);
}

static void no_more_disk_is_used_than_may_be(void **state)
{
    struct rig *rig = start(ARGS(SET("template_disk_mib=1")));
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.template_kib, 400);
    make_template(rig, fd, SMALL);
    make_template(rig, fd, LARGE);
    assert_int_equal(stored_count(rig), 2);
    make_template(rig, fd, LARGE + 1);
    assert_int_equal(stored_count(rig), 2);
    atomic_store(&rig->play.template_kib, 2000);
    make_template(rig, fd, LARGE + 2);
    assert_int_equal(stored_count(rig), 1);
    create(rig, fd, SMALL, "restored");  // in memory
    rig_stop(rig);
}

// ---- the key ----

static void everything_a_snapshot_is_bound_to_is_in_its_name(void **state)
{
    struct snapshot_key key = {.memory_mib = 64};
    char name[SNAPSHOT_KEY_DIGITS + 1], other[SNAPSHOT_KEY_DIGITS + 1];
    assert_int_equal(snapshot_key_name(&key, name), 0);
    assert_int_equal(strlen(name), SNAPSHOT_KEY_DIGITS);
    assert_int_equal(snapshot_key_name(&key, other), 0);
    assert_string_equal(name, other);
    struct {
        const char *what;
        void *at;
    } parts[] = {{"image", &key.image[31]},
                 {"kernel", &key.kernel[0]},
                 {"processor", &key.host.processor[3]},
                 {"signature", &key.host.signature},
                 {"release", &key.host.kernel[0]},
                 {"build", &key.host.build[5]},
                 {"memory", &key.memory_mib},
                 {"disk", &key.disk_mib},
                 {"vcpus", &key.vcpus},
                 {"pids", &key.pids_max},
                 {"format", &key.format},
                 {"vmstate", &key.vmstate}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *(uint8_t *)parts[i].at ^= 1;
        assert_int_equal(snapshot_key_name(&key, other), 0);
        if (strcmp(name, other) == 0)
            fail_msg("%s makes no difference", parts[i].what);
        *(uint8_t *)parts[i].at ^= 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_boots_once_and_creates_are_clones),
        cmocka_unit_test(another_shape_is_another_template),
        cmocka_unit_test(clones_have_lines_and_volumes),
        cmocka_unit_test(a_warm_clone_is_built_and_waits),
        cmocka_unit_test(a_clone_without_an_identity_is_not_given_out),
        cmocka_unit_test(a_template_that_fails_leaves_boots_and_nothing_else),
        cmocka_unit_test(a_template_that_never_boots_is_given_up_as_a_sandbox_is),
        cmocka_unit_test(one_that_is_being_made_holds_up_no_end),
        cmocka_unit_test(an_image_that_changes_while_its_template_is_made_is_another),
        cmocka_unit_test(stored_snapshots_serve_the_next_engine),
        cmocka_unit_test(another_image_or_kernel_is_another_template),
        cmocka_unit_test(a_damaged_file_is_refused_by_name_and_nothing_runs_of_it),
        cmocka_unit_test(a_snapshot_in_the_place_of_another_is_refused),
        cmocka_unit_test(a_disk_that_changes_while_it_is_in_use_is_checked_again),
        cmocka_unit_test(one_that_no_machine_comes_of_is_made_anew),
        cmocka_unit_test(no_more_are_loaded_than_there_may_be),
        cmocka_unit_test(no_more_memory_is_held_than_may_be),
        cmocka_unit_test(shapes_beyond_those_known_at_once_take_the_oldest_s_place),
        cmocka_unit_test(no_more_are_stored_than_may_be),
        cmocka_unit_test(no_more_disk_is_used_than_may_be),
        cmocka_unit_test(everything_a_snapshot_is_bound_to_is_in_its_name),
    };
    return cmocka_run_group_tests_name("engine_vm_templates", tests, NULL, NULL);
}

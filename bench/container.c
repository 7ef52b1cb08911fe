// Measures the container tier next to what else could run a command in a container, in one process and in turns, so that a
// busy moment of the machine hits all of them.  bench/run starts it in a prepared place and prints what it finds.
//
//     bench-container SUBCOMMAND OPTIONS...      prints one JSON object a line
//
//   cycle        create from the warm pool + exec `true` + destroy, against bwrap and crun running `true` once
//   exec         exec `true` in a sandbox that lives, against fork and exec of the same file
//   sustained    the same cycle from several threads for some seconds, until the pool is full again
//   concurrent   many creates at once
//   hold         makes many sandboxes, says "held", and keeps them until its standard input ends
//
// Times are microseconds of CLOCK_MONOTONIC.
#include <errno.h>
#include <fcntl.h>
#include <libsandbox.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY_MIB = 64, THREADS_MAX = 512, PATH_ROOM = 4096, SETTLE_S = 30 };

static const char command[] = "/bin/true";

static struct {
    const char *socket, *template_name, *root, *bundle;  // root, bundle: where the peers find the template; NULL: no peers
    unsigned rounds, threads, seconds, count;
} option = {.template_name = "busybox", .rounds = 200, .threads = 4, .seconds = 3, .count = 100};

static __attribute__((format(printf, 1, 2), noreturn)) void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("bench-container: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void check(sandbox_error_t e, const char *what)
{
    if (e != SANDBOX_OK)
        die("%s: %s: %s", what, sandbox_error_string(e), sandbox_last_error());
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

// ---- samples ----

struct samples {
    double *us;
    size_t count, room;
};

static void add(struct samples *s, double us)
{
    if (s->count == s->room) {
        s->room = s->room > 0 ? 2 * s->room : 256;
        s->us = realloc(s->us, s->room * sizeof *s->us);
        if (s->us == NULL)
            die("out of memory");
    }
    s->us[s->count++] = us;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const struct samples *s, unsigned percent)
{
    return s->count > 0 ? s->us[(s->count - 1) * percent / 100] : 0;
}

static void print_samples(const char *bench, const char *who, struct samples *s)
{
    qsort(s->us, s->count, sizeof *s->us, by_size);
    printf("{\"bench\":\"%s\",\"who\":\"%s\",\"n\":%zu,\"p50_us\":%.0f,\"p90_us\":%.0f,\"p99_us\":%.0f,\"max_us\":%.0f}\n",
           bench, who, s->count, percentile(s, 50), percentile(s, 90), percentile(s, 99), percentile(s, 100));
    free(s->us);
    *s = (struct samples){0};
}

// ---- what is compared ----

static sandbox_spec_t spec(void)
{
    sandbox_spec_t s = {0};
    s.memory_mib = MEMORY_MIB;
    s.vcpu_count = 1;
    s.template_name = option.template_name;
    s.pool_wait_ms = 60000;
    return s;
}

static sandbox_handle_t *create(sandbox_conn_t *conn)
{
    sandbox_spec_t s = spec();
    sandbox_handle_t *h = NULL;
    check(conn != NULL ? sandbox_conn_create(conn, &s, &h) : sandbox_create(&s, &h), "create");
    return h;
}

static void run_true(sandbox_handle_t *h)
{
    const char *argv[] = {command, NULL};
    sandbox_exec_spec_t x = {0};
    x.argv = argv;
    sandbox_exec_result_t r;
    check(sandbox_exec(h, &x, &r), "exec");
    if (r.exit_code != 0)
        die("%s ended with %d in the sandbox: %s", command, r.exit_code, (const char *)r.err);
    sandbox_exec_result_free(&r);
}

struct parts {
    struct samples create, exec, destroy, whole;
    unsigned hits;
};

static void cycle(struct parts *parts)
{
    double a = now_us();
    sandbox_handle_t *h = create(NULL);
    double b = now_us();
    run_true(h);
    double c = now_us();
    unsigned hit = strcmp(sandbox_start_kind(h), "pool") == 0;
    check(sandbox_destroy(h), "destroy");
    double d = now_us();
    if (parts == NULL)
        return;
    add(&parts->create, b - a);
    add(&parts->exec, c - b);
    add(&parts->destroy, d - c);
    add(&parts->whole, d - a);
    parts->hits += hit;
}

static void run_to_end(char *const argv[])
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    pid_t pid;
    int r = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (r != 0)
        die("%s: %s", argv[0], strerror(r));
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("%s failed", argv[0]);
}

static void run_bwrap(void)
{
    const char *argv[] = {"bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", option.root, "/", "--proc", "/proc",
                          "--dev", "/dev",          "--tmpfs",           "/tmp",      command,     NULL};
    run_to_end((char *const *)argv);
}

static void run_crun(void)
{
    static atomic_uint number;
    char id[64];
    snprintf(id, sizeof id, "sandbox-bench-%d-%u", (int)getpid(), number++);
    const char *argv[] = {"crun", "run", "--bundle", option.bundle, id, NULL};
    run_to_end((char *const *)argv);
}

static void fork_and_exec(const char *file)
{
    pid_t pid = fork();
    if (pid == 0) {
        execl(file, "true", NULL);
        _exit(127);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        die("%s could not be run", file);
}

// ---- the pool's state ----

static unsigned long number_behind(const char *text, const char *key)
{
    const char *at = text != NULL ? strstr(text, key) : NULL;
    return at != NULL ? strtoul(at + strlen(key), NULL, 10) : 0;
}

static bool is_settled(void)
{
    char *json = NULL;
    check(sandbox_conn_engine_status(NULL, &json), "status");
    const char *pool = strstr(json, "\"pool\":[");
    bool settled = number_behind(json, "\"closing\":") == 0 && number_behind(pool, "\"filling\":") == 0 &&
                   number_behind(pool, "\"ready\":") >= number_behind(pool, "\"target\":");
    free(json);
    return settled;
}

// Until the pool is full and nothing is being torn down, so that this work is not done at a peer's expense.
static void settle(void)
{
    for (double end = now_us() + SETTLE_S * 1e6; !is_settled(); usleep(500))
        if (now_us() > end)
            die("the pool was not full within %d s", SETTLE_S);
}

// ---- cycle ----

static double timed(void (*run)(void))
{
    double start = now_us();
    run();
    return now_us() - start;
}

static void bench_cycle(void)
{
    struct parts ours = {.hits = 0};
    struct samples bwrap = {0}, crun = {0};
    cycle(NULL);
    for (unsigned i = 0; i < option.rounds; i++) {
        settle();
        cycle(&ours);
        settle();
        if (option.root != NULL)
            add(&bwrap, timed(run_bwrap));
        if (option.bundle != NULL)
            add(&crun, timed(run_crun));
    }
    printf("{\"bench\":\"hits\",\"who\":\"engine\",\"n\":%u,\"hits\":%u}\n", option.rounds, ours.hits);
    print_samples("create", "engine", &ours.create);
    print_samples("first_exec", "engine", &ours.exec);
    print_samples("destroy", "engine", &ours.destroy);
    print_samples("cycle", "engine", &ours.whole);
    if (option.root != NULL)
        print_samples("cycle", "bwrap", &bwrap);
    if (option.bundle != NULL)
        print_samples("cycle", "crun", &crun);
}

// ---- exec ----

static void bench_exec(void)
{
    char file[PATH_ROOM];
    snprintf(file, sizeof file, "%s%s", option.root != NULL ? option.root : "", command);
    struct samples ours = {0}, bare = {0};
    sandbox_handle_t *h = create(NULL);
    settle();
    for (unsigned i = 0; i < option.rounds; i++) {
        double a = now_us();
        run_true(h);
        double b = now_us();
        fork_and_exec(file);
        double c = now_us();
        if (i < option.rounds / 20)  // warming up
            continue;
        add(&ours, b - a);
        add(&bare, c - b);
    }
    check(sandbox_destroy(h), "destroy");
    print_samples("exec", "engine", &ours);
    print_samples("exec", "fork+exec", &bare);
}

// ---- sustained ----

struct gang {
    void (*run)(void);
    double end_us;
    atomic_uint done;
};

static void *work(void *arg)
{
    struct gang *g = arg;
    while (now_us() < g->end_us) {
        g->run();
        g->done++;
    }
    return NULL;
}

static void one_cycle(void)
{
    cycle(NULL);
}

// Runs per second, the refill and teardown that are left at the end included.
static void sustain(const char *who, void (*run)(void))
{
    pthread_t thread[THREADS_MAX];
    settle();
    double start = now_us();
    struct gang g = {.run = run, .end_us = start + option.seconds * 1e6};
    for (unsigned i = 0; i < option.threads; i++)
        if (pthread_create(&thread[i], NULL, work, &g) != 0)
            die("no more threads");
    for (unsigned i = 0; i < option.threads; i++)
        pthread_join(thread[i], NULL);
    settle();
    printf("{\"bench\":\"sustained\",\"who\":\"%s\",\"threads\":%u,\"n\":%u,\"per_s\":%.1f}\n", who, option.threads, g.done,
           g.done / (now_us() - start) * 1e6);
}

static void bench_sustained(void)
{
    cycle(NULL);
    for (unsigned i = 0; i < option.rounds; i++) {
        sustain("engine", one_cycle);
        if (option.root != NULL)
            sustain("bwrap", run_bwrap);
        if (option.bundle != NULL)
            sustain("crun", run_crun);
    }
}

// ---- concurrent ----

struct starter {
    pthread_barrier_t *barrier;
    sandbox_handle_t *sandbox;
    void (*run)(void);  // NULL: a create
    double us;
};

static void *start_one(void *arg)
{
    struct starter *s = arg;
    pthread_barrier_wait(s->barrier);
    double start = now_us();
    if (s->run != NULL)
        s->run();
    else
        s->sandbox = create(NULL);
    s->us = now_us() - start;
    return NULL;
}

static void concurrently(const char *who, void (*run)(void))
{
    pthread_t thread[THREADS_MAX];
    struct starter starter[THREADS_MAX];
    pthread_barrier_t barrier;
    struct samples each = {0};
    unsigned hits = 0;
    settle();
    pthread_barrier_init(&barrier, NULL, option.count + 1);
    for (unsigned i = 0; i < option.count; i++) {
        starter[i] = (struct starter){.barrier = &barrier, .run = run};
        if (pthread_create(&thread[i], NULL, start_one, &starter[i]) != 0)
            die("no more threads");
    }
    pthread_barrier_wait(&barrier);
    double start = now_us();
    for (unsigned i = 0; i < option.count; i++)
        pthread_join(thread[i], NULL);
    double all = now_us() - start;
    for (unsigned i = 0; i < option.count; i++) {
        add(&each, starter[i].us);
        hits += starter[i].sandbox != NULL && strcmp(sandbox_start_kind(starter[i].sandbox), "pool") == 0;
        sandbox_destroy(starter[i].sandbox);
    }
    printf("{\"bench\":\"concurrent_all\",\"who\":\"%s\",\"n\":%u,\"hits\":%u,\"us\":%.0f}\n", who, option.count, hits, all);
    print_samples("concurrent", who, &each);
    pthread_barrier_destroy(&barrier);
}

static void bench_concurrent(void)
{
    cycle(NULL);
    concurrently("engine", NULL);
    if (option.root != NULL)
        concurrently("bwrap", run_bwrap);
    if (option.bundle != NULL)
        concurrently("crun", run_crun);
}

// ---- hold ----

static void bench_hold(void)
{
    sandbox_handle_t **all = calloc(option.count, sizeof(sandbox_handle_t *));
    if (all == NULL)
        die("out of memory");
    for (unsigned i = 0; i < option.count; i++)
        all[i] = create(NULL);
    printf("held\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    for (unsigned i = 0; i < option.count; i++)
        sandbox_destroy(all[i]);
    free(all);
}

// ---- the command line ----

static unsigned number(const char *name, const char *text, unsigned most)
{
    char *end;
    unsigned long n = text != NULL ? strtoul(text, &end, 10) : 0;
    if (n == 0 || n > most || *end != '\0')
        die("%s: a number from 1 to %u is needed", name, most);
    return (unsigned)n;
}

static void read_options(char **argv)
{
    for (; *argv != NULL; argv += 2) {
        const char *name = argv[0], *value = argv[1];
        if (strcmp(name, "--socket") == 0)
            option.socket = value;
        else if (strcmp(name, "--template") == 0)
            option.template_name = value;
        else if (strcmp(name, "--root") == 0)
            option.root = value;
        else if (strcmp(name, "--bundle") == 0)
            option.bundle = value;
        else if (strcmp(name, "--rounds") == 0)
            option.rounds = number(name, value, 1000000);
        else if (strcmp(name, "--threads") == 0)
            option.threads = number(name, value, THREADS_MAX);
        else if (strcmp(name, "--seconds") == 0)
            option.seconds = number(name, value, 3600);
        else if (strcmp(name, "--count") == 0)
            option.count = number(name, value, THREADS_MAX);
        else
            die("there is no option %s", name);
        if (value == NULL)
            die("%s needs a value", name);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } benches[] = {{"cycle", bench_cycle},
                   {"exec", bench_exec},
                   {"sustained", bench_sustained},
                   {"concurrent", bench_concurrent},
                   {"hold", bench_hold}};
    if (argc < 2)
        die("name one of cycle, exec, sustained, concurrent, hold");
    read_options(argv + 2);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++)
        if (strcmp(argv[1], benches[i].name) == 0) {
            check(sandbox_init(option.socket), "connecting");
            benches[i].run();
            sandbox_cleanup();
            return 0;
        }
    die("there is no bench %s", argv[1]);
}

// sys/workers and sys/notify: jobs come back to the loop, and the service manager hears what it should.
#include "base/cleanup.h"
#include "sys/jail.h"
#include "sys/notify.h"
#include "sys/workers.h"
#include "unit.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { JOBS = 200 };

struct task {
    struct job job;
    unsigned number;
    unsigned result;
    pthread_t ran_on;
};

static struct loop *the_loop;
static unsigned finished, dropped;

static void square(struct job *job)
{
    struct task *t = (struct task *)job;
    t->result = t->number * t->number;
    t->ran_on = pthread_self();
}

static void collect(struct job *job, bool ran)
{
    struct task *t = (struct task *)job;
    if (!ran) {
        dropped++;
        return;
    }
    assert_int_equal(t->result, t->number * t->number);
    assert_false(pthread_equal(t->ran_on, pthread_self()));
    if (++finished == JOBS)
        loop_stop(the_loop, 7);
}

static void jobs_come_back(void **state)
{
    static struct task task[JOBS];
    struct workers *w;
    finished = dropped = 0;
    assert_int_equal(loop_new(&the_loop), 0);
    assert_int_equal(workers_new(the_loop, 0, &w), -EINVAL);
    assert_int_equal(workers_new(the_loop, 3, &w), 0);
    for (unsigned i = 0; i < JOBS; i++) {
        task[i] = (struct task){.job = {.run = square, .finish = collect}, .number = i};
        workers_submit(w, &task[i].job);
    }
    assert_int_equal(loop_run(the_loop), 7);
    assert_int_equal(dropped, 0);
    workers_free(w);
    loop_free(the_loop);
}

static void what_is_left_is_handed_back(void **state)
{
    static struct task task[JOBS];
    struct workers *w;
    finished = dropped = 0;
    assert_int_equal(loop_new(&the_loop), 0);
    assert_int_equal(workers_new(the_loop, 1, &w), 0);
    for (unsigned i = 0; i < JOBS; i++) {
        task[i] = (struct task){.job = {.run = square, .finish = collect}, .number = i};
        workers_submit(w, &task[i].job);
    }
    workers_free(w);  // the loop has not run: nothing was finished, everything comes back
    assert_int_equal(finished, 0);
    assert_int_equal(dropped, JOBS);
    loop_free(the_loop);
}

static void the_service_manager_hears(void **state)
{
    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(notify_state("READY=1"), 0);
    setenv("NOTIFY_SOCKET", "relative", 1);
    assert_int_equal(notify_state("READY=1"), -EINVAL);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address.sun_family), 0);  // an abstract name of the kernel's
    socklen_t n = sizeof address;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &n), 0);
    char name[128] = "@", text[64] = "";
    memcpy(name + 1, address.sun_path + 1, n - sizeof address.sun_family - 1);
    setenv("NOTIFY_SOCKET", name, 1);
    assert_int_equal(notify_state("READY=1"), 1);
    assert_int_equal(recv(fd, text, sizeof text, 0), 7);
    assert_string_equal(text, "READY=1");
    unsetenv("NOTIFY_SOCKET");
}

// ---- the engine's half of the jail protocol: a burst of requests larger than the channel ----

enum { BURST = 3000 };

static unsigned answered;

static void on_answer(void *arg, const struct jail_reply *reply, int *fds)
{
    assert_int_equal(reply->slot, *(unsigned *)arg % JAIL_SANDBOXES_MAX);
    if (++answered == BURST)
        loop_stop(the_loop, 0);
}

static void ignore(void *arg, const struct jail_reply *reply, int *fds)
{
}

static void on_lost(void *arg)
{
    fail_msg("the channel was lost");
}

static void *slow_jailer(void *arg)
{
    int channel = *(int *)arg;
    struct jail_request q;
    int fds[JAIL_FDS_MAX];
    for (unsigned i = 0; i < BURST && jail_receive(channel, &q, fds) == 1; i++) {
        struct jail_reply reply = {.op = q.op, .id = q.id, .slot = q.slot};
        jail_answer(channel, &reply);
    }
    return NULL;
}

static void a_full_channel_is_waited_for(void **state)
{
    static unsigned number[BURST];
    int pair[2];
    pthread_t jailer;
    struct jail_client *client;
    answered = 0;
    assert_int_equal(loop_new(&the_loop), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(jail_client_new(the_loop, pair[0], ignore, on_lost, NULL, &client), 0);
    for (unsigned i = 0; i < BURST; i++) {
        number[i] = i;
        struct jail_request q = {.op = JAIL_OP_STATS, .slot = i % JAIL_SANDBOXES_MAX};
        assert_int_equal(jail_call(client, &q, -1, on_answer, &number[i]), 0);
    }
    assert_int_equal(pthread_create(&jailer, NULL, slow_jailer, &pair[1]), 0);
    assert_int_equal(loop_run(the_loop), 0);
    assert_int_equal(answered, BURST);
    pthread_join(jailer, NULL);
    jail_client_free(client);
    close(pair[1]);
    loop_free(the_loop);
}

static void somebody_elses_loop_collects(void **state)
{
    static struct task task[JOBS];
    struct workers *w;
    finished = dropped = 0;
    assert_int_equal(loop_new(&the_loop), 0);  // `collect` stops it
    assert_int_equal(workers_new(NULL, 2, &w), 0);
    for (unsigned i = 0; i < JOBS; i++) {
        task[i] = (struct task){.job = {.run = square, .finish = collect}, .number = i};
        workers_submit(w, &task[i].job);
    }
    struct pollfd p = {.fd = workers_fd(w), .events = POLLIN};
    while (finished < JOBS) {
        assert_int_equal(poll(&p, 1, 10000), 1);
        workers_collect(w);
    }
    workers_collect(w);  // a worker may say of its last job when that was collected already: there is nothing, then
    assert_int_equal(finished, JOBS);
    assert_null(workers_free(w));
    assert_int_equal(dropped, 0);
    loop_free(the_loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_come_back),
        cmocka_unit_test(somebody_elses_loop_collects),
        cmocka_unit_test(what_is_left_is_handed_back),
        cmocka_unit_test(the_service_manager_hears),
        cmocka_unit_test(a_full_channel_is_waited_for),
    };
    return cmocka_run_group_tests_name("workers", tests, NULL, NULL);
}

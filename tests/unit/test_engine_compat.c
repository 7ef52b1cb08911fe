// A client built years ago still works: messages as they were sent then, byte for byte, get answers of the same kind.
#include "base/cleanup.h"
#include "engine_rig.h"
#include "unit.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_ROOM = 64 * 1024, MESSAGES_MIN = 30 };

static const char *const kinds[] = {
    [SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE] = "create",   [SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY] = "destroy",
    [SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE] = "pause",     [SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME] = "resume",
    [SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT] = "inspect", [SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST] = "guest",
    [SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS] = "status",
};

static void name_of(const Sandbox__ServerMessage *m, char *name, size_t size)
{
    size_t kind = (size_t)m->response_case;
    if (m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR)
        snprintf(name, size, "error:%d", m->error->error_code);
    else
        snprintf(name, size, "%s", kind < sizeof kinds / sizeof kinds[0] && kinds[kind] != NULL ? kinds[kind] : "?");
}

static size_t from_hex(const char *hex, uint8_t *bytes)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'}, *end;
        bytes[i] = (uint8_t)strtoul(pair, &end, 16);
        assert_true(*end == '\0');
    }
    return n;
}

// The id in the message, the way its client would remember it: 0 for one that has none or cannot be read.
static uint64_t id_in(const uint8_t *bytes, size_t n)
{
    Sandbox__ClientMessage *m = (Sandbox__ClientMessage *)pb_unpack(&sandbox__client_message__descriptor, bytes, n);
    uint64_t id = m != NULL ? m->request_id : 0;
    pb_free(m);
    return id;
}

static void replay(int fd, const char *line)
{
    static uint8_t bytes[LINE_ROOM];
    char name[64], kind[32], got[32];
    cleanup_free char *hex = calloc(1, LINE_ROOM);
    assert_true(sscanf(line, "%63s %31s %65535s", name, kind, hex) >= 2);
    size_t n = from_hex(hex, bytes);
    rig_send_frame(fd, bytes, n);
    Sandbox__ServerMessage *m = rig_receive(fd);
    name_of(m, got, sizeof got);
    if (strcmp(got, kind) != 0)
        fail_msg("%s: the answer is %s, not %s: %s", name, got, kind,
                 m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "");
    assert_int_equal(m->request_id, id_in(bytes, n));
    pb_free(m);
}

static void messages_of_0_1(void **state)
{
    const char *path = getenv("COMPAT_MESSAGES");
    assert_non_null(path);
    cleanup_file FILE *file = fopen(path, "re");
    assert_non_null(file);
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    cleanup_free char *line = malloc(LINE_ROOM);
    int messages = 0;
    while (fgets(line, LINE_ROOM, file) != NULL)
        if (line[0] != '#') {
            replay(fd, line);
            messages++;
        }
    assert_true(messages >= MESSAGES_MIN);
    rig_stop(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages_of_0_1)};
    return cmocka_run_group_tests_name("engine-compat", tests, NULL, NULL);
}

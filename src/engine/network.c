#include "engine/network.h"

#include "base/cleanup.h"
#include "engine/egress.h"
#include "wire/limits.h"
#include "wire/spec.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VARIABLES = 10,
    VARIABLE_MAX = 128,    // of each, its NUL included
    PREFIX_BITS_MAX = 30,  // two ends, and room for them
    VARIABLES_MAX = 832,   // all of them in a message
    ENVELOPE_MAX = 96,     // the rest of a Configure command
};

_Static_assert((int)VARIABLES <= (int)ENV_ENGINE_MAX, "the agent takes them");
_Static_assert((int)SPEC_ENV_TOTAL_MAX + VARIABLES_MAX + ENVELOPE_MAX <= AGENT_CONTROL_MAX, "they fit beside a create's");

const char *network_name(enum network_kind kind)
{
    static const char *const names[] = {"none", "proxy", "transparent"};
    return names[kind];
}

unsigned network_fds(enum network_kind kind)
{
    return kind == NETWORK_TRANSPARENT ? 4 : kind == NETWORK_PROXY ? 1 : 0;
}

void network_close(struct network *n)
{
    for (unsigned i = 0; i < BROKER_FDS_MAX; i++)
        close_fd(&n->fd[i]);
}

static uint32_t number_of(const uint8_t address[4])
{
    return (uint32_t)address[0] << 24 | (uint32_t)address[1] << 16 | (uint32_t)address[2] << 8 | address[3];
}

bool network_valid(const struct network *n, enum network_kind wanted)
{
    if (n->kind != wanted)
        return false;
    for (unsigned i = 0; i < BROKER_FDS_MAX; i++)
        if ((n->fd[i] >= 0) != (i < network_fds(wanted)))
            return false;
    if (wanted == NETWORK_NONE)
        return true;
    uint32_t guest = number_of(n->guest), host = number_of(n->host);
    if (n->prefix_bits == 0 || n->prefix_bits > PREFIX_BITS_MAX || n->broker_port == 0)
        return false;
    return guest != 0 && guest != host && (guest ^ host) >> (32 - n->prefix_bits) == 0;
}

// ---- variables ----

static void address_text(const uint8_t address[4], char text[NETWORK_ADDRESS_ROOM])
{
    snprintf(text, NETWORK_ADDRESS_ROOM, "%u.%u.%u.%u", address[0], address[1], address[2], address[3]);
}

static bool has(const Sandbox__CreateRequest *message, const char *variable)
{
    size_t name = strcspn(variable, "=") + 1;
    for (size_t i = 0; i < message->n_env_vars; i++)
        if (message->env_vars[i].len >= name && memcmp(message->env_vars[i].data, variable, name) == 0)
            return true;
    return false;
}

static void write_variables(const struct network *n, const char *token, char text[VARIABLES][VARIABLE_MAX])
{
    static const char *const proxies[] = {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"};
    char host[NETWORK_ADDRESS_ROOM], guest[NETWORK_ADDRESS_ROOM], mask[NETWORK_ADDRESS_ROOM];
    uint32_t bits = htonl(UINT32_MAX << (32 - n->prefix_bits));
    unsigned count = 0;
    address_text(n->host, host);
    address_text(n->guest, guest);
    address_text((const uint8_t *)&bits, mask);
    for (size_t i = 0; i < sizeof proxies / sizeof proxies[0]; i++)
        snprintf(text[count++], VARIABLE_MAX, "%s=http://sandbox:%s@%s:%u", proxies[i], token, host, n->broker_port);
    snprintf(text[count++], VARIABLE_MAX, "no_proxy=127.0.0.1,localhost");
    snprintf(text[count++], VARIABLE_MAX, "NO_PROXY=127.0.0.1,localhost");
    snprintf(text[count++], VARIABLE_MAX, "SANDBOX_BROKER=%s:%u", host, n->broker_port);
    snprintf(text[count++], VARIABLE_MAX, "SANDBOX_SESSION_TOKEN=%s", token);
    snprintf(text[count++], VARIABLE_MAX, "SANDBOX_NET_ADDR=%s", guest);
    snprintf(text[count++], VARIABLE_MAX, "SANDBOX_NET_MASK=%s", mask);
}

int variables_of(const Sandbox__CreateRequest *message, const struct network *n, const char *token, struct variables *ret)
{
    unsigned own = n->kind != NETWORK_NONE ? VARIABLES : 0;
    struct variables v = {.all = calloc(message->n_env_vars + own + 1, sizeof *v.all),
                          .own = calloc(own + 1, VARIABLE_MAX),
                          .own_size = (size_t)own * VARIABLE_MAX};
    if (v.all == NULL || v.own == NULL) {
        variables_free(&v);
        return -ENOMEM;
    }
    for (; v.n < message->n_env_vars; v.n++)
        v.all[v.n] = message->env_vars[v.n];
    char(*text)[VARIABLE_MAX] = (char(*)[VARIABLE_MAX])v.own;
    if (own > 0)
        write_variables(n, token, text);
    for (unsigned i = 0; i < own; i++)
        if (!has(message, text[i]))
            v.all[v.n++] = (ProtobufCBinaryData){.len = strlen(text[i]), .data = (uint8_t *)text[i]};
    *ret = v;
    return 0;
}

void variables_free(struct variables *v)
{
    if (v->own != NULL)
        explicit_bzero(v->own, v->own_size);
    free(v->all);
    free(v->own);
    *v = (struct variables){0};
}

ProtobufCBinaryData network_resolver(const struct network *n, char text[NETWORK_ADDRESS_ROOM])
{
    if (n->kind != NETWORK_TRANSPARENT)
        return (ProtobufCBinaryData){.len = 0};
    address_text(n->host, text);
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

// ---- reports ----

struct network_report *network_report_new(const struct network *n, const struct egress *egress)
{
    struct network_report *r = n->kind != NETWORK_NONE && egress != NULL ? calloc(1, sizeof *r) : NULL;
    if (r == NULL)
        return NULL;
    r->text = malloc(egress->n * HOST_RULE_TEXT_MAX);
    if (r->text == NULL) {
        free(r);
        return NULL;
    }
    for (unsigned i = 0; i < egress->n; i++) {
        r->entry[i] = r->text + (size_t)i * HOST_RULE_TEXT_MAX;
        host_rule_format(&egress->rule[i], r->entry[i]);
        r->kind[i] = egress->rule[i].kind == HOST_RULE_ONE_LABEL ? SANDBOX__EGRESS_KIND__EGRESS_KIND_ONE_LABEL
                                                                 : SANDBOX__EGRESS_KIND__EGRESS_KIND_ANY_DEPTH;
    }
    address_text(n->guest, r->guest);
    address_text(n->host, r->host);
    r->message = (Sandbox__Network)SANDBOX__NETWORK__INIT;
    r->message.n_egress = r->message.n_egress_kinds = egress->n;
    r->message.egress = r->entry;
    r->message.egress_kinds = r->kind;
    r->message.guest_address = r->guest;
    r->message.host_address = r->host;
    r->message.prefix_bits = n->prefix_bits;
    r->message.broker_port = n->broker_port;
    r->message.transparent = n->kind == NETWORK_TRANSPARENT;
    return r;
}

void network_report_free(struct network_report *r)
{
    if (r != NULL)
        free(r->text);
    free(r);
}

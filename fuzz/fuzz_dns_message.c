// wire/dns_message: whatever is answered, the answer is shorter than its ceiling, repeats the question, and is itself no query.
#include "wire/dns_message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int condition)
{
    if (!condition)
        abort();
}

// The first byte chooses the answer's size, the second its addresses.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t out[DNS_ANSWER_MAX];
    struct ip_addr addrs[DNS_ANSWERS_MAX] = {{.v6 = false}};
    struct dns_query q, again;
    if (size < 2)
        return 0;
    const uint8_t *message = data + 2;
    int code = dns_query_parse(message, size - 2, &q);
    if (code < 0)
        return 0;
    need(strnlen(q.name, sizeof q.name) < sizeof q.name && (q.is_text || q.name[0] == '\0'));
    need(q.udp_size >= DNS_UDP_MIN && q.udp_size <= DNS_UDP_MAX && q.question <= DNS_NAME_BYTES_MAX + 4);
    size_t room = (size_t)data[0] * 4, n_addrs = data[1] % (DNS_ANSWERS_MAX + 1);
    for (size_t i = 0; i < n_addrs; i++)
        addrs[i].v6 = (data[1] >> 5 & i) != 0;
    uint8_t *small = malloc(room > 0 ? room : 1);  // so that a sanitizer sees a write past it
    int n = dns_answer_write(message, &q, (unsigned)code, addrs, n_addrs, 60, small, room);
    need(n < 0 || (size_t)n <= room);
    free(small);
    n = dns_answer_write(message, &q, (unsigned)code, addrs, n_addrs, 60, out, sizeof out);
    need(n >= DNS_HEAD && n <= DNS_ANSWER_MAX && (out[2] & 2) == 0);
    need(memcmp(out, message, 2) == 0 && memcmp(out + DNS_HEAD, message + DNS_HEAD, q.question) == 0);
    need(dns_query_parse(out, (size_t)n, &again) < 0);
    return 0;
}

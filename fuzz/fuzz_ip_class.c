// wire/ip_class: every address has a class; IPv4 inside a mapped one has its own; its text is read again as the same address;
// and what is called public is none of the ranges that matter most, written here once more in another way.
#include "wire/host_name.h"
#include "wire/ip_class.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int condition)
{
    if (!condition)
        abort();
}

static int dangerous_v4(const uint8_t *b)
{
    uint32_t a = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return a >> 24 == 0 || a >> 24 == 10 || a >> 24 == 127 || a >> 16 == 0xA9FE || a >> 16 == 0xC0A8 || a >> 20 == 0xAC1 ||
           a >> 22 == 0x64400000 >> 22 || a >= 0xE0000000;
}

static int dangerous_v6(const uint8_t *b)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}, nat64[12] = {0, 0x64, 0xFF, 0x9B};
    if (memcmp(b, mapped, 12) == 0 || memcmp(b, nat64, 12) == 0)
        return dangerous_v4(b + 12);
    return (b[0] & 0xE0) != 0x20 || (b[0] == 0x20 && b[1] == 0x02) || (b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 17)
        return 0;
    struct ip_addr addr = {.v6 = data[0] & 1}, mapped = {.v6 = true, .bytes = {[10] = 0xFF, 0xFF}};
    memcpy(addr.bytes, data + 1, addr.v6 ? 16 : 4);
    enum ip_class class = ip_classify(&addr);
    need(class < IP_CLASSES && ip_class_name(class)[0] != '\0');
    need(class != IP_PUBLIC || !(addr.v6 ? dangerous_v6(addr.bytes) : dangerous_v4(addr.bytes)));
    if (!addr.v6) {
        memcpy(mapped.bytes + 12, addr.bytes, 4);
        need(ip_classify(&mapped) == class && ip_equal(&mapped, &addr));
    }
    char text[IP_TEXT_MAX];
    struct host host;
    enum host_problem why;
    ip_format(&addr, text);
    need(host_parse(text, strlen(text), NULL, &host, &why) == 0 && host.is_address && ip_equal(&host.addr, &addr));
    return 0;
}

#include "broker/token.h"

#include <openssl/evp.h>
#include <string.h>

// The only field of that name; false if there is none (*ret_many false) or several.
static bool only_field(const struct http_fields *fields, struct http_text name, struct http_text *ret, bool *ret_many)
{
    const struct http_field *f = http_field_find(fields, 0, name);
    *ret_many = f != NULL && http_field_find(fields, (unsigned)(f - fields->field) + 1, name) != NULL;
    if (f == NULL || *ret_many)
        return false;
    *ret = f->value;
    return true;
}

enum token_state token_of_header(const struct sandbox *s, const struct http_fields *fields)
{
    struct http_text value;
    bool many;
    if (!only_field(fields, HTTP_TEXT("x-sandbox-token"), &value, &many))
        return many ? TOKEN_MALFORMED : TOKEN_BAD;
    return sandbox_token_ok(s, value.at, value.n) ? TOKEN_GOOD : TOKEN_BAD;
}

// The password in the base64 text, checked; wiped behind.
static bool password_ok(const struct sandbox *s, struct http_text base64)
{
    unsigned char plain[TOKEN_BASIC_MAX];
    char text[TOKEN_BASIC_MAX + 1];
    if (base64.n == 0 || base64.n > TOKEN_BASIC_MAX || base64.n % 4 != 0)
        return false;
    memcpy(text, base64.at, base64.n);
    text[base64.n] = '\0';
    int n = EVP_DecodeBlock(plain, (const unsigned char *)text, (int)base64.n);
    for (size_t i = base64.n; n > 0 && i > 0 && text[i - 1] == '='; i--)
        n--;
    const unsigned char *colon = n > 0 ? memchr(plain, ':', (size_t)n) : NULL;
    bool good = colon != NULL && sandbox_token_ok(s, (const char *)colon + 1, (size_t)(plain + n - colon - 1));
    explicit_bzero(plain, sizeof plain);
    explicit_bzero(text, sizeof text);
    return good;
}

enum token_state token_of_proxy(const struct sandbox *s, const struct http_fields *fields)
{
    struct http_text value;
    bool many;
    if (!only_field(fields, HTTP_TEXT("proxy-authorization"), &value, &many))
        return many ? TOKEN_MALFORMED : TOKEN_BAD;
    const char *space = memchr(value.at, ' ', value.n);
    if (space == NULL || !http_text_is((struct http_text){value.at, (size_t)(space - value.at)}, HTTP_TEXT("basic")))
        return TOKEN_BAD;
    struct http_text rest = http_trim((struct http_text){space, value.n - (size_t)(space - value.at)});
    return password_ok(s, rest) ? TOKEN_GOOD : TOKEN_BAD;
}

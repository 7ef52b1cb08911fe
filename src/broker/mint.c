#include "broker/mint.h"

#include "base/cleanup.h"
#include "base/id.h"
#include "base/json_out.h"
#include "base/utf8.h"
#include "broker/profile_token.h"

#include <openssl/ec.h>
#include <openssl/hmac.h>
#include <string.h>

enum { ES256_HALF = 32, SIGNATURE_MAX = 2048 };

bool mint_subject_ok(const char *principal)
{
    size_t n = strlen(principal);
    if (n == 0 || !utf8_valid((const uint8_t *)principal, n) || strcmp(principal, "*") == 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)principal[i] < 0x20 || principal[i] == 0x7F ||
            ((unsigned char)principal[i] == 0xC2 && (unsigned char)principal[i + 1] < 0xA0))
            return false;
    return principal[0] != ' ' && principal[n - 1] != ' ';
}

uint32_t mint_life_s(const struct token *t, uint32_t budget_ms)
{
    uint64_t run = budget_ms == 0 ? UINT32_MAX : ((uint64_t)budget_ms + 999) / 1000 + MINT_SLACK_S;
    return run < t->ttl_s ? (uint32_t)run : t->ttl_s;
}

// base64url without padding.
static void put_base64url(struct buf *out, const void *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t three = (uint32_t)b[i] << 16 | (i + 1 < n ? (uint32_t)b[i + 1] << 8 : 0) | (i + 2 < n ? b[i + 2] : 0);
        char four[4] = {digits[three >> 18], digits[three >> 12 & 63], digits[three >> 6 & 63], digits[three & 63]};
        buf_append(out, four, n - i >= 3 ? 4 : n - i + 1);
    }
}

static const char *algorithm(enum token_kind kind)
{
    switch (kind) {
    case TOKEN_RS256:
        return "RS256";
    case TOKEN_ES256:
        return "ES256";
    case TOKEN_EDDSA:
        return "EdDSA";
    default:
        return "HS256";
    }
}

static int put_header(const struct token *t, struct buf *out)
{
    cleanup_buf struct buf text = BUF_INIT(MINT_BEARER_MAX);
    struct json_out j = JSON_OUT_INIT(&text);
    json_open(&j, NULL, '{');
    json_str(&j, "alg", algorithm(t->kind));
    if (t->key_id[0] != '\0')
        json_str(&j, "kid", t->key_id);
    json_str(&j, "typ", "JWT");
    json_close(&j, '}');
    put_base64url(out, text.data, text.len);
    return buf_error(&text);
}

static int put_claims(const struct profile *p, const char *subject, uint64_t now_s, uint32_t life_s, struct buf *out)
{
    cleanup_buf struct buf text = BUF_INIT(MINT_BEARER_MAX);
    struct json_out j = JSON_OUT_INIT(&text);
    char jti[33];
    int r = random_hex(jti, 32);
    if (r < 0)
        return r;
    json_open(&j, NULL, '{');
    json_str(&j, "aud", p->token.audience);
    json_u64(&j, "exp", now_s + life_s);
    json_u64(&j, "iat", now_s);
    if (p->token.issuer[0] != '\0')
        json_str(&j, "iss", p->token.issuer);
    json_str(&j, "jti", jti);
    json_u64(&j, "nbf", now_s);
    if (p->scope[0] != '\0')
        json_str(&j, "scope", p->scope);
    json_str(&j, "sub", subject);
    json_close(&j, '}');
    put_base64url(out, text.data, text.len);
    return buf_error(&text);
}

// ---- signatures ----

// JWS wants the two numbers side by side, not ASN.1 (RFC 7518, 3.4).
static int flatten_ecdsa(uint8_t *signature, size_t *n)
{
    const unsigned char *at = signature;
    ECDSA_SIG *parts = d2i_ECDSA_SIG(NULL, &at, (long)*n);
    if (parts == NULL)
        return -EIO;
    bool good = BN_bn2binpad(ECDSA_SIG_get0_r(parts), signature, ES256_HALF) == ES256_HALF &&
                BN_bn2binpad(ECDSA_SIG_get0_s(parts), signature + ES256_HALF, ES256_HALF) == ES256_HALF;
    ECDSA_SIG_free(parts);
    *n = (size_t)2 * ES256_HALF;
    return good ? 0 : -EIO;
}

static int sign_with_key(const struct token *t, const struct buf *text, uint8_t *signature, size_t *n)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    const EVP_MD *digest = t->kind == TOKEN_EDDSA ? NULL : EVP_sha256();
    bool good = ctx != NULL && EVP_DigestSignInit(ctx, NULL, digest, NULL, t->key) == 1 &&
                EVP_DigestSign(ctx, signature, n, text->data, text->len) == 1;
    EVP_MD_CTX_free(ctx);
    if (!good)
        return -EIO;
    return t->kind == TOKEN_ES256 ? flatten_ecdsa(signature, n) : 0;
}

static int put_signature(const struct token *t, struct buf *out)
{
    uint8_t signature[SIGNATURE_MAX];
    size_t n = sizeof signature;
    int r = 0;
    if (t->kind == TOKEN_HS256) {
        unsigned len = 0;
        if (HMAC(EVP_sha256(), t->secret, (int)t->secret_n, out->data, out->len, signature, &len) == NULL)
            r = -EIO;
        n = len;
    } else {
        r = sign_with_key(t, out, signature, &n);
    }
    if (r < 0)
        return r;
    buf_append_text(out, ".");
    put_base64url(out, signature, n);
    return 0;
}

static int mint_jwt(const struct profile *p, const char *principal, uint64_t now_s, uint32_t life_s, struct buf *out)
{
    if (!mint_subject_ok(principal))
        return -EINVAL;
    int r = put_header(&p->token, out);
    buf_append_text(out, ".");
    if (r == 0)
        r = put_claims(p, principal, now_s, life_s, out);
    if (r == 0)
        r = buf_error(out);
    return r == 0 ? put_signature(&p->token, out) : r;
}

int mint_bearer(const struct profile *p, const char *principal, uint64_t now_s, uint32_t life_s, struct buf *out)
{
    const struct token *t = &p->token;
    if (t->kind == TOKEN_NONE)
        return 0;
    int r = t->kind == TOKEN_STATIC ? buf_append(out, t->secret, t->secret_n) : mint_jwt(p, principal, now_s, life_s, out);
    if (r == 0)
        r = buf_error(out);
    return r == 0 && !bearer_ok((const char *)out->data, out->len) ? -EINVAL : r;
}

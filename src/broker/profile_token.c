#include "broker/profile_token.h"

#include "broker/secret_file.h"

#include <errno.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <string.h>

static const char *const algorithms[] = {
    [TOKEN_HS256] = "HS256", [TOKEN_RS256] = "RS256", [TOKEN_ES256] = "ES256", [TOKEN_EDDSA] = "EdDSA"};

bool bearer_ok(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x21 || (unsigned char)text[i] > 0x7E)
            return false;
    return n > 0;
}

// A field that must be a short text; *ret is untouched if it is not there.
static int read_text(json_t *object, const char *name, const char **ret, struct err *err)
{
    json_t *value = json_object_get(object, name);
    if (value == NULL)
        return 0;
    const char *text = json_string_value(value);
    if (text == NULL || strlen(text) > PROFILE_WORD_MAX)
        return err_set(err, -EINVAL, "%s must be a text of at most %d bytes", name, (int)PROFILE_WORD_MAX);
    *ret = text;
    return 0;
}

static int check_fields(json_t *object, const char *const *names, struct err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        bool known = false;
        for (unsigned i = 0; names[i] != NULL; i++)
            known = known || strcmp(names[i], key) == 0;
        if (!known)
            return err_set(err, -EINVAL, "%.40s has no place in a token of this kind", key);
    }
    return 0;
}

static int take_secret(const char *field, const char *name, size_t least, struct token *t, struct err *err)
{
    if (name[0] == '\0')
        return err_set(err, -EINVAL, "%s must name an environment variable", field);
    const char *value = getenv(name);
    size_t n = value != NULL ? strlen(value) : 0;
    if (n < least || n > TOKEN_SECRET_MAX)
        return err_set(err, -EINVAL, "%s: the variable %.80s must be set, to %zu to %d bytes", field, name, least,
                       (int)TOKEN_SECRET_MAX);
    t->secret = strdup(value);
    t->secret_n = n;
    return t->secret != NULL ? 0 : err_set(err, -ENOMEM, "no memory");
}

static int read_static(json_t *object, struct token *t, struct err *err)
{
    static const char *const names[] = {"type", "env", NULL};
    const char *env = "";
    t->kind = TOKEN_STATIC;
    int r = check_fields(object, names, err);
    if (r == 0)
        r = read_text(object, "env", &env, err);
    if (r == 0)
        r = take_secret("env", env, 1, t, err);
    if (r == 0 && !bearer_ok(t->secret, t->secret_n))
        r = err_set(err, -EINVAL, "env: the value of %.80s is not visible ASCII", env);
    return r;
}

// ---- keys ----

// A key with a passphrase is refused, not asked about.
static int no_passphrase(char *buffer, int size, int writing, void *arg)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)arg;
    return -1;
}

static bool key_fits(const struct token *t)
{
    char group[32] = "";
    switch (t->kind) {
    case TOKEN_RS256:
        return EVP_PKEY_is_a(t->key, "RSA") == 1 && EVP_PKEY_get_bits(t->key) >= TOKEN_RSA_BITS_MIN &&
               EVP_PKEY_get_bits(t->key) <= TOKEN_RSA_BITS_MAX;
    case TOKEN_ES256:
        return EVP_PKEY_is_a(t->key, "EC") == 1 && EVP_PKEY_get_group_name(t->key, group, sizeof group, NULL) == 1 &&
               strcmp(group, "prime256v1") == 0;
    default:
        return EVP_PKEY_is_a(t->key, "ED25519") == 1;
    }
}

static int take_key(const char *path, int dir_fd, struct token *t, struct err *err)
{
    char *text;
    size_t n;
    if (path[0] == '\0')
        return err_set(err, -EINVAL, "key_file is missing: %s is signed with a private key", algorithms[t->kind]);
    int r = secret_file_read_below(dir_fd, path, KEY_FILE_MAX, &text, &n, err);
    if (r < 0)
        return r;
    BIO *bio = BIO_new_mem_buf(text, (int)n);
    if (bio != NULL)
        t->key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL);
    BIO_free(bio);
    explicit_bzero(text, n);
    free(text);
    if (t->key == NULL)
        return err_set(err, -EINVAL, "key_file: \"%.100s\" is not a private key (PEM, without a passphrase)", path);
    if (!key_fits(t))
        return err_set(err, -EINVAL, "key_file: \"%.100s\" is not a key for %s: RSA of %d to %d bits, P-256, Ed25519", path,
                       algorithms[t->kind], (int)TOKEN_RSA_BITS_MIN, (int)TOKEN_RSA_BITS_MAX);
    return 0;
}

// ---- jwt ----

static int read_ttl(json_t *object, struct token *t, struct err *err)
{
    json_t *value = json_object_get(object, "ttl_sec");
    t->ttl_s = TOKEN_TTL_DEFAULT_S;
    if (value == NULL)
        return 0;
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n > TOKEN_TTL_MAX_S)
        return err_set(err, -EINVAL, "ttl_sec must be a number of at most %d", (int)TOKEN_TTL_MAX_S);
    if (n > 0)
        t->ttl_s = (uint32_t)n;
    return 0;
}

static int read_algorithm(json_t *object, struct token *t, struct err *err)
{
    const char *name = "HS256";
    int r = read_text(object, "algorithm", &name, err);
    for (int k = TOKEN_HS256; r == 0 && k <= TOKEN_EDDSA; k++)
        if (strcmp(algorithms[k], name) == 0) {
            t->kind = (enum token_kind)k;
            return 0;
        }
    return r < 0 ? r : err_set(err, -EINVAL, "algorithm must be HS256, RS256, ES256 or EdDSA");
}

static int read_claims(json_t *object, struct token *t, struct err *err)
{
    t->audience = t->issuer = t->key_id = "";
    int r = read_text(object, "audience", &t->audience, err);
    if (r == 0)
        r = read_text(object, "issuer", &t->issuer, err);
    if (r == 0)
        r = read_text(object, "key_id", &t->key_id, err);
    if (r == 0 && t->audience[0] == '\0')
        r = err_set(err, -EINVAL, "audience is missing: without it, the token would be good at other services, too");
    return r == 0 ? read_ttl(object, t, err) : r;
}

static int read_jwt(json_t *object, int dir_fd, struct token *t, struct err *err)
{
    static const char *const with_secret[] = {"type",    "algorithm", "secret_env", "audience",
                                              "ttl_sec", "issuer",    "key_id",     NULL};
    static const char *const with_key[] = {"type", "algorithm", "key_file", "audience", "ttl_sec", "issuer", "key_id", NULL};
    int r = read_algorithm(object, t, err);
    if (r == 0)
        r = check_fields(object, t->kind == TOKEN_HS256 ? with_secret : with_key, err);
    if (r == 0)
        r = read_claims(object, t, err);
    const char *where = "";
    if (r == 0)
        r = read_text(object, t->kind == TOKEN_HS256 ? "secret_env" : "key_file", &where, err);
    if (r < 0)
        return r;
    return t->kind == TOKEN_HS256 ? take_secret("secret_env", where, TOKEN_SECRET_MIN, t, err)
                                  : take_key(where, dir_fd, t, err);
}

int token_read(json_t *value, int dir_fd, struct token *ret, struct err *err)
{
    const char *type = "static";
    if (!json_is_object(value))
        return err_set(err, -EINVAL, "it must be an object");
    int r = read_text(value, "type", &type, err);
    if (r < 0)
        return r;
    if (strcmp(type, "static") == 0)
        return read_static(value, ret, err);
    return strcmp(type, "jwt") == 0 ? read_jwt(value, dir_fd, ret, err) : err_set(err, -EINVAL, "type must be static or jwt");
}

void token_end(struct token *t)
{
    if (t->secret != NULL)
        explicit_bzero(t->secret, t->secret_n);
    free(t->secret);
    EVP_PKEY_free(t->key);
    memset(t, 0, sizeof *t);
}

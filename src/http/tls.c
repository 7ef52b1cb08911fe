#include "http/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <unistd.h>

static const char *last_reason(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason != NULL ? reason : "unknown";
}

int tls_client_context(const char *ca_file, SSL_CTX **ret_ctx, struct err *err)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (ctx == NULL)
        return err_set(err, -ENOMEM, "TLS cannot be used: %s", last_reason());
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    static const unsigned char protocols[] = "\x08http/1.1";
    SSL_CTX_set_alpn_protos(ctx, protocols, sizeof protocols - 1);
    SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    const char *file = ca_file[0] != '\0' ? ca_file : X509_get_default_cert_file();
    if (ca_file[0] == '\0' && access("/etc/ssl/certs/ca-certificates.crt", R_OK) == 0)
        file = "/etc/ssl/certs/ca-certificates.crt";
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 || SSL_CTX_load_verify_file(ctx, file) != 1) {
        err_set(err, -EINVAL, "\"%.200s\" cannot be read as a file of certificate authorities (PEM): %s", file, last_reason());
        SSL_CTX_free(ctx);
        return -EINVAL;
    }
    *ret_ctx = ctx;
    return 0;
}

// Of the protocols the client offers, HTTP/1.1; one that offers others only is told so.
static int choose_protocol(SSL *ssl, const unsigned char **ret, unsigned char *ret_len, const unsigned char *offered,
                           unsigned int n, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1";
    (void)ssl;
    (void)arg;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, ret_len, ours, sizeof ours - 1, offered, n) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *ret = chosen;
    return SSL_TLSEXT_ERR_OK;
}

int tls_server_context(const char *cert_file, const char *key_file, SSL_CTX **ret_ctx, struct err *err)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (ctx == NULL)
        return err_set(err, -ENOMEM, "TLS cannot be used: %s", last_reason());
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
    const char *file = cert_file;
    bool good =
        SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1 && SSL_CTX_use_certificate_chain_file(ctx, cert_file) == 1;
    if (good) {
        file = key_file;
        good = SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) == 1 && SSL_CTX_check_private_key(ctx) == 1;
    }
    if (!good) {
        err_set(err, -EINVAL, "\"%.200s\" cannot be used for TLS (PEM): %s", file, last_reason());
        SSL_CTX_free(ctx);
        return -EINVAL;
    }
    *ret_ctx = ctx;
    return 0;
}

int tls_client_new(SSL_CTX *ctx, const struct host *host, SSL **ret_ssl)
{
    SSL *ssl = SSL_new(ctx);
    if (ssl == NULL)
        return -ENOMEM;
    X509_VERIFY_PARAM *verify = SSL_get0_param(ssl);
    X509_VERIFY_PARAM_set_hostflags(verify, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    bool good;
    if (host->is_address)
        good = X509_VERIFY_PARAM_set1_ip(verify, host->addr.bytes, host->addr.v6 ? 16 : 4) == 1;
    else
        good = SSL_set1_host(ssl, host->name) == 1 && SSL_set_tlsext_host_name(ssl, host->name) == 1;
    if (!good) {
        SSL_free(ssl);
        return -ENOMEM;
    }
    *ret_ssl = ssl;
    return 0;
}

const char *tls_failure(const SSL *ssl, unsigned long code)
{
    long verify = ssl != NULL ? SSL_get_verify_result(ssl) : X509_V_OK;
    if (verify != X509_V_OK)
        return X509_verify_cert_error_string(verify);
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;
    return reason != NULL ? reason : "the connection ended";
}

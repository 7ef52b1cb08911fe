// TLS as a client, who always verifies the other side, and as a server.
#ifndef HTTP_TLS_H
#define HTTP_TLS_H

#include "base/err.h"
#include "wire/host_name.h"

#include <openssl/ssl.h>

// Authorities are read from `ca_file` (PEM), or from OpenSSL's default file when it is "".  At least TLS 1.2.  Everything is in
// memory afterwards: no file is opened during a handshake.  0, or a negative errno with a sentence.
int tls_client_context(const char *ca_file, SSL_CTX **ret_ctx, struct err *err);

// As a server, with a chain of certificates and its key (PEM).  At least TLS 1.2, and HTTP/1.1 only.  0, or a negative errno
// with a sentence.
int tls_server_context(const char *cert_file, const char *key_file, SSL_CTX **ret_ctx, struct err *err);

// A session that will only accept a certificate of `host`; a name is sent as SNI, an address is not (RFC 6066).  0 or -ENOMEM.
int tls_client_new(SSL_CTX *ctx, const struct host *host, SSL **ret_ssl);

// Why a handshake failed: what verification found, else OpenSSL's reason `code`.  Static text.
const char *tls_failure(const SSL *ssl, unsigned long code);

#endif

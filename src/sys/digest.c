#include "sys/digest.h"

#include "base/cleanup.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>

// SHA-256 of DIGEST_BLOCK zeros.
static const uint8_t zero_block_digest[DIGEST_LEN] = {
    0xde, 0x2f, 0x25, 0x60, 0x64, 0xa0, 0xaf, 0x79, 0x77, 0x47, 0xc2, 0xb9, 0x75, 0x05, 0xdc, 0x0b,
    0x9f, 0x3d, 0xf0, 0xde, 0x4f, 0x48, 0x9e, 0xac, 0x73, 0x1c, 0x23, 0xae, 0x9c, 0xa9, 0xcc, 0x31,
};

struct hasher {
    int fd;
    uint64_t size;
    uint64_t data;  // where the next bytes that are not a hole begin; `size` if there are none
    EVP_MD *algorithm;
    EVP_MD_CTX *block;
    EVP_MD_CTX *list;
    uint8_t *bytes;
};

static void cleanup_hasher(struct hasher *h)
{
    EVP_MD_CTX_free(h->block);
    EVP_MD_CTX_free(h->list);
    EVP_MD_free(h->algorithm);
    free(h->bytes);
}

static int read_block(struct hasher *h, uint64_t at, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = pread(h->fd, h->bytes + done, n - done, (off_t)(at + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0)
            return -ESTALE;
        done += (size_t)r;
    }
    return 0;
}

static int next_data(struct hasher *h, uint64_t at)
{
    off_t found = lseek(h->fd, (off_t)at, SEEK_DATA);
    if (found >= 0)
        h->data = (uint64_t)found;
    else if (errno == ENXIO)
        h->data = h->size;
    else
        return -errno;
    return 0;
}

static bool all_zero(const uint8_t *bytes, size_t n)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0;
}

static int add_block(struct hasher *h, uint64_t at, size_t n)
{
    uint8_t digest[DIGEST_LEN];
    int r;
    if (h->data < at + n && (r = read_block(h, at, n)) < 0)
        return r;
    if (n == DIGEST_BLOCK && (h->data >= at + n || all_zero(h->bytes, n))) {
        memcpy(digest, zero_block_digest, sizeof digest);
    } else {
        if (h->data >= at + n)
            memset(h->bytes, 0, n);
        if (EVP_DigestInit_ex(h->block, h->algorithm, NULL) != 1 || EVP_DigestUpdate(h->block, h->bytes, n) != 1 ||
            EVP_DigestFinal_ex(h->block, digest, NULL) != 1)
            return -ENOMEM;
    }
    return EVP_DigestUpdate(h->list, digest, sizeof digest) == 1 ? 0 : -ENOMEM;
}

static int add_blocks(struct hasher *h)
{
    for (uint64_t at = 0; at < h->size; at += DIGEST_BLOCK) {
        size_t n = h->size - at < DIGEST_BLOCK ? (size_t)(h->size - at) : DIGEST_BLOCK;
        int r = 0;
        if (h->data <= at)
            r = next_data(h, at);
        if (r == 0)
            r = add_block(h, at, n);
        if (r < 0)
            return r;
    }
    return 0;
}

int digest_file(int fd, uint64_t *ret_size, uint8_t ret_digest[DIGEST_LEN])
{
    struct stat st, after;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    __attribute__((cleanup(cleanup_hasher))) struct hasher h = {
        .fd = fd,
        .size = (uint64_t)st.st_size,
        .algorithm = EVP_MD_fetch(NULL, "SHA256", NULL),
        .block = EVP_MD_CTX_new(),
        .list = EVP_MD_CTX_new(),
        .bytes = malloc(DIGEST_BLOCK),
    };
    if (h.algorithm == NULL || h.block == NULL || h.list == NULL || h.bytes == NULL ||
        EVP_DigestInit_ex(h.list, h.algorithm, NULL) != 1)
        return -ENOMEM;
    int r = add_blocks(&h);
    if (r < 0)
        return r;
    if (fstat(fd, &after) < 0)
        return -errno;
    if (after.st_size != st.st_size)
        return -ESTALE;
    uint8_t digest[DIGEST_LEN];
    if (EVP_DigestFinal_ex(h.list, digest, NULL) != 1)
        return -ENOMEM;
    memcpy(ret_digest, digest, DIGEST_LEN);
    *ret_size = h.size;
    return 0;
}

int digest_bytes(const void *bytes, size_t n, uint8_t ret_digest[DIGEST_LEN])
{
    return EVP_Digest(bytes, n, ret_digest, NULL, EVP_sha256(), NULL) == 1 ? 0 : -ENOMEM;
}

#include "broker/grants.h"

#include "base/cleanup.h"
#include "broker/secret_file.h"

#include <string.h>

struct grants {
    unsigned references, n;
    json_t *root;  // what the profiles' texts are views into
    struct profile *profile;
};

int grants_none(struct grants **ret)
{
    struct grants *g = calloc(1, sizeof *g);
    if (g == NULL)
        return -ENOMEM;
    g->references = 1;
    *ret = g;
    return 0;
}

struct grants *grants_ref(struct grants *g)
{
    g->references++;
    return g;
}

struct grants *grants_unref(struct grants *g)
{
    if (g == NULL || --g->references > 0)
        return NULL;
    for (unsigned i = 0; i < g->n; i++)
        profile_end(&g->profile[i]);
    free(g->profile);
    json_decref(g->root);
    free(g);
    return NULL;
}

const struct profile *grants_find(const struct grants *g, const char *name)
{
    for (unsigned i = 0; i < g->n; i++)
        if (strcmp(g->profile[i].name, name) == 0)
            return &g->profile[i];
    return NULL;
}

unsigned grants_count(const struct grants *g)
{
    return g->n;
}

const struct profile *grants_at(const struct grants *g, unsigned i)
{
    return &g->profile[i];
}

// ---- reading ----

static int read_profiles(struct grants *g, json_t *profiles, int dir_fd, struct err *err)
{
    const char *name;
    json_t *one;
    size_t n = json_object_size(profiles);
    if (!json_is_object(profiles))
        return err_set(err, -EINVAL, "profiles: it must be an object, names to profiles");
    if (n > GRANTS_PROFILES_MAX)
        return err_set(err, -EINVAL, "profiles: there are more than %d", (int)GRANTS_PROFILES_MAX);
    g->profile = calloc(n + 1, sizeof *g->profile);
    if (g->profile == NULL)
        return err_set(err, -ENOMEM, "no memory");
    json_object_foreach(profiles, name, one)
    {
        int r = profile_read(name, one, dir_fd, &g->profile[g->n++], err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_root(struct grants *g, int dir_fd, struct err *err)
{
    json_t *profiles = json_object_get(g->root, "profiles");
    if (profiles == NULL || json_object_size(g->root) != 1)
        return err_set(err, -EINVAL, "it must be an object with the one field \"profiles\"");
    return read_profiles(g, profiles, dir_fd, err);
}

int grants_parse(const char *text, size_t n, int dir_fd, struct grants **ret, struct err *err)
{
    struct grants *g;
    json_error_t where;
    if (grants_none(&g) < 0)
        return err_set(err, -ENOMEM, "no memory");
    g->root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    int r = g->root == NULL ? err_set(err, -EINVAL, "line %d: %.120s", where.line, where.text) : read_root(g, dir_fd, err);
    if (r < 0) {
        grants_unref(g);
        return r;
    }
    *ret = g;
    return 0;
}

int grants_read(int dir_fd, const char *name, struct grants **ret, struct err *err)
{
    cleanup_free char *text = NULL;
    size_t n;
    int r = secret_file_read(dir_fd, name, GRANTS_FILE_MAX, &text, &n, err);
    if (r < 0)
        return r;
    r = grants_parse(text, n, dir_fd, ret, err);
    if (r < 0) {
        struct err what = *err;
        err_set(err, r, "%.60s: %.300s", name, what.text);
    }
    return r;
}

// What cppcheck is told of <sys/queue.h>, which it does not read (scripts/check).
#define TAILQ_HEAD(name, type)                                                                                                 \
    struct name {                                                                                                              \
        struct type *tqh_first;                                                                                                \
        struct type **tqh_last;                                                                                                \
    }
#define STAILQ_HEAD(name, type)                                                                                                \
    struct name {                                                                                                              \
        struct type *stqh_first;                                                                                               \
        struct type **stqh_last;                                                                                               \
    }
#define TAILQ_FOREACH(item, head, field) for ((item) = (head)->tqh_first; (item); (item) = (item)->field.tqe_next)
#define TAILQ_FOREACH_SAFE(item, head, field, next)                                                                            \
    for ((item) = (head)->tqh_first; (item) && ((next) = (item)->field.tqe_next, 1); (item) = (next))

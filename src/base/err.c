#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

__attribute__((format(printf, 4, 0))) static void set(struct err *e, int code, int not_run, const char *format, va_list args)
{
    if (e == NULL)
        return;
    e->code = code;
    e->not_run = not_run;
    vsnprintf(e->text, sizeof e->text, format, args);
}

int err_set(struct err *e, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set(e, code, 0, format, args);
    va_end(args);
    return code;
}

int err_set_not_run(struct err *e, int code, int not_run, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set(e, code, not_run, format, args);
    va_end(args);
    return code;
}

#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool coloured(void)
{
    const char *no = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && (no == NULL || no[0] == '\0');
}

// Columns: UTF-8 continuation bytes take none.
void put_plain(int width, const char *text)
{
    int columns = 0;
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        putchar(c < 0x20 || c == 0x7F ? '?' : c);
        columns += (c & 0xC0) != 0x80;
    }
    for (; columns < width; columns++)
        putchar(' ');
}

void paint(enum paint how, int width, const char *text)
{
    static const char *const codes[] = {
        [PAINT_GOOD] = "\033[32m", [PAINT_BAD] = "\033[31m", [PAINT_WARN] = "\033[33m", [PAINT_HEAD] = "\033[1m"};
    bool colour = coloured();
    if (colour)
        fputs(codes[how], stdout);
    put_plain(width, text);
    if (colour)
        fputs("\033[0m", stdout);
}

// The init of a machine that never serves: it floods the console and every processor, and does not call the host.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int main(void)
{
    mkdir("/dev", 0755);
    mknod("/dev/flood", S_IFCHR | 0600, makedev(5, 1));
    int console = open("/dev/flood", O_WRONLY);
    static const char line[] = "@flood 0123456789abcdef0123456789abcdef0123456789abcdef\n";
    for (;;)
        if (write(console, line, sizeof line - 1) < 0)
            continue;
}

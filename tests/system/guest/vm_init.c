// PID 1 of the microVMs that test_vm_boot.py starts: loads the modules its initramfs has, says what it sees on the console,
// then does what the kernel's command line asks for (vm_test=...), so that the monitor has an end to notice.
#include "vm_modules.h"

#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

enum { SECTOR = 512, ECHO_PORT = 7 };

static void say_devices(void)
{
    char line[512];
    FILE *file = fopen("/proc/iomem", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strstr(line, "LNRO0005") != NULL)
            printf("@device %s", line + strspn(line, " "));
    if (file != NULL)
        fclose(file);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// Each processor in turn runs this program, sleeps, and so proves that its timer works.
static void visit_processors(void)
{
    for (int i = 0, n = get_nprocs(); i < n; i++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(i, &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0)
            continue;
        double before = now();
        usleep(2000);
        printf("@processor %d timer %s\n", sched_getcpu(), now() - before >= 0.002 ? "works" : "is early");
    }
}

// Reads the first sector, writes the second, and waits until it is on the disk.
static void use_disk(void)
{
    char sector[SECTOR] = "";
    int fd = open("/dev/vda", O_RDWR);
    if (fd < 0)
        return;
    if (pread(fd, sector, sizeof sector, 0) == SECTOR)
        printf("@disk %.20s\n", sector);
    memset(sector, 'w', sizeof sector);
    printf("@disk written %d\n", pwrite(fd, sector, sizeof sector, SECTOR) == SECTOR && fsync(fd) == 0);
    close(fd);
}

static void use_random(void)
{
    char bytes[64] = "";
    static const char none[64];
    int fd = open("/dev/hwrng", O_RDONLY);
    if (fd < 0)
        return;
    printf("@random %d\n", read(fd, bytes, sizeof bytes) > 0 && memcmp(bytes, none, sizeof none) != 0);
    close(fd);
}

// Sends back what one connection brings.
static void echo_once(void)
{
    struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_port = ECHO_PORT, .svm_cid = VMADDR_CID_ANY};
    int listener = socket(AF_VSOCK, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 1) != 0)
        return;
    printf("@listening\n");
    int fd = accept(listener, NULL, NULL);
    char bytes[4096];
    for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0;)
        if (write(fd, bytes, (size_t)n) != n)
            break;
    close(fd);
    close(listener);
}

int main(void)
{
    char cmdline[4096] = "";
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    FILE *file = fopen("/proc/cmdline", "r");
    if (file != NULL) {
        if (fgets(cmdline, sizeof cmdline, file) == NULL)
            cmdline[0] = '\0';
        fclose(file);
    }
    struct sysinfo info;
    sysinfo(&info);
    printf("@up processors=%d mib=%llu\n", get_nprocs(), (unsigned long long)info.totalram * info.mem_unit >> 20);
    load_modules();
    say_devices();
    visit_processors();
    use_disk();
    use_random();
    echo_once();
    printf("@end\n");
    if (strstr(cmdline, "vm_test=off") != NULL)
        reboot(RB_POWER_OFF);
    if (strstr(cmdline, "vm_test=reset") != NULL)
        reboot(RB_AUTOBOOT);
    if (strstr(cmdline, "vm_test=exit") != NULL)
        return 1;  // the kernel panics
    for (;;)
        pause();
}

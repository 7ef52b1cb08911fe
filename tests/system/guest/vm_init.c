// PID 1 of the microVMs that test_vm_boot.py starts: says what it sees on the console, then does what the kernel's command line
// asks for (vm_test=...), so that the monitor has an end to notice.
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

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

int main(void)
{
    char cmdline[4096] = "";
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    FILE *file = fopen("/proc/cmdline", "r");
    if (file != NULL) {
        if (fgets(cmdline, sizeof cmdline, file) == NULL)
            cmdline[0] = '\0';
        fclose(file);
    }
    struct sysinfo info;
    sysinfo(&info);
    printf("@up processors=%d mib=%llu\n", get_nprocs(), (unsigned long long)info.totalram * info.mem_unit >> 20);
    say_devices();
    visit_processors();
    printf("@end\n");
    fflush(stdout);
    if (strstr(cmdline, "vm_test=off") != NULL)
        reboot(RB_POWER_OFF);
    if (strstr(cmdline, "vm_test=reset") != NULL)
        reboot(RB_AUTOBOOT);
    if (strstr(cmdline, "vm_test=exit") != NULL)
        return 1;  // the kernel panics
    for (;;)
        pause();
}

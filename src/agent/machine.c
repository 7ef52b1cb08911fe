#include "agent/machine.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <unistd.h>

// One line on the console, and the end.
static _Noreturn void switch_off(const char *what, int error)
{
    if (error < 0)
        fprintf(stderr, "sandbox-agent: %s: %s\n", what, strerror(-error));
    else
        fprintf(stderr, "sandbox-agent: %s\n", what);
    reboot(RB_POWER_OFF);
    reboot(RB_AUTOBOOT);  // a machine that has no switch
    _exit(1);             // and the kernel's panic, if there is no other way
}

static int need(int result, const char *what)
{
    if (result < 0)
        switch_off(what, result);
    return result;
}

void machine_run(int argc, char **argv)
{
    struct machine_options options;
    if (getpid() != 1) {
        fprintf(stderr, "sandbox-agent: --vm is for the first process of a machine\n");
        _exit(2);
    }
    if (!machine_options_parse(argc, argv, &options))
        switch_off("the kernel's command line has no good options for it", 0);
    need(machine_mount_early(), "mounting /dev");
    need(machine_load_modules(), "loading the modules of the initramfs");
    struct machine_sandbox sandbox = {.control = -1, .pidfd = -1, .volume = -1};
    int disk = -1, reserve = -1, volume = -1, listener = -1;
    need(machine_mount_disk(options.disk_mib, &disk, &reserve), "mounting the disk");
    int agent = open("/init", O_RDONLY | O_CLOEXEC);
    need(agent < 0 ? -errno : 0, "opening /init");
    need(machine_leave_initramfs(disk), "leaving the initramfs");
    if (options.volume)
        need(machine_mount_volume(&volume), "mounting the session's volume");
    need(machine_raise_limits(), "raising the machine's limits");
    need(machine_door_open(&listener), "listening for the host");
    const char *step = "";
    int r = machine_start_sandbox(&options, disk, volume, agent, &sandbox, &step);
    need(r, step);
    close_fd(&agent);
    close_fd(&disk);
    const char *why = machine_door_serve(listener, &sandbox);
    if (sandbox.volume >= 0) {
        machine_end_sandbox(sandbox.pidfd);
        need(machine_sync_volume(sandbox.volume), "writing the session's volume");
    }
    switch_off(why, 0);
}

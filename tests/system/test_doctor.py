#!/usr/bin/python3
"""Hosts whose KVM is not there, not for us, not KVM, or not good enough: sandbox-cli doctor says which, and a create that asks for
the vm tier is refused with the same reason and gets nothing weaker.  TAP.

    test_doctor.py [CASE]...
"""
import glob
import json
import os
import subprocess
import sys

import vm_rig
from own_system import BUILD, Refused, System, need, run_cases, work_folder

WORK = work_folder("doctor")
VM, INVALID_SPEC = 4, -2
# A /dev of its own in a mount namespace of its own, without kvm; then a line that makes another; then the command.
NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
OWN_DEV = """set -e
mkdir -p "$1"
mount -t tmpfs -o mode=755 dev "$1"
find /dev -maxdepth 1 \\( -type c -o -type b -o -type l \\) ! -name kvm -exec cp -a {} "$1" \\;
for number in $(seq 0 255); do [ -e "$1/loop$number" ] || mknod "$1/loop$number" b 7 "$number"; done
mkdir "$1/pts" "$1/shm"
mount --bind /dev/pts "$1/pts"
mount --move "$1" /dev
"""
ABSENT, ANOTHER = "", "mknod /dev/kvm c 1 3"
# Nobody may open a device there, not even root.
FORBIDDEN = """mkdir /dev/none && mount -t tmpfs -o nodev none /dev/none && mknod /dev/none/kvm c 10 232
touch /dev/kvm && mount --bind /dev/none/kvm /dev/kvm"""
systems = []


def on_host(change, *command):
    """`command` where /dev/kvm has been changed; None: as it is."""
    if change is None:
        return command
    return (*NAMESPACE, f'{OWN_DEV}{change}\nshift; exec "$@"', "sh", WORK + "/dev", *command)


def doctor(change):
    """The vm tier's entry and the check `kvm`."""
    done = subprocess.run(on_host(change, BUILD + "/src/cli/sandbox-cli", "doctor", "--json", "--socket", "/nonexistent"),
                          stdout=subprocess.PIPE, check=False)
    report = json.loads(done.stdout)
    need(report["source"] == "probe", f"asked {report['source']}")
    return (next(tier for tier in report["tiers"] if tier["name"] == "vm"),
            next(check for check in report["checks"] if check["name"] == "kvm"))


def refusal(change):
    """What a create that asks for the vm tier is told."""
    system = System(os.path.join(WORK, f"s{len(systems)}"), prefix=on_host(change), tier=None).start()
    systems.append(system)
    with system.client() as client:
        try:
            client.create(floor=VM)
        except Refused as error:
            need(error.code == INVALID_SPEC, f"refused with {error}")
            return error.text
        finally:
            need(client.isolation_of() == 2, "without a floor it is not the container tier")
    raise AssertionError("a create got the vm tier")


def has_no_vm_tier(change, reason, check):
    tier, kvm = doctor(change)
    need(not tier["available"] and reason in tier["reason"] and tier["fix"], f"doctor says {tier}")
    need(kvm["status"] == ("ok" if change is None else "warn") or change is None, f"doctor says {kvm}")
    need(check in kvm["detail"], f"doctor says {kvm}")
    text = refusal(change)
    need(reason in text, f"a create is told {text}")


def no_kvm():
    has_no_vm_tier(ABSENT, "this host has no /dev/kvm", "is not there")


def no_permission():
    has_no_vm_tier(FORBIDDEN, "/dev/kvm cannot be opened: Permission denied", "cannot open /dev/kvm")


def another_device_of_that_name():
    has_no_vm_tier(ANOTHER, "No such device", "is not KVM's")


def a_kvm_that_cannot_run_a_stock_kernel():
    """Such as one that only runs kernels made for it (kvm_pvm)."""
    found = vm_rig.probe()
    if not os.path.exists("/dev/kvm") or found["works"]:
        return "left out: no such KVM here"
    has_no_vm_tier(None, found["reason"], "/dev/kvm can be opened")
    return found["reason"]


def nested_paging_as_the_module_has_it():
    if not os.path.exists("/dev/kvm"):
        return "left out: no /dev/kvm"
    on = vm_rig.probe()["nested_paging"]
    for path in glob.glob("/sys/module/kvm_amd/parameters/npt") + glob.glob("/sys/module/kvm_intel/parameters/ept"):
        with open(path, encoding="ascii") as file:
            need((file.read().strip() in "1Y") == on, f"{path} and the probe do not agree")
    _, kvm = doctor(None)
    need(("with nested paging" in kvm["detail"]) == on and (kvm["status"] == "ok") == on, f"doctor says {kvm}")
    need(on or "npt=1" in kvm["fix"], f"doctor says {kvm}")
    return "nested paging is on" if on else "nested paging is off"


CASES = [no_kvm, no_permission, another_device_of_that_name, a_kvm_that_cannot_run_a_stock_kernel, nested_paging_as_the_module_has_it]
run_cases([case for case in CASES if case.__name__ in sys.argv[1:]] if sys.argv[1:] else CASES, WORK, lambda: systems)

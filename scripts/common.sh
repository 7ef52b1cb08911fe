# Shared by the scripts in this folder: where the checkout is, how to say things, how to build.  Sourced, never run.
# shellcheck shell=bash

# One path for the checkout, however the script was called.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# Colours and progress only where a person looks on.
if [ -t 2 ] && [ "${TERM:-dumb}" != dumb ] && [ -z "${NO_COLOR:-}" ]; then
    BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' GREEN=$'\e[32m' PLAIN=$'\e[0m'
else
    # shellcheck disable=SC2034  # the scripts that source this use them
    BOLD='' DIM='' RED='' GREEN='' PLAIN=''
fi

say() {
    printf '%s\n' "$*" >&2
}

die() {
    printf '%s%s: %s%s\n' "$RED" "${0##*/}" "$*" "$PLAIN" >&2
    exit 1
}

need_root() {
    [ "$(id -u)" = 0 ] || die "only root can do this (it makes namespaces, mounts and control groups): run it with sudo"
}

need_debian() {
    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null && return
    die "this needs Debian or a system made from it (dpkg and apt-get are missing); see README.md for what to install by hand"
}

# need_space DIR MIB: enough room on the file system of DIR, or of the nearest folder above it.
need_space() {
    local dir=$1 free
    while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
    free=$(df -Pm "$dir" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$2" ] || die "too little room on the file system of $dir: $free MiB are free, $2 MiB are needed"
}

# Runs a command whose output matters only when it fails.  On a terminal it shows how long it has been going.
# quietly TEXT COMMAND...
quietly() {
    local text=$1 log rc=0 pid start=$SECONDS
    shift
    log=$(mktemp)
    if [ -t 2 ]; then
        "$@" >"$log" 2>&1 </dev/null &
        pid=$!
        while kill -0 "$pid" 2>/dev/null; do
            printf '\r%s %s(%d s)%s ' "$text" "$DIM" $((SECONDS - start)) "$PLAIN" >&2
            sleep 0.2
        done
        wait "$pid" || rc=$?
        printf '\r%s %s(%d s)%s \n' "$text" "$DIM" $((SECONDS - start)) "$PLAIN" >&2
    else
        say "$text"
        "$@" >"$log" 2>&1 </dev/null || rc=$?
    fi
    if [ $rc != 0 ]; then
        tail -n 60 "$log" >&2
        rm -f "$log"
        die "'$1' failed (exit code $rc)"
    fi
    rm -f "$log"
}

# configure DIR MESON-ARGUMENTS...: sets a build folder up, or brings one up to date whose arguments differ, or which was
# set up before the test library was installed.
configure() {
    local dir=$1 stamp=$1/.configured
    shift
    local cmocka wanted
    cmocka=$(pkg-config --modversion cmocka 2>/dev/null || true)
    wanted="${CC:-} $* cmocka=$cmocka"
    [ -f "$dir/build.ninja" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return 0
    if [ -f "$dir/build.ninja" ]; then
        meson setup --reconfigure "$dir" "$ROOT" "$@" || return
    else
        meson setup "$dir" "$ROOT" "$@" || return
    fi
    printf '%s\n' "$wanted" >"$stamp"
}

build_release() {
    configure "$ROOT/build" --buildtype=release && ninja -C "$ROOT/build"
}

# The kernel for virtual machines in the template store STORE, made by the build in BUILD, whose agent is part of it; made
# again only after that.  Its parts come from the machine's own cloud kernel, or from a package that is only unpacked.
# vm_kernel STORE BUILD [NAME AGENT]: a kernel called NAME, with another agent.
vm_kernel() {
    local store=$1 name=${3:-default} agent=${4:-$2/src/agent/sandbox-agent} kernel vmlinuz
    [ ! "$store/kernels/$name/initramfs" -nt "$agent" ] || return 0
    kernel=$("$ROOT/scripts/packages" --kernel "$ROOT/build/vm-kernel") || return
    vmlinuz=$(printf '%s\n' "${kernel%/}"/boot/vmlinuz-*-cloud-amd64 | sort -V | tail -n 1)
    "$2/src/image/sandbox-image" kernel build "$name" --replace --store "$store" --vmlinuz "$vmlinuz" \
        --modules "${kernel%/}/lib/modules/${vmlinuz##*/vmlinuz-}" --agent "$agent" >&2
}

# shellcheck disable=SC2034
# Where templates are, unless SANDBOX_TEMPLATES says otherwise.
DEFAULT_TEMPLATES=/var/lib/sandbox-engine/templates

# The C sources of the programs and libraries, also those not committed yet.
c_sources() {
    git ls-files --cached --others --exclude-standard -- 'src/*.c'
}

# run_tidy ARGUMENT...: clang-tidy on the sources whose names come in.  The agent is compiled against musl with the same sources; one
# compile database entry each is enough.
run_tidy() {
    xargs -P "$(nproc)" -n 4 clang-tidy -p build --quiet --warnings-as-errors='*' "$@" 2>&1 |
        { grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter' || true; }
}

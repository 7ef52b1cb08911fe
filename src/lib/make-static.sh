#!/bin/sh
# make-static.sh CC OBJCOPY AR OUT MAP LIBRARY ARCHIVE...
# Makes libsandbox.a: one object with the library and what it needs of the lower levels, in which only the names of the
# linker map are visible, so that a program may have a buf_append or a log_init of its own.
# CC may be several words, such as "ccache gcc".
set -eu
cc=$1 objcopy=$2 ar=$3 out=$4 map=$5 library=$6
shift 6
object=$out.o
# Of the lower levels only the members that are needed come in.
# shellcheck disable=SC2086 # CC may be several words: a compiler cache and the compiler.
$cc -r -nostdlib -o "$object" -Wl,--whole-archive "$library" -Wl,--no-whole-archive "$@"
sed -n 's/^ *\(sandbox_[a-z_]*\);$/\1/p' "$map" >"$out.names"
"$objcopy" --keep-global-symbols="$out.names" "$object"
rm -f "$out"
"$ar" rcsD "$out" "$object"
rm -f "$object" "$out.names"

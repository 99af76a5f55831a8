#!/bin/sh
# precompile.sh COMPILER ARGUMENT...: compiles a header, and leaves a checksum beside what it wrote:
# ccache then reads 64 bytes for each file that includes the header, and not 100 MB. It is the sum
# of the text and its macros: what the compiler wrote differs between two trees, by paths alone.
"$@" || exit
header=
n=$#
while [ "$n" -gt 0 ]; do
  case $1 in
    *.gch) header=$1 && set -- "$@" "$1.text" ;;
    *) set -- "$@" "$1" ;;
  esac
  shift
  n=$((n - 1))
done
if [ -n "$header" ]; then
  "$@" -E -dD -P && sha256sum <"$header.text" >"$header.sum"
  rm -f "$header.text"
fi

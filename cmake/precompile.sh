#!/bin/sh
# precompile.sh COMPILER ARGUMENT...: compiles a header, and leaves a checksum beside what it wrote:
# ccache then reads 64 bytes for each file that includes the header, and not 100 MB. It is the sum
# of the text and its macros: what the compiler wrote differs between two trees, by paths alone, and
# what clang wrote between two hours.
"$@" || exit
header=
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1
  shift
  n=$((n - 1))
  case $argument in
    *.gch | *.pch) [ -e "$argument" ] && header=$argument && argument=$argument.text ;;
    -emit-pch) argument=-disable-free ;;  # clang: the last word said, text is wanted
  esac
  set -- "$@" "$argument"
done
if [ -n "$header" ]; then
  "$@" -E -dD -P && sha256sum <"$header.text" >"$header.sum"
  rm -f "$header.text"
fi

#!/bin/sh
# precompile.sh COMPILER ARGUMENT...: compiles a header, and leaves a checksum beside what it wrote:
# ccache then reads 64 bytes for each file that includes the header, and not 100 MB.
"$@" || exit
while [ $# -gt 1 ]; do
  case $1-$2 in
    -o-*.gch) sha256sum "$2" >"$2.sum" ;;
  esac
  shift
done

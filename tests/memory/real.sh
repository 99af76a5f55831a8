#!/usr/bin/env bash
# The tests of device memory over the real drivers of this machine, where there are any: which
# drivers those are, and how each program ended. What it prints belongs into bench/results when a
# machine with a device has run it. Without one it says so and fails: nothing was shown.
# usage: tests/memory/real.sh [BUILD_DIR]      (after ./dev build)
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1
build=$(readlink -f "${1:-build/release}")
unset LD_LIBRARY_PATH  # which would name the stand-ins
export FI_PROVIDER_PATH=$build/lib/libfabric APERTURE_BUILD_DIR=$build APERTURE_SOURCE_DIR=$PWD

commit=$(git rev-parse --short=10 HEAD)
echo "# the tests of device memory over real drivers, $(date -u +%F), commit $commit"
echo "# $(uname -sr), $(nproc) cores"
"$build/tests/memory/which_drivers" | sed 's/^/# driver\t/'
printf 'kind\tprogram\tended\tpassed\tskipped\tfailed\n'

count() { grep -c "^\[ *$1 *\] .*(.* ms)" "$log" || true; }
any=0 bad=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# run KIND NAME COMMAND...
run() {
  local kind=$1 name=$2 ended=ok
  shift 2
  timeout 600 "$@" >"$log" 2>&1 || ended="failed ($?)"
  [ "$ended" = ok ] || bad=1
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$kind" "$name" "$ended" "$(count OK)" "$(count SKIPPED)" \
    "$(count FAILED)"
  [ "$ended" = ok ] || grep -E "Failure|^\[  FAILED" "$log" | head -20 | sed 's/^/# /'
}
for kind in cuda rocr ze; do
  "$build/tests/memory/which_drivers" $kind >/dev/null || continue
  any=1
  filter="--gtest_filter=*$kind*"
  for name in driver share threads; do
    run $kind memory_$name "$build/tests/memory/test_memory_$name" "$filter"
  done
  run $kind door_device "$build/tests/doors/test_door_device" "$filter"
  run $kind verbs_device "$build/bin/aperture" run -- \
    "$build/tests/verbs/verbs_device_check" "$filter"
done
[ $any = 1 ] || { echo "# no real driver has a device here: nothing was tested"; exit 1; }
exit $bad

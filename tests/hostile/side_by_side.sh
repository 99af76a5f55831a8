#!/usr/bin/env bash
# side_by_side.sh N COMMAND...: a GoogleTest program whose tests are N processes beside each other,
# each with its share of them; what each has printed follows when all have ended.
set -uo pipefail
count=$1
shift
logs=$(mktemp -d)
pids=()
trap 'rm -rf "$logs"' EXIT
# ctest ends us, and what we have started with us
trap 'kill "${pids[@]}" 2>/dev/null; exit 143' TERM INT
for ((i = 0; i < count; ++i)); do
  GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$i "$@" >"$logs/$i" 2>&1 </dev/null &
  pids+=($!)
done
failed=0
for ((i = 0; i < count; ++i)); do
  wait "${pids[i]}" || failed=1
  cat "$logs/$i"
done
exit $failed

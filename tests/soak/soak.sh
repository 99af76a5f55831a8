#!/usr/bin/env bash
# The long tests: tests/soak/soak.sh MINUTES BUILD_DIR [PART...] (what `./dev soak MINUTES` runs).
#
# Keeps everything it prints under out/soak/<date>-<seed>/ and ends with a summary. These parts, or
# those of them that are named (all of them take some five hours on two cores):
#   1. full-counts: the tests labelled `kill` with 10,000 kills (or what APERTURE_KILLS says),
#      100,000 connects, as many that stay half open, a minute of starvation, ten minutes of
#      crowds of threads, a million regions, and 10 million messages of mixed sizes and flags
#   2. live-attackers: the tests labelled `live`, for those minutes
#   3. clients: the tests labelled `client`, each with other people's programs, 20 times in a row
#      (or what APERTURE_CLIENT_ROUNDS says); what each printed last, and whatever one printed that
#      failed, is in clients/. On two cores a round takes four or five minutes. Where
#      APERTURE_RPMA_SOURCE and APERTURE_VALKEY_SOURCE say where the sources are, librpma's examples
#      and Valkey's own tests are among them
#   4. between-hosts: the tests of room hosts, once, clients in every way that they know
#   5. repetitions: all tests in random order with new seeds, until the minutes are over
#   6. mutation: checks of src/protect/ are taken out one at a time, and a test must notice; in
#      random order, as many as the same minutes allow (tests/mutation/mutate.py takes all)
#   7. sanitized: ./dev asan, with remote access under every setting; emulated: ./dev aarch64
#   8. bare-debian-12, bare-debian-13: clones of this tree in debootstrapped roots, where
#      `./dev demo` and `./dev test` must be all the set-up there is; the provider built in the
#      first must also load in the second (bare_root.sh). Needs root and a package mirror; left
#      out with APERTURE_SOAK_BARE=0.
set -uo pipefail
minutes=$1
build=$(readlink -f "$2")
readonly parts=" ${*:3} "
seed=${APERTURE_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
keep=$PWD/out/soak/$(date +%Y%m%d-%H%M%S)-$seed
readonly minutes build seed keep
failures=()

part() {
  local name=$1 start=$SECONDS status=0
  shift
  [[ $parts = "  " || $parts = *" $name "* ]] || return 0
  printf '\n=== %s: %s\n' "$name" "$*"
  "$@" </dev/null 2>&1 | tee "$keep/$name.log"
  status=${PIPESTATUS[0]}
  local verdict=passed
  case $status in
    0) ;;
    77) verdict=skipped ;;
    *) verdict=FAILED failures+=("$name") ;;
  esac
  printf '=== %s: %s after %d s\n' "$name" "$verdict" $((SECONDS - start))
}

known=" full-counts live-attackers clients between-hosts repetitions mutation sanitized"
known+=" emulated bare-debian-12 bare-debian-13 "
for name in $parts; do
  [[ $known = *" $name "* ]] && continue
  echo "soak: there is no part '$name'; there are:$known" >&2
  exit 2
done
mkdir -p "$keep"
echo "soak of $minutes minutes, seed $seed, kept in ${keep#"$PWD"/}"
uname -a >"$keep/machine.txt"
git rev-parse HEAD >>"$keep/machine.txt" 2>/dev/null
readonly repeat=(python3 tests/soak/repeat.py "$build")
# each allocation and each call fails in turn (out_of_memory_test.cpp, failing_calls_test.cpp)
APERTURE_ALLOCATIONS=all APERTURE_KILLS=${APERTURE_KILLS:-10000} \
  APERTURE_CONNECTS=100000 APERTURE_HALF_OPEN=100000 \
  APERTURE_STARVE_SECONDS=60 APERTURE_CROWD_SECONDS=100 APERTURE_IDLE_PEERS=1000 \
  APERTURE_NEWCOMERS=50 APERTURE_REGIONS=1000000 APERTURE_CACHE_SECONDS=300 \
  APERTURE_QUEUE_PAIRS=4000 APERTURE_SIMULATIONS=1000000 APERTURE_LOSSY_TIMES=100 \
  APERTURE_RESTARTS=1000 \
  APERTURE_CONNECTIONS=1000 APERTURE_SILENT_STRANGERS=10000 \
  APERTURE_MESSAGES=${APERTURE_MESSAGES:-10000000} \
  part full-counts "${repeat[@]}" --label kill --rounds 1 --limit-factor 200 --seed "$seed" \
  --jobs "$(nproc)" --keep "$keep"
APERTURE_LIVE_FUZZ_SECONDS=$((minutes * 60)) part live-attackers "${repeat[@]}" \
  --label live --rounds 1 --limit-factor $((minutes + 2)) --seed "$seed" --keep "$keep"
mkdir -p "$keep/clients"
part clients "${repeat[@]}" --label client --rounds "${APERTURE_CLIENT_ROUNDS:-20}" \
  --seed "$seed" --jobs "$(nproc)" --keep "$keep/clients"
APERTURE_ALLOCATIONS=all APERTURE_BETWEEN_HOSTS=all part between-hosts "${repeat[@]}" \
  --label room_hosts --rounds 1 --limit-factor 10 --seed "$seed" --keep "$keep"
part repetitions "${repeat[@]}" --minutes "$minutes" --seed "$seed"
part mutation python3 tests/mutation/mutate.py --build build/mutation --minutes "$minutes" \
  --seed "$seed"
APERTURE_SEED=$seed APERTURE_SETTINGS=all part sanitized ./dev asan
APERTURE_SEED=$seed part emulated ./dev aarch64
if [ "${APERTURE_SOAK_BARE:-1}" = 1 ]; then
  part bare-debian-12 tests/soak/bare_root.sh bookworm "$keep"
  part bare-debian-13 tests/soak/bare_root.sh trixie "$keep"
fi

echo
if [ ${#failures[@]} -gt 0 ]; then
  echo "soak FAILED: ${failures[*]}; seed $seed, output in ${keep#"$PWD"/}"
  exit 1
fi
[ "$parts" = "  " ] || echo "of the soak, these parts alone:$parts"
echo "soak passed; seed $seed, output in ${keep#"$PWD"/}"

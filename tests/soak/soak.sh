#!/usr/bin/env bash
# The long tests: tests/soak/soak.sh MINUTES BUILD_DIR (what `./dev soak MINUTES` runs).
#
# Keeps everything it prints under out/soak/<date>-<seed>/ and ends with a summary. Three parts:
#   1. full counts: the tests labelled `kill` with 10,000 kills (or what APERTURE_KILLS says)
#   2. repetitions: all tests in random order with new seeds, until the minutes are over
#   3. a bare Debian 12: a clone of this tree in a debootstrapped root, where `./dev demo` and
#      `./dev test` must be all the set-up there is. Needs root and a package mirror; left out
#      with APERTURE_SOAK_BARE=0.
set -uo pipefail
minutes=$1
build=$(readlink -f "$2")
seed=${APERTURE_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
keep=$PWD/out/soak/$(date +%Y%m%d-%H%M%S)-$seed
readonly minutes build seed keep
failures=()

part() {
  local name=$1 start=$SECONDS status=0
  shift
  printf '\n=== %s: %s\n' "$name" "$*"
  "$@" </dev/null 2>&1 | tee "$keep/$name.log" || status=1
  [ "$status" = 0 ] || failures+=("$name")
  printf '=== %s: %s after %d s\n' "$name" "$([ $status = 0 ] && echo passed || echo FAILED)" \
    $((SECONDS - start))
}

# The mirror that this machine's own packages come from, else Debian's.
mirror() {
  local own
  own=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d \
    2>/dev/null | head -n 1 | tr -d ' ')
  echo "${own:-http://deb.debian.org/debian}"
}

# Inside a mount namespace of its own: whatever is mounted goes away with it.
bare_debian_12() {
  local root=$1
  [ "$(id -u)" = 0 ] || { echo "skipped: debootstrap and chroot need root"; return 0; }
  debootstrap --variant=minbase bookworm "$root" "$(mirror)" >"$keep/debootstrap.log" 2>&1 ||
    { tail -n 20 "$keep/debootstrap.log"; return 1; }
  git clone -q --no-hardlinks . "$root/opt/aperture" || return 1
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  # shellcheck disable=SC2016  # expanded inside
  unshare --mount --pid --fork --kill-child --mount-proc bash -c '
    set -e
    mount --bind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/dev/shm"
    mount -t proc proc "$1/proc"
    mount -t sysfs -o ro sysfs "$1/sys"
    exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TERM=dumb LC_ALL=C.UTF-8 \
      bash -ec "cd /opt/aperture && ./dev demo && ./dev test"' bare "$root"
}

mkdir -p "$keep"
echo "soak of $minutes minutes, seed $seed, kept in ${keep#"$PWD"/}"
uname -a >"$keep/machine.txt"
git rev-parse HEAD >>"$keep/machine.txt" 2>/dev/null
readonly repeat=(python3 tests/soak/repeat.py "$build")
APERTURE_KILLS=${APERTURE_KILLS:-10000} part full-counts "${repeat[@]}" \
  --label kill --rounds 1 --limit-factor 200 --seed "$seed"
part repetitions "${repeat[@]}" --minutes "$minutes" --seed "$seed"
if [ "${APERTURE_SOAK_BARE:-1}" = 1 ]; then
  part bare-debian-12 bare_debian_12 "$keep/bookworm"
  rm -rf --one-file-system "$keep/bookworm"
fi

echo
if [ ${#failures[@]} -gt 0 ]; then
  echo "soak FAILED: ${failures[*]}; seed $seed, output in ${keep#"$PWD"/}"
  exit 1
fi
echo "soak passed; seed $seed, output in ${keep#"$PWD"/}"

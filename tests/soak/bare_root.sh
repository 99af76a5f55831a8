#!/usr/bin/env bash
# A bare Debian in a folder, in which the two README commands must be all the set-up there is:
#
#   tests/soak/bare_root.sh SUITE [OUT_DIR]      SUITE: bookworm (Debian 12) or trixie (Debian 13)
#
# debootstraps a minimal root, clones this tree into it (what is committed), and runs `./dev demo`
# and `./dev test` inside. Then:
#
#   bookworm  keeps the provider that was built in it as OUT_DIR/libaperture-fi.so.bookworm
#   trixie    carries a provider that was built on Debian 12 into the root, where libfabric is 2.1,
#             and runs fi_info and fi_pingpong over it: OUT_DIR/libaperture-fi.so.bookworm if that
#             is there, else the one of build/release if this machine is a Debian 12
#
# Everything printed is kept as OUT_DIR/SUITE.log (default: out/bare); the root is removed at the
# end. Whatever is mounted is mounted in a namespace of its own and goes away with it. Needs root,
# debootstrap, git, and a package mirror: this machine's own, else Debian's. APERTURE_JOBS and
# APERTURE_SEED go in with it. A root takes up to 3 GB and, on two cores, about a quarter hour.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1
suite=${1:-}
out=$(readlink -m "${2:-out/bare}")
readonly suite out root=$out/$suite.root log=$out/$suite.log
readonly carried=$out/libaperture-fi.so.bookworm
readonly in_tree=opt/aperture built=build/release/lib/libfabric/libaperture-fi.so

die() { printf 'bare_root.sh: %s\n' "$*" >&2; exit 1; }

case $suite in
  bookworm | trixie) ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
if [ "$(id -u)" != 0 ]; then
  echo "skipped: debootstrap and chroot need root"
  exit 77
fi
for tool in debootstrap git unshare; do
  command -v "$tool" >/dev/null || die "$tool is missing (./dev soak installs it)"
done

# The mirror that this machine's own packages come from, else Debian's.
mirror() {
  local own
  own=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d \
    2>/dev/null | head -n 1 | tr -d ' ')
  echo "${own:-http://deb.debian.org/debian}"
}

# The mounts died with the namespace in which they were made, so only the root's own files go.
clean_up() { rm -rf --one-file-system "$root"; }

make_root() {
  echo "== $suite: debootstrap"
  debootstrap --variant=minbase "$suite" "$root" "$(mirror)" >"$out/$suite.debootstrap.log" 2>&1 ||
    { tail -n 20 "$out/$suite.debootstrap.log"; return 1; }
  git clone -q --no-hardlinks . "$root/$in_tree" || return 1
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  # what an installer writes and debootstrap does not: without it every look-up of the own name,
  # and MPI launchers make many, waits for a name server
  printf '127.0.0.1 localhost %s\n::1 localhost ip6-localhost\n' "$(uname -n)" >"$root/etc/hosts"
}

# inside COMMAND: a shell's command in the root, in mount and process namespaces of its own. The
# folder becomes their root by pivot_root: below a chroot the kernel gives no user namespaces, and
# nobody may make the mounts of a network namespace his own, so that tests of two hosts would skip.
inside() {
  local pass=()
  local name
  for name in APERTURE_JOBS APERTURE_SEED http_proxy https_proxy no_proxy; do
    [ -z "${!name:-}" ] || pass+=("$name=${!name}")
  done
  # shellcheck disable=SC2016  # expanded inside
  unshare --mount --propagation private --pid --fork --kill-child --mount-proc bash -c '
    set -e
    root=$1 command=$2
    shift 2
    mount --bind "$root" "$root"
    mount --bind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    cd "$root"
    pivot_root . .
    umount -l .
    cd /
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TERM=dumb \
      LC_ALL=C.UTF-8 "$@" bash -ec "$command"' bare "$root" "cd /$in_tree && $1" "${pass[@]}" \
    </dev/null
}

both_commands() {
  echo "== $suite: ./dev demo && ./dev test"
  inside './dev demo && ./dev test'
}

keep_provider() {
  echo "== $suite: keeping the provider for other roots"
  cp "$root/$in_tree/$built" "$carried"
}

# Prints the provider that comes from Debian 12, if there is one.
from_bookworm() {
  if [ -e "$carried" ]; then
    echo "$carried"
  elif grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release && [ -e "$built" ]; then
    echo "$built"
  fi
}

# The file alone, in a folder of its own, under the stock programs, without `aperture run`.
# shellcheck disable=SC2016  # expanded inside
readonly try_carried='
  export FI_PROVIDER_PATH=/opt/carried FI_PROVIDER=aperture APERTURE_LOG=info
  fi_info --version
  fi_info -p aperture
  timeout 60 fi_pingpong -p aperture -e rdm -c -B 23071 &
  sleep 2
  timeout 60 fi_pingpong -p aperture -e rdm -c -P 23071 127.0.0.1
  wait $!'

carried_provider() {
  local file
  file=$(from_bookworm)
  if [ -z "$file" ]; then
    echo "== $suite: no provider that was built on Debian 12 is at hand; not carried over"
    echo "   (run tests/soak/bare_root.sh bookworm ${out#"$PWD"/} first)"
    return 0
  fi
  echo "== $suite: the provider that was built on Debian 12 (${file#"$PWD"/})"
  mkdir -p "$root/opt/carried" && cp "$file" "$root/opt/carried/libaperture-fi.so" &&
    inside "$try_carried"
}

whole() {
  local status=0
  make_root || return 1
  both_commands || status=1
  case $suite in
    bookworm) keep_provider || status=1 ;;
    trixie) carried_provider || status=1 ;;
  esac
  return $status
}

mkdir -p "$out"
[ ! -e "$root" ] || die "$root is there already: remove it, or name another folder"
trap clean_up EXIT
trap 'exit 130' INT TERM
start=$SECONDS
if whole 2>&1 | tee "$log"; then
  echo "== $suite: passed after $((SECONDS - start)) s"
else
  echo "== $suite: FAILED after $((SECONDS - start)) s; output in $log"
  exit 1
fi

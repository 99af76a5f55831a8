#!/usr/bin/env bash
# Shows Aperture at work: `./dev demo`, or examples/demo.sh BUILD_DIR once everything is built.
#
# Three programs of the distribution, unmodified, one refused remote write, a program with a bug
# that the rules of another NIC show, and a memory window. Every step checks what it shows; the
# first that fails ends the demo with exit code 1 and its output on the screen.
set -euo pipefail
build=$(readlink -f "${1:-build/release}")
readonly build aperture=$build/bin/aperture refused_write=$build/bin/refused_write
readonly forgotten_buffer=$build/bin/forgotten_buffer window=$build/bin/window
readonly port=$((20000 + RANDOM % 10000)) seconds=60
logs=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$logs"' EXIT

heading() { printf '\n\033[1m%s\033[0m\n' "$*"; }
shown() { printf '$ %s\n' "$*"; }
fail() { printf '\n*** the demo failed: %s\n' "$*" >&2; exit 1; }

# fi_pingpong's client does not wait for its server, so this does.
wait_until_listening() {
  local hex tries
  hex=$(printf ':%04X ' "$1")
  for ((tries = 0; tries < 200; ++tries)); do
    # columns 2 and 4: local address, state (0A: listening)
    awk -v port="$hex" 'index($2 " ", port) && $4 == "0A" {found = 1} END {exit !found}' \
      /proc/net/tcp /proc/net/tcp6 2>/dev/null && return
    sleep 0.05
  done
}

demo_pingpong() {
  heading "1. The distribution's fi_pingpong: RDM endpoints, two processes, data checked"
  shown "aperture run -- fi_pingpong -p aperture -e rdm -c -B $port &"
  timeout "$seconds" "$aperture" run -- fi_pingpong -p aperture -e rdm -c -B "$port" \
    >"$logs/server" 2>&1 &
  server=$!
  wait_until_listening "$port"
  shown "aperture run -- fi_pingpong -p aperture -e rdm -c -P $port 127.0.0.1"
  timeout "$seconds" "$aperture" run -- fi_pingpong -p aperture -e rdm -c -P "$port" 127.0.0.1 ||
    { cat "$logs/server"; fail "fi_pingpong's client"; }
  wait "$server" || { cat "$logs/server"; fail "fi_pingpong's server"; }
  server=
}

# The ranks send each other data, check it, and look into their own memory for who carried it.
demo_mpi() {
  heading "2. The distribution's Open MPI: two ranks through its mtl ofi"
  local mpirun
  mpirun=$(command -v mpirun.openmpi || command -v mpirun) || fail "mpirun is not installed"
  shown "aperture run -- mpirun -n 2 python3 examples/mpi_exchange.py"
  timeout "$seconds" "$aperture" run -- "$mpirun" -n 2 /usr/bin/python3 \
    "$(dirname "$0")/mpi_exchange.py" | tee "$logs/exchange" || fail "the Open MPI job"
  [ "$(grep -c 'carried by libaperture-fi.so' "$logs/exchange")" = 2 ] ||
    fail "a rank of the Open MPI job did not use Aperture"
  local netpipe=(NPopenmpi -p 0 -n 200 -u 4194304)  # a fixed count: the same work on any machine
  shown "aperture run -- mpirun -n 2 ${netpipe[*]}"
  (cd "$logs" && timeout "$seconds" "$aperture" run -- "$mpirun" -n 2 "${netpipe[@]}" \
    >"$logs/netpipe" 2>&1) || { cat "$logs/netpipe"; fail "NPopenmpi"; }
  grep -E '^ *[0-9]+: +(1|8|64|512|4096|65536|1048576|4194304) bytes' "$logs/netpipe"
}

demo_refusal() {
  heading "3. A remote write that goes one byte too far (examples/refused_write.c)"
  shown "aperture run -- refused_write"
  timeout "$seconds" "$aperture" run -- "$refused_write" ||
    fail "the write was not refused as it must be"
}

demo_modes() {
  heading "4. A registration bug that only a verbs NIC shows (examples/forgotten_buffer.c)"
  shown "aperture run -- forgotten_buffer"
  timeout "$seconds" "$aperture" run -- "$forgotten_buffer" ||
    fail "forgotten_buffer does not pass where nothing is demanded"
  shown "APERTURE_MR_MODE=verbs aperture explain -- forgotten_buffer"
  local status=0
  APERTURE_MR_MODE=verbs timeout "$seconds" "$aperture" explain -- "$forgotten_buffer" \
    >"$logs/modes" 2>&1 || status=$?
  cat "$logs/modes"
  [ "$status" = 3 ] && grep -q 'no descriptor for the 16 bytes' "$logs/modes" ||
    fail "forgotten_buffer was not refused where FI_MR_LOCAL is demanded (exit $status)"
}

demo_window() {
  heading "5. A memory window that the peer gives back (examples/window.c)"
  shown "aperture run -- window"
  timeout "$seconds" "$aperture" run -- "$window" || fail "the window was not what it must be"
}

# A verbs program, on a device that no kernel knows.
demo_verbs() {
  local verbs_port=$((port + 1))
  heading "6. The distribution's ibv_rc_pingpong, on the device aperture0, data checked"
  shown "aperture run -- ibv_rc_pingpong -d aperture0 -c -p $verbs_port &"
  timeout "$seconds" "$aperture" run -- ibv_rc_pingpong -d aperture0 -c -p "$verbs_port" \
    >"$logs/server" 2>&1 &
  server=$!
  wait_until_listening "$verbs_port"
  shown "aperture run -- ibv_rc_pingpong -d aperture0 -c -p $verbs_port 127.0.0.1"
  timeout "$seconds" "$aperture" run -- ibv_rc_pingpong -d aperture0 -c -p "$verbs_port" \
    127.0.0.1 || { cat "$logs/server"; fail "ibv_rc_pingpong's client"; }
  wait "$server" || { cat "$logs/server"; fail "ibv_rc_pingpong's server"; }
  server=
}

for program in fi_pingpong NPopenmpi ibv_rc_pingpong; do
  command -v "$program" >/dev/null || fail "$program is not installed (./dev demo installs it)"
done
demo_pingpong
demo_mpi
demo_refusal
demo_modes
demo_window
demo_verbs
heading "All of this ran over Aperture: no RDMA hardware, no kernel module, no root, no daemon."

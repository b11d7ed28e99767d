#!/usr/bin/env bash
# Usage: [RESTARTS=n] launch/local.sh N -- python main.py --distributed --config=... --workdir=...
#
# Starts N processes of one run on this machine, and sets for each of them:
#   JAX_COORDINATOR_ADDRESS  127.0.0.1 and PORT (default: a random one below the ephemeral ones)
#   JAX_NUM_PROCESSES        N
#   JAX_PROCESS_ID           its number, from 0
#   JAX_LOCAL_DEVICE_IDS     the GPU that it takes, the same number
#   BIG_ALIGN_LOCAL_PROCESSES  N, which share the cores that decode images
# and, where DEVICES_PER_PROCESS is set, that many virtual CPU devices instead:
#   JAX_PLATFORMS            cpu
#   XLA_FLAGS                ... --xla_force_host_platform_device_count=DEVICES_PER_PROCESS
#
# SIGTERM and Ctrl-C ask all processes to save and stop; the exit status is then theirs, 75. It is,
# too, when one of them alone is asked, which the others may not know yet: they are asked as well.
# When one fails, the others have GRACE seconds (default: 60) to find out, say why and leave before
# they are killed, and the status of the first one is returned.
#
# With RESTARTS=n the run starts again up to n times: without its device when a process was killed by
# a signal, as it was when it stopped (75) without this launcher being asked. SIGHUP lets the run
# save and starts it again on all N; that does not count.
set -u
if ((BASH_VERSINFO[0] < 5)); then # a Mac has 3
  echo "local.sh needs bash 5: brew install bash" >&2
  exit 2
fi

say() { echo "local.sh: $*" >&2; }
ask_to_stop() { kill -TERM "${!running[@]}" 2>/dev/null; }
declare -A running=()
told='' again='' restarts=0
trap 'told=1; ask_to_stop' TERM INT
trap 'again=1; ask_to_stop' HUP

if [[ $# -lt 3 || ! $1 =~ ^[1-9][0-9]*$ || $2 != -- ]]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
number=$1
shift 2
if [[ ${DEVICES_PER_PROCESS:-} ]]; then
  export JAX_PLATFORMS=cpu
  export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=$DEVICES_PER_PROCESS"
fi

# Runs the command once, one process for each of `devices`. Sets `status` to 0, to 75 if a process was
# asked to stop, or to the exit status of the first process that failed, and `failed` to its number.
run_once() {
  local code i pid timer='' tick=''
  status=0 failed=''
  export JAX_NUM_PROCESSES=${#devices[@]} BIG_ALIGN_LOCAL_PROCESSES=${#devices[@]}
  export JAX_COORDINATOR_ADDRESS=127.0.0.1:${PORT:-$((20000 + RANDOM % 12000))}
  for ((i = 0; i < JAX_NUM_PROCESSES; i++)); do
    JAX_PROCESS_ID=$i JAX_LOCAL_DEVICE_IDS=${devices[i]} "$@" &
    running[$!]=$i
  done
  [[ -z $told$again ]] || ask_to_stop # asked while they were being started
  while ((${#running[@]})); do
    # Returns when a process ends or a signal comes. `wait -n` may forget one that ends just before it
    # or together with another; `wait` remembers, and a sleep ends often enough to look.
    kill -0 "$tick" 2>/dev/null || { sleep 2 & tick=$!; }
    wait -n "${!running[@]}" $timer $tick 2>/dev/null
    for pid in "${!running[@]}"; do
      kill -0 "$pid" 2>/dev/null && continue
      wait "$pid" 2>/dev/null
      code=$? i=${running[$pid]}
      unset "running[$pid]"
      ((code != 143)) || code=75 # by SIGTERM, before it could answer
      if ((code && !status)); then
        sleep "${GRACE:-60}" &
        timer=$!
        ((code <= 128)) || say "process $i was killed by SIG$(kill -l "$code")"
      fi
      [[ $told$again ]] || ((code != 75 || status == 75)) || ask_to_stop # each once
      # That others lose a process which was asked to stop is no failure.
      ((!code || status && code != 75)) || status=$code failed=$i
    done
    if [[ $timer ]] && ((${#running[@]})) && ! kill -0 "$timer" 2>/dev/null; then
      say "processes ${running[*]} did not end within ${GRACE:-60} s and are killed"
      kill -KILL "${!running[@]}" 2>/dev/null
      timer=''
    fi
  done
  kill $timer $tick 2>/dev/null
}

mapfile -t devices < <(seq 0 $((number - 1)))

while :; do
  run_once "$@"
  if [[ $told ]] || ((!status)); then
    exit "$status"
  elif [[ $again ]]; then
    again=
    mapfile -t devices < <(seq 0 $((number - 1)))
    say "starts again on $number processes"
    continue
  elif ((restarts >= ${RESTARTS:-0} || (status != 75 && status <= 128))); then
    exit "$status"
  fi
  reason="the run stopped without being asked here"
  if ((status > 128)); then
    reason="process $failed was killed by SIG$(kill -l "$status")"
    unset "devices[failed]"
    devices=("${devices[@]}")
    ((${#devices[@]})) || exit "$status"
  fi
  restarts=$((restarts + 1))
  say "$reason; starts again on ${#devices[@]} processes (restart $restarts of $RESTARTS)"
done

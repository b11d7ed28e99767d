#!/usr/bin/env bash
# Usage: launch/local.sh N -- python main.py --distributed --config=... --workdir=...
#
# Starts N processes of one run on this machine, and sets for each of them:
#   JAX_COORDINATOR_ADDRESS  127.0.0.1 and PORT (default: a random one below the ephemeral ones)
#   JAX_NUM_PROCESSES        N
#   JAX_PROCESS_ID           its number, from 0
#   JAX_LOCAL_DEVICE_IDS     its number: each process takes one GPU
# and, where DEVICES_PER_PROCESS is set, that many virtual CPU devices instead:
#   JAX_PLATFORMS            cpu
#   XLA_FLAGS                ... --xla_force_host_platform_device_count=DEVICES_PER_PROCESS
# SIGTERM and Ctrl-C ask all processes to save and stop. When one fails the others are ended and
# its exit status is returned.
set -u

if [[ $# -lt 3 || ! $1 =~ ^[1-9][0-9]*$ || $2 != -- ]]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
export JAX_NUM_PROCESSES=$1
export JAX_COORDINATOR_ADDRESS=127.0.0.1:${PORT:-$((20000 + RANDOM % 12000))}
if [[ ${DEVICES_PER_PROCESS:-} ]]; then
  export JAX_PLATFORMS=cpu
  XLA_FLAGS+=" --xla_force_host_platform_device_count=$DEVICES_PER_PROCESS"
  export XLA_FLAGS
fi
shift 2

processes=()
trap 'kill -TERM "${processes[@]}" 2>/dev/null' TERM INT
for ((i = 0; i < JAX_NUM_PROCESSES; i++)); do
  JAX_PROCESS_ID=$i JAX_LOCAL_DEVICE_IDS=$i "$@" &
  processes+=($!)
done

for ((left = JAX_NUM_PROCESSES; left > 0; )); do
  wait -n -p ended
  status=$?
  [[ ${ended:-} ]] || continue # a signal, which the trap has passed on
  left=$((left - 1))
  if ((status)); then
    kill -KILL "${processes[@]}" 2>/dev/null
    exit "$status"
  fi
done

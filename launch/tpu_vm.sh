#!/usr/bin/env bash
# Usage: TPU=NAME ZONE=ZONE launch/tpu_vm.sh create|install|start|logs|status|stop|delete [...]
#
# Runs big_align on Cloud TPU VMs: one slice, or several with SLICES=n. JAX finds the coordinator and
# the other workers through the TPU's metadata; nothing is set here. Workers need storage that all of
# them write, such as a bucket, for the checkpoints.
#   create --accelerator-type=v5litepod-256 --runtime-version=v2-alpha-tpuv5-lite [--spot ...]
#       asks for the slices as a queued resource; the flags are gcloud's
#   install
#       copies this checkout, as it is, to every worker and installs it there
#   start python main.py --distributed --config=... --workdir=...
#       starts the command on every worker, detached, and again when it fails (launch/worker.sh)
#   logs [WORKER [SLICE]]
#       follows the log of one worker (default: the first of the first slice)
#   status
#       the state of the queued resource and, once it is ACTIVE, of every worker
#   stop
#       SIGTERM to the command on every worker; returns when all have saved and left
#   delete
#       gives the TPUs back
# FOLDER (default: big_align) is that of the checkout in the home directory of the workers, RESTARTS
# (100) how often a worker starts the command again. gcloud connects to BATCH_SIZE workers at once
# (64): the next ones wait until these have returned, so nothing here blocks in between. Several
# workers need the key in an agent: ssh-add ~/.ssh/google_compute_engine
set -euo pipefail
if ((BASH_VERSINFO[0] < 5)); then # a Mac has 3
  echo "tpu_vm.sh needs bash 5: brew install bash" >&2
  exit 2
fi

usage() {
  sed -n '2s/^# //p' "$0" >&2
  exit 2
}
[[ $# -gt 0 && ${TPU:-} && ${ZONE:-} ]] || usage
folder=${FOLDER:-big_align}
slices=${SLICES:-1}

queued_resources() { gcloud compute tpus queued-resources "$1" "${@:2}" --zone="$ZONE"; }

# on_workers NODE WORKER COMMAND...: runs a command in the checkout there.
on_workers() {
  queued_resources ssh "$TPU" --node="$1" --worker="$2" --batch-size="${BATCH_SIZE:-64}" \
    --command="cd ${folder@Q} && $(printf '%q ' "${@:3}")"
}

create() {
  [[ $# -gt 0 ]] || usage
  local nodes=("--node-id=$TPU")
  ((slices == 1)) || nodes=("--node-count=$slices" "--node-prefix=$TPU")
  queued_resources create "$TPU" "${nodes[@]}" "$@"
}

install() {
  local checkout
  checkout=$(cd "$(dirname "$0")/.." && pwd)
  if ! git -C "$checkout" rev-parse --git-dir >/dev/null 2>&1; then
    echo "error: $checkout is not a Git clone, and Git lists the files to copy; use git clone" >&2
    exit 1
  fi
  archive=$(mktemp)
  trap 'rm -f "$archive"' EXIT # which no longer sees local variables
  cd "$checkout"
  git ls-files --cached --others --exclude-standard -z |
    # A file that was deleted is still listed.
    while IFS= read -r -d '' file; do [[ ! -e $file ]] || printf '%s\0' "$file"; done |
    # A Mac's tar would add files of attributes.
    COPYFILE_DISABLE=1 tar -czf "$archive" --null -T -
  queued_resources scp "$archive" "$TPU:big_align.tar.gz" --node=all --worker=all \
    --batch-size="${BATCH_SIZE:-64}"
  queued_resources ssh "$TPU" --node=all --worker=all --batch-size="${BATCH_SIZE:-64}" \
    --command="mkdir -p ${folder@Q} && tar -xzf big_align.tar.gz -C ${folder@Q} &&
      ${folder@Q}/launch/worker.sh install tpu"
}

start() {
  [[ $# -gt 0 ]] || usage
  on_workers all all env RESTARTS="${RESTARTS:-100}" launch/worker.sh start "$@"
}

logs() { on_workers "${2:-0}" "${1:-0}" launch/worker.sh logs; }

status() {
  local state
  state=$(queued_resources describe "$TPU" --format='value(state.state)')
  echo "$TPU: $state"
  [[ $state != ACTIVE ]] || on_workers all all launch/worker.sh status
}

stop() {
  # One worker that is told stops the run on all: first no worker may start it again.
  on_workers all all launch/worker.sh once
  on_workers all all launch/worker.sh stop
}

delete() { queued_resources delete "$TPU" --force --quiet; }

case $1 in
  create | install | start | logs | status | stop | delete) "$@" ;;
  *) usage ;;
esac

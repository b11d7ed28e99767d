#!/usr/bin/env bash
# Usage: TPU=NAME ZONE=ZONE launch/tpu_vm.sh python main.py --distributed --config=... --workdir=...
#
# Runs a command on every worker of a Cloud TPU VM slice, in FOLDER (default: big_align) of the
# home directory there, where the package is installed with its `tpu` extra. JAX finds the
# coordinator and the other workers through the TPU's metadata; nothing is set here. The workdir
# has to be on storage that all workers mount.
set -eu

if [[ $# -eq 0 || -z ${TPU:-} || -z ${ZONE:-} ]]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all \
  --command="cd ${FOLDER:-big_align} && $(printf '%q ' "$@")"

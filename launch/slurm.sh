#!/usr/bin/env bash
# Usage: sbatch --nodes=4 launch/slurm.sh python main.py --distributed --config=... --workdir=...
#
# Starts one process for each GPU of a Slurm job. JAX finds the coordinator, the number of processes
# and the GPU of each in the variables that srun sets (SLURM_JOB_ID, SLURM_STEP_NODELIST,
# SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID); nothing is set here. The workdir has to be on storage
# that all nodes share. Options given to sbatch replace those below.
#SBATCH --job-name=big_align
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
# Five minutes before the time is over the run saves and stops; the same command continues it.
#SBATCH --signal=TERM@300
set -eu

if [[ $# -eq 0 ]]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
srun --kill-on-bad-exit=1 "$@"

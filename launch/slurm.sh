#!/usr/bin/env bash
# Usage: sbatch --nodes=4 launch/slurm.sh python main.py --distributed --config=... --workdir=...
#
# Starts one process for each GPU of a Slurm job. JAX finds the coordinator, the number of processes
# and the GPU of each in the variables that srun sets (SLURM_JOB_ID, SLURM_STEP_NODELIST,
# SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID); nothing is set here. The workdir has to be on storage
# that all nodes share. Options given to sbatch replace those below.
#
# A run that was told to stop (by the signal below, scancel --signal=TERM JOB, or preemption) has
# saved and ends with status 75, or 143 if Python had not even begun: the job goes back to the queue
# and continues. Any other status is the job's own, so that only a finished run is COMPLETED.
# `scancel JOB` ends it for good.
#SBATCH --job-name=big_align
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --open-mode=append
# Five minutes before the time is over the processes, and not this script, get SIGTERM.
#SBATCH --signal=TERM@300
set -u

if [[ $# -eq 0 ]]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
# srun does not take the number of cores from sbatch: without it a task may be bound to one.
srun --kill-on-bad-exit=1 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} "$@"
status=$?
((status != 143)) || status=75
if ((status == 75)); then
  echo "slurm.sh: the run stopped; job $SLURM_JOB_ID goes back to the queue" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"

#!/usr/bin/env bash
# Usage: sbatch --nodes=4 launch/slurm.sh python main.py --distributed --config=... --workdir=...
#
# Starts one process for each GPU of a Slurm job. JAX finds the coordinator, the number of processes
# and the GPU of each in the variables that srun sets (SLURM_JOB_ID, SLURM_STEP_NODELIST,
# SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID); nothing is set here. The workdir has to be on storage
# that all nodes share. Options given to sbatch replace those below.
#
# A run that was told to stop (by the signal below, scancel --signal=TERM JOB, or preemption) has
# saved and ends with status 75: the job goes back to the queue and continues. So it does after 143,
# with which SIGTERM ends a task whose Python has hardly begun. Any other status is the job's own,
# so that only a finished run is COMPLETED. `scancel JOB` ends it for good.
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
# When a task fails, srun sends SIGTERM to the others, and its own status is the highest of all: a
# failure would look like a request to stop. So a stopped task counts as 1, below every failure.
# shellcheck disable=SC2016 # it is expanded in the task
task='trap : TERM; "$@"; status=$?
case $status in 75|143) exit 1 ;; 1) exit 101 ;; *) exit $status ;; esac'
# srun does not take the number of cores from sbatch: without it a task may be bound to one.
srun --kill-on-bad-exit=1 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
  bash -c "$task" task "$@"
status=$?
case $status in
  1 | 143)
    echo "slurm.sh: the run was asked to stop; job $SLURM_JOB_ID goes back to the queue" >&2
    scontrol requeue "$SLURM_JOB_ID"
    exit 75
    ;;
  101) exit 1 ;;
esac
exit "$status"

#!/usr/bin/env bash
# Usage: tests/cluster/slurm_cluster.sh start|stop FOLDER
#
# A Slurm of one node on this machine, for tests: munge, slurmctld and slurmd as root, everything
# they write in FOLDER. Debian: apt-get install slurmctld slurmd slurm-client munge. Afterwards
#   export SLURM_CONF=FOLDER/slurm.conf
# lets sbatch, srun, squeue, scancel and scontrol find it. The node has more CPUs and GPUs than there
# are: its GPUs are empty files, which Slurm allocates as it does real ones.
set -eu

if [[ $# -ne 2 || ! $1 =~ ^(start|stop)$ ]]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
mkdir -p "$2"
folder=$(cd "$2" && pwd)
export SLURM_CONF=$folder/slurm.conf

write_config() {
  local port=$((20000 + RANDOM % 10000)) node
  node=$(hostname -s)
  cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until its old credentials have expired: two minutes by default.
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
# No cgroups, which containers may lack.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=10
OverTimeLimit=0
GresTypes=gpu
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 Gres=gpu:4 State=UNKNOWN
PartitionName=all Nodes=$node Default=YES MaxTime=INFINITE State=UP
CONF
  mkdir -p "$folder/gpus" "$folder/state" "$folder/spool"
  touch "$folder"/gpus/{0,1,2,3}
  echo "NodeName=$node Name=gpu File=$folder/gpus/[0-3]" >"$folder/gres.conf"
}

start() {
  write_config
  (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
  slurmctld -c
  slurmd
  for _ in {1..60}; do
    [[ $(sinfo --noheader --format=%T 2>/dev/null) == idle ]] && return
    sleep 0.5
  done
  echo "slurm_cluster.sh: no idle node after 30 s; see $folder/slurmctld.log and slurmd.log" >&2
  exit 1
}

stop() {
  scancel --quiet --state=RUNNING --full --signal=KILL 2>/dev/null || true
  for daemon in slurmd slurmctld munged; do
    pid=$(cat "$folder/$daemon.pid" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null || continue
    for _ in {1..60}; do kill -0 "$pid" 2>/dev/null || break; sleep 0.5; done
  done
}

"$1"

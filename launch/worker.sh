#!/usr/bin/env bash
# Usage: launch/worker.sh install EXTRA | start python main.py ... | logs | status | once | stop
#
# Keeps one command running in the background of this machine, whoever logs out; launch/tpu_vm.sh
# calls it on every worker. Run it in the checkout, where it leaves run.log, run.pid and run.status.
#   install EXTRA   makes .venv with Python 3.11 and installs the package with that extra: tpu, cuda
#   start COMMAND   starts it, and again whenever it ends, with any status but 0 (finished) and 2
#                   (wrong usage), at most RESTARTS times (default: 100), PAUSE seconds (10) later
#   logs            shows the log, and follows it
#   status          says whether it runs, or how it ended, and the last line of the log
#   once            lets it run, but not start again
#   stop            sends it SIGTERM (it saves) and waits for its end
set -u

say() { echo "worker.sh on $(hostname -s): $*"; }
# After the machine has started again, the number may be that of another program.
running() {
  [[ -e run.pid && ! -e run.status ]] && grep -q worker.sh "/proc/$(<run.pid)/cmdline" 2>/dev/null
}

install() {
  if ! .venv/bin/pip --version &>/dev/null; then
    rm -rf .venv # an install that was interrupted
    # TPU VMs come with Python 3.10; uv brings another one.
    python3 -m pip install --quiet --user uv && python3 -m uv venv --seed --python 3.11 .venv || exit
  fi
  .venv/bin/pip install --quiet -e ".[$1]" -c requirements.lock && say "installed"
}

start() {
  if running; then
    say "already running as process $(<run.pid); stop it first"
    exit 1
  fi
  # shellcheck source=/dev/null
  [[ ! -e .venv ]] || . .venv/bin/activate
  rm -f run.status
  setsid nohup "$0" keep "$@" >>run.log 2>&1 </dev/null &
  echo $! >run.pid
  say "started as process $!"
}

# The background process: COMMAND, again and again.
keep() {
  local child='' restarts=0 status told=''
  trap 'told=1' USR1
  trap 'told=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null' TERM
  while :; do
    "$@" &
    child=$!
    # A signal ends `wait`, too.
    while wait "$child"; kill -0 "$child" 2>/dev/null; do :; done
    wait "$child"
    status=$?
    child=''
    [[ $told ]] || ((status == 0 || status == 2 || restarts >= ${RESTARTS:-100})) && break
    restarts=$((restarts + 1))
    say "ended with status $status; starts again in ${PAUSE:-10} s (restart $restarts)"
    sleep "${PAUSE:-10}" &
    wait $!
    [[ -z $told ]] || break
  done
  say "ended with status $status"
  echo "$status" >run.status
  exit "$status"
}

status() {
  if running; then
    say "running as process $(<run.pid): $(tail -n 1 run.log)"
  elif [[ -e run.status ]]; then
    say "ended with status $(<run.status): $(tail -n 1 run.log)"
  else
    say "not running"
  fi
}

stop() {
  running && kill -TERM "$(<run.pid)"
  while running; do sleep 0.2; done
  status
}

cd "$(dirname "$0")/.." || exit
case $#:${1:-} in
  2:install | [2-9]*:start | [1-9][0-9]*:start | [2-9]*:keep | [1-9][0-9]*:keep) "$@" ;;
  1:logs) tail -n 100 -F run.log ;;
  1:status) status ;;
  1:once) ! running || kill -USR1 "$(<run.pid)" ;;
  1:stop) stop ;;
  *)
    sed -n '2s/^# //p' "launch/${0##*/}" >&2
    exit 2
    ;;
esac

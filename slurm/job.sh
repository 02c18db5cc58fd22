#!/bin/bash
@OPTIONS@

# Tasks of this job, by index in the array; `python -m slurm status` shows the state of each:
@TASKS@
# Exit codes: 0 done; 75 saved, requeued; 76 a broken node; 2 an error to fix; 3 given up; 124 not saved in time; else a crash.
fox_code=@CODE@  # a snapshot of the code at submission
fox_record=@RECORD@
fox_entry=@ENTRY@
step= timer= told=

# Runs however the task ends: after a signal or a crash the job is requeued, within bounds (slurm/epilogue.py); after a crash,
# it runs on another node if there is one.
end() {
  trap '' TERM USR2
  [ -e "$fox_record" ] || exit "$1"  # the runs folder is not visible here
  (cd "$fox_code" && PYTHONSAFEPATH= @HOST_PYTHON@ -m slurm.epilogue "$fox_record" "$fox_entry" "$1")
  exit $?
}
stop() { echo "error: $1" >&2; end 1; }

# SLURM sends USR2 @SIGNAL_S@ s before the time limit and, if it is configured so, at preemption: the task saves and exits.
# After @PATIENCE_S@ s the job stops waiting for a task that does not, so that there is time to requeue it.
told() {
  told=1
  [ -n "$step" ] || return
  kill -USR2 "$step" 2>/dev/null
  [ -n "$timer" ] || { (sleep @PATIENCE_S@; kill -KILL "$step") 2>/dev/null & timer=$!; }
}
trap told USR2
trap : TERM  # the task gets its own TERM, and exits

# Variables of the shell that submitted; tasks get their own.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID
@SETUP@
export PYTHONPATH="$fox_code${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1  # imports that snapshot, not the working folder
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}  # srun does not inherit it otherwise
echo "--- job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart ${SLURM_RESTART_COUNT:-0}, python @SHOWN_PYTHON@"

for place in "$fox_code" "$fox_record" @PLACES@; do
  [ -e "$place" ] || stop "${SLURMD_NODENAME:-this node} does not see $place, which all nodes must"
done
[ -z "$told" ] || end 75  # during setup
@COMMAND@ -m slurm.launcher "$fox_record" "$fox_entry" &
step=$!
while wait "$step"; [ $? -gt 128 ] && kill -0 "$step" 2>/dev/null; do :; done  # a trap also ends a wait
wait "$step" 2>/dev/null; ended=$?
[ -z "$timer" ] || { kill "$timer" 2>/dev/null; [ "$ended" -ne 137 ] || ended=124; }
end "$ended"

#!/bin/bash
@OPTIONS@

step= timer= told=
# However the task ends: after a signal or a crash the job is started again, within bounds (slurm/epilogue.py).
end() {
  trap '' TERM USR2
  (cd @CODE@ && PYTHONPATH=@CODE@ @HOST_PYTHON@ -m slurm.epilogue @RECORD@ "$1")
  exit "$1"
}
stop() { echo "error: $1" >&2; end 1; }

# SLURM says USR2 @SIGNAL_S@ s before the time limit and at preemption: the task saves and leaves.
# One that cannot is left behind after @PATIENCE_S@ s, so that there is time to start the job again.
told() {
  told=1
  [ -n "$step" ] || return
  kill -USR2 "$step" 2>/dev/null
  [ -n "$timer" ] || { (sleep @PATIENCE_S@; kill -KILL "$step") 2>/dev/null & timer=$!; }
}
trap told USR2
trap : TERM

@SETUP@
export PYTHONPATH=@CODE@"${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1  # the snapshot's code, not that of the working folder
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}  # srun does not take them over
# Of the shell that submitted; tasks get their own.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID
@MEETING_PLACE@
echo "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart ${SLURM_RESTART_COUNT:-0}, python @SHOWN_PYTHON@"

[ -z "$told" ] || end 75
@COMMAND@ -m slurm.launcher @RECORD@ &
step=$!
while wait "$step"; [ $? -gt 128 ] && kill -0 "$step" 2>/dev/null; do :; done  # a trap ends a wait, too
wait "$step" 2>/dev/null; code=$?
[ -z "$timer" ] || { kill "$timer" 2>/dev/null; [ "$code" -ne 137 ] || code=124; }
end "$code"

#!/bin/bash
# Runs the gate as a Slurm job, and submits the training only if the gate passed.
#   slurm-pre-job.sh BASELINE train.sbatch [arguments of sbatch…]
# The gate runs on virtual nodes of one machine of the cluster. Make the baseline on a machine of the same kind:
#   srun --nodes 1 --ntasks 1 chaos gate pre-launch --repeat 5 && chaos baseline set BASELINE
# SLURM_PARTITION, SLURM_CPUS_PER_TASK and SLURM_CONSTRAINT choose the machine for srun.
# SUITE (pre-launch), GATE_TIME (02:00:00) and CHAOS (chaos) may be set.
set -euo pipefail

if [ $# -lt 2 ] || [ ! -f "$2" ]; then
  echo "usage: $0 BASELINE TRAINING.sbatch [arguments of sbatch]" >&2
  exit 2
fi
baseline=$1
training=$2
shift 2

code=0
srun --job-name chaos-gate --nodes 1 --ntasks 1 --time "${GATE_TIME:-02:00:00}" \
  "${CHAOS:-chaos}" gate "${SUITE:-pre-launch}" --repeat 5 --against "$baseline" || code=$?

# Only 0 is a yes: 3 means that nobody can tell, and a killed gate has another code again.
if [ "$code" -ne 0 ]; then
  echo "The gate ended with $code: the training is not submitted." >&2
  exit "$code"
fi
exec sbatch "$@" "$training"

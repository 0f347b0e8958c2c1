#!/bin/bash
# A study on several nodes, one process on each: sbatch deploy/slurm/run.sh sinusoid --seeds 8
# After a node is lost, go on with: sbatch deploy/slurm/run.sh --resume runs/sinusoid
# The folder it is started in must be one that all nodes see.
#SBATCH --job-name=fewjoule
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
set -euo pipefail
COORDINATOR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):${PORT:-4711}"
export COORDINATOR
# shellcheck disable=SC2016 # the number of a process is known in its own shell
srun --kill-on-bad-exit=1 bash -c \
  'exec fewjoule run "$@" --coordinator "$COORDINATOR" --process "$SLURM_PROCID" --of "$SLURM_NTASKS"' fewjoule "$@"

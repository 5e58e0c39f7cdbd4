#!/usr/bin/env bash
# The experiment of tools/gpu_check over the stand-in, beside an MPS that writes down what it is told. One that does not
# start is a failure; where there is none, that is said.
set -uo pipefail
source bazel/testing/expect.sh
nccl=comm/transport/nccl
export PELTON_NCCL_LIBRARY=$PWD/$nccl/stand_in/libpelton_gpu_stand_in.so
export PELTON_CUDART_LIBRARY=$PELTON_NCCL_LIBRARY
export PELTON_KERNELS_LIBRARY=$PELTON_NCCL_LIBRARY
export PELTON_STAND_IN_PROCESSES=1 PELTON_STAND_IN_IPC=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
step="--bucket-bytes 65540 --kernel-bytes 4096 --kernels 2 --turns 1 --steps 1 --limit-s 60"
staged() { python3 tools/gpu_check --programs $nccl/gpu_ipc --ipc "$step" ipc; }
mkdir "$folder/bin"
ln -s "$(command -v python3)" "$folder/bin/python3"
PATH=$folder/bin expect 0 "not run with MPS: no nvidia-cuda-mps-control in PATH" staged
printf '#!/bin/sh\necho "$1 $CUDA_MPS_PIPE_DIRECTORY" >>%s/calls; [ -n "$1" ] || cat >>%s/calls\n' "$folder" "$folder" >"$folder/nvidia-cuda-mps-control"
chmod +x "$folder/nvidia-cuda-mps-control"
PATH=$folder:$PATH expect 0 "ipc, 1 rank(s), with MPS:" staged
[[ $(<"$folder/calls") =~ ^-d\ (/[^ $'\n']+)$'\n'\ (/[^ $'\n']+)$'\n'quit$ ]] && [ "${BASH_REMATCH[1]}" = "${BASH_REMATCH[2]}" ] ||
  { echo "FAILED: MPS was told: $(<"$folder/calls")"; failures=$((failures + 1)); }
printf '#!/bin/sh\nexit 1\n' >"$folder/nvidia-cuda-mps-control"
PATH=$folder:$PATH expect 1 "ipc: not run with MPS: Command" staged
exit $((failures > 0))

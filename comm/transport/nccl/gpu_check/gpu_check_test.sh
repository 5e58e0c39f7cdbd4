#!/usr/bin/env bash
# gpu_check over the stand-in: it passes, it says that there is no GPU, and it can be carried.
set -uo pipefail
source bazel/testing/expect.sh
here=comm/transport/nccl
check=$here/gpu_check/gpu_check
export PELTON_NCCL_LIBRARY=$PWD/$here/stand_in/libpelton_gpu_stand_in.so
export PELTON_CUDART_LIBRARY=$PELTON_NCCL_LIBRARY
export PELTON_KERNELS_LIBRARY=$PELTON_NCCL_LIBRARY

expect 0 "cases passed, 0 failed" "$check" --ranks 1 conformance
expect 0 "cases passed, 0 failed" "$check" --ranks 2 conformance
expect 0 "added to an operation below" "$check" --ranks 2 --largest 262144 bandwidth
expect 0 "averages of two neighbours" "$check" --ranks 2 --largest 262144 neighbors
expect 0 "neighbors: needs 2 ranks" "$check" --ranks 1 neighbors
expect 1 "pelton_kernels" env PELTON_KERNELS_LIBRARY=/nowhere/libpelton_kernels.so "$check" --ranks 2 neighbors
expect 2 "usage:" "$check" --ranks none
expect 3 "no GPU here: cudaGetDeviceCount" env PELTON_STAND_IN_DEVICES=0 "$check"
expect 3 "no GPU here" env PELTON_NCCL_LIBRARY=/nowhere/libnccl.so.2 "$check"
expect 3 "no GPU here" env PELTON_CUDART_LIBRARY=/nowhere/libcudart.so "$check"

# On the machines it is carried to there is a C library, and little else.
expect_carried "$check" 'absl|libstdc|gtest'
size_bytes=$(stat -Lc %s "$check")
[ "$size_bytes" -le $((64 << 20)) ] || { echo "FAILED: $size_bytes bytes"; failures=$((failures + 1)); }
exit $((failures > 0))

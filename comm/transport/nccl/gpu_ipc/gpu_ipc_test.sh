#!/usr/bin/env bash
# gpu_ipc over the stand-in, whose processes share device memory: values are right both ways, errors say why, and nothing
# outlives a process that is killed.
set -uo pipefail
source bazel/testing/expect.sh
here=comm/transport/nccl
ipc=$here/gpu_ipc/gpu_ipc
export PELTON_NCCL_LIBRARY=$PWD/$here/stand_in/libpelton_gpu_stand_in.so
export PELTON_CUDART_LIBRARY=$PELTON_NCCL_LIBRARY
export PELTON_KERNELS_LIBRARY=$PELTON_NCCL_LIBRARY
export PELTON_STAND_IN_PROCESSES=1 PELTON_STAND_IN_IPC=1
small=(--bucket-bytes 65540 --kernel-bytes 4096 --kernels 2 --buckets 3 --turns 2 --limit-s 60)

expect 0 "24 steps: every value is right" "$ipc" "${small[@]}" --steps 5
expect 0 "24 steps: every value is right" "$ipc" "${small[@]}" --steps 5 --ranks 2
# What does not wait for an event of the other process is wrong now.
expect 0 "8 steps: every value is right" env PELTON_STAND_IN_LAG_US=1000 "$ipc" "${small[@]}" --steps 1
expect 1 "daemon (pid " env PELTON_STAND_IN_FAIL=cudaIpcOpenMemHandle "$ipc" "${small[@]}"
expect 1 "cudaIpcOpenMemHandle: an error of the stand-in (999); both processes have to be one user's" \
  env PELTON_STAND_IN_FAIL=cudaIpcOpenMemHandle "$ipc" "${small[@]}"
expect 1 "cudaIpcOpenEventHandle: " env PELTON_STAND_IN_FAIL=cudaIpcOpenEventHandle "$ipc" "${small[@]}"
expect 1 "set PELTON_STAND_IN_IPC=1" env PELTON_STAND_IN_IPC=0 "$ipc" "${small[@]}"
expect 1 "the run's time was over before" "$ipc" "${small[@]}" --limit-s 2 --steps 10000 --turns 100
expect 2 "--ranks 3: has to be 1 to 2" "$ipc" --ranks 3
expect 2 "no flag --rank-count" "$ipc" --rank-count 2
expect 3 "no GPU here: cudaGetDeviceCount" env PELTON_STAND_IN_DEVICES=0 "$ipc"
expect 3 "no GPU here" env PELTON_CUDART_LIBRARY=/nowhere/libcudart.so "$ipc"

# killed WHICH TEXT: with that process killed in the middle of the run, all of them end, and say why. They have ended
# when none holds the pipe open.
killed() {
  local which=$1 text=$2 output="" line pipe
  exec {pipe}< <(exec "$ipc" "${small[@]}" --ranks 2 --steps 10000 --turns 100 2>&1)
  local launcher=$! trainer="" daemon=""
  while [ -z "$daemon" ] && read -r -t 60 line <&"$pipe"; do
    [[ "$line" =~ ^rank\ 1:\ trainer\ ([0-9]+),\ daemon\ ([0-9]+)$ ]] || continue
    trainer=${BASH_REMATCH[1]} daemon=${BASH_REMATCH[2]}
  done
  if [ -z "$daemon" ] || ! kill -9 "${!which}"; then
    echo "FAILED: no $which to kill: $line"
    failures=$((failures + 1))
    return
  fi
  while read -r -t 30 line <&"$pipe"; do output+=$line$'\n'; done
  local ended=$?
  exec {pipe}<&-
  if [ $ended -gt 128 ] || [[ "$output" != *"$text"* ]]; then
    echo "FAILED: 30 s after its $which was killed a process is left, or there is no '$text':"
    printf '%s\n' "$output" | tail -20
    failures=$((failures + 1))
  fi
}
killed daemon "rank 1's trainer: rank 1's daemon (pid "
killed trainer "launcher: rank 1's trainer (pid "
killed launcher ""

expect_carried "$ipc" 'absl|libstdc|gtest'
exit $((failures > 0))

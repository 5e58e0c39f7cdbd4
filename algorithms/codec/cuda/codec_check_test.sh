#!/usr/bin/env bash
# codec_check where there is no GPU: it says so, knows its arguments, and can be carried.
set -uo pipefail
source bazel/testing/expect.sh
check=algorithms/codec/cuda/codec_check

# A machine with a GPU has it run.
if "$check" --elements 262144 >/dev/null 2>&1; then
  expect 0 "merge 4" "$check" --elements 262144
else
  expect 3 "no GPU here: cudaGetDeviceCount" "$check"
fi
expect 2 "usage:" "$check" --elements none
expect 2 "usage:" "$check" 7
expect_carried "$check" 'absl|gtest'
exit $((failures > 0))

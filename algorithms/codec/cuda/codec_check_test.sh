#!/usr/bin/env bash
# codec_check where there is no GPU: it says so, knows its arguments, and can be carried.
set -uo pipefail
check=algorithms/codec/cuda/codec_check
failures=0

# expect STATUS TEXT COMMAND...
expect() {
  local status=$1 text=$2 output
  shift 2
  output=$("$@" 2>&1)
  local actual=$?
  if [ $actual -ne "$status" ] || [[ "$output" != *"$text"* ]]; then
    echo "FAILED (status $actual, not $status, or no '$text'): $*"
    printf '%s\n' "$output" | tail -20
    failures=$((failures + 1))
  fi
}

# A machine with a GPU has it run.
if "$check" --elements 262144 >/dev/null 2>&1; then
  expect 0 "encode" "$check" --elements 262144
else
  expect 3 "no GPU here: cudaGetDeviceCount" "$check"
fi
expect 2 "usage:" "$check" --elements none
expect 2 "usage:" "$check" 7

needed=$(ldd "$check" | grep -E 'absl|gtest' || true)
if [ -n "$needed" ]; then
  echo "FAILED: it needs what it should carry: $needed"
  failures=$((failures + 1))
fi
exit $((failures > 0))

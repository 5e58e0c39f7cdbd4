#!/usr/bin/env bash
# Compiles each source of this folder twice with g++ and clang++ (those found): as it stands, which
# must work, and with PELTON_BAD, which must fail with the words after "expect:" in its first line.
set -u
sources=(core/actor/compile_fail/*.cc)
[ ${#sources[@]} -gt 10 ] || { echo "FAIL: the sources are missing"; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
flags=(-std=c++20 -fsyntax-only)
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }

# check COMMAND... SOURCE
check() {
  local source=${*: -1} expected output
  expected=$(sed -n '1s|^// expect: ||p' "$source")
  [ -n "$expected" ] || { fail "$source names no message"; return; }
  output=$("${@:1:$#-1}" "$source" 2>&1) ||
    fail "$1 $source: does not compile without PELTON_BAD:"$'\n'"$output"
  if output=$("${@:1:$#-1}" -DPELTON_BAD "$source" 2>&1); then
    fail "$1 $source: compiles with PELTON_BAD"
  elif ! grep -qF -- "$expected" <<< "$output"; then
    fail "$1 $source: '$expected' is not among its errors:"$'\n'"$output"
  fi
}

# The header that all sources share is compiled once per compiler.
header=core/actor/compile_fail/probe.h
compilers=()
if command -v g++ > /dev/null; then
  compilers+=(g++)
  mkdir -p "$scratch/$(dirname "$header")"
  g++ -std=c++20 -I. -x c++-header "$header" -o "$scratch/$header.gch" || fail "g++ $header"
  for source in "${sources[@]}"; do check g++ "${flags[@]}" "-I$scratch" -I. "$source"; done
fi
if clang=$(command -v clang++ || command -v clang++-14); then
  compilers+=("$clang")
  "$clang" -std=c++20 -I. -x c++-header "$header" -o "$scratch/probe.pch" || fail "$clang $header"
  for source in "${sources[@]}"; do
    check "$clang" "${flags[@]}" -include-pch "$scratch/probe.pch" -I. "$source"
  done
fi
[ ${#compilers[@]} -gt 0 ] || fail "no C++ compiler on PATH"
echo "${#sources[@]} sources with ${compilers[*]}: $failures failures"
[ "$failures" -eq 0 ]

# For tests in bash of programs that are carried to other machines: source it, call what follows,
# and end with `exit $((failures > 0))`.
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

# expect_carried PROGRAM LIBRARIES: it has those in it, an extended regular expression, instead of
# needing them where it runs.
expect_carried() {
  local needed
  needed=$(ldd "$1" | grep -E "$2" || true)
  if [ -n "$needed" ]; then
    echo "FAILED: $1 needs what it should carry: $needed"
    failures=$((failures + 1))
  fi
}

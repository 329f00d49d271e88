# What bazelw says while it sets up. Sourced; everything goes to standard error.

# A line of progress.
say() {
  printf 'bazelw: %s\n' "$*" >&2
}

# The one sentence a failed set-up ends with. 36 is Bazel's own code for trouble with the machine.
die() {
  printf 'bazelw: %s\n' "$*" >&2
  exit 36
}

# run_logged LOG COMMAND...: runs a command that takes long, its output in LOG, and shows that it lives:
# the time, the size of the folder progress_dir if there is one, and the last line of the log, rewritten
# each second on a terminal, else every 20 seconds.
# Returns the command's status. Ends the command when it is interrupted itself.
run_logged() {
  local log=$1 start=$SECONDS shown=0 every=20 status=0 child line size=
  shift
  [[ -t 2 ]] && every=1
  "$@" >"$log" 2>&1 </dev/null &
  child=$!
  # A background job of a script ignores Ctrl-C, so it is ended here.
  trap 'kill "$child" 2>/dev/null; wait "$child" 2>/dev/null; die "interrupted; run it again to go on."' \
    INT TERM HUP
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.2
    ((SECONDS - start >= shown + every)) || continue
    shown=$((SECONDS - start))
    line=$(tail -n 1 "$log" | tr -d '\r' | cut -c 1-90)
    # Files may come and go while they are counted.
    [[ -z ${progress_dir:-} ]] || size="$({ du -sm "$progress_dir" 2>/dev/null || true; } | cut -f 1) MB  "
    if [[ -t 2 ]]; then
      printf '\r\033[K  %3d s  %s%s' "$shown" "$size" "$line" >&2
    else
      printf '  %3d s  %s%s\n' "$shown" "$size" "$line" >&2
    fi
  done
  wait "$child" || status=$?
  trap - INT TERM HUP
  [[ -t 2 ]] && printf '\r\033[K' >&2
  return "$status"
}

# Sourced by scripts that run several steps of which each may fail, after `output` is their folder. STEPS is a list of those to run, all of them
# without it. SECONDS_LEFT is how long all of them may take (560).

failed=() deadline=$((SECONDS + ${SECONDS_LEFT:-560}))
# step NAME SECONDS COMMAND...: with its output in a log, of which the end is shown.
step() {
  local name=$1 seconds=$2 start=$SECONDS status=0
  shift 2
  [[ " ${STEPS:-$name} " == *" $name "* ]] || return 0
  ((seconds < deadline - SECONDS)) || seconds=$((deadline - SECONDS))
  if ((seconds < 10)); then
    echo "==> $name: not run, no time is left"
    failed+=("$name")
    return 0
  fi
  timeout --kill-after=10 "$seconds" "$@" >"$output/$name.log" 2>&1 || status=$?
  printf '==> %s: exit status %d after %d s\n' "$name" "$status" $((SECONDS - start))
  tail -n 12 "$output/$name.log"
  ((status == 0)) || failed+=("$name")
}

# Says which steps failed; its status is 1 where one did.
end_steps() {
  ((${#failed[@]} > 0)) || return 0
  printf 'failed: %s\n' "${failed[*]}"
  return 1
}

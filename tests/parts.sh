# Parts with limits of their own within one budget: sourced by tests/gpu.sh and benchmarks/multi_gpu.sh, which set
# `selected` (words; none: everything), `deadline` (of $SECONDS) and OUT. With DRY_RUN set, parts are named, not run.
# shellcheck shell=bash disable=SC2034,SC2154
summary=()
failed=0

wanted() {
  [ ${#selected[@]} -eq 0 ] && return 0
  local word
  for word in "${selected[@]}"; do
    case $1 in "$word"*) return 0 ;; esac
  done
  return 1
}

# record NAME STATE SECONDS NOTE: a line of the summary, and of the file that reports read.
record() {
  summary+=("$(printf '%-16s %-7s %4d s%s' "$1" "$2" "$3" "${4:+, $4}")")
  printf '%s\t%s\t%d\t%s\n' "$@" >> "$OUT/parts.tsv"
}

not_run() {
  record "$1" 'not run' 0 "$2"
}

# room NAME LIMIT LEAST: sets `limit` to LIMIT, or to what is left of the budget; false, and noted, where that is less
# than LEAST.
room() {
  local left=$((deadline - SECONDS))
  limit=$(($2 < left ? $2 : left))
  [ $left -ge "$3" ] && return 0
  not_run "$1" "$left s left"
  failed=1
  return 1
}

# part NAME LIMIT COMMAND...: the limit shrinks to what is left of the budget. The launcher is asked to stop first, so
# that it ends its ranks and daemon; its guard does so even when it is killed 30 s later.
part() {
  local name=$1 limit=$2 start=$SECONDS status reason
  shift 2
  wanted "$name" || return 0
  if [ -n "${DRY_RUN:-}" ]; then
    echo "$name (limit $limit s): $*"
    return 0
  fi
  room "$name" "$limit" 15 || return 0
  echo "== $name (limit $limit s)"
  timeout --kill-after=30 "$limit" "$@" 2>&1 | tee "$OUT/$name.log"
  status=${PIPESTATUS[0]}
  if [ "$status" -eq 0 ]; then
    record "$name" ok $((SECONDS - start)) ''
  else
    reason=$(grep -a -m 1 -o -E 'FAILED:.*|[A-Za-z]*Error: .{0,100}|are over: stopping' "$OUT/$name.log")
    record "$name" FAILED $((SECONDS - start)) "status $status: $reason"
    failed=1
  fi
  return "$status"
}

print_summary() {
  echo
  echo "== summary ($SECONDS s)"
  printf '%s\n' "${summary[@]}"
}

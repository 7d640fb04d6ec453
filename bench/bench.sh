#!/usr/bin/env bash
# Compares the release binary with the ceiling (a bare server, see loadgen/README.md) in alternating runs on
# this machine and prints one table. `make bench` calls it. A missed target is reported, but is not a failure.
#   bench/bench.sh
# PROLIFERATE and LOADGEN select other binaries than the built ones.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/postgres.sh"
proliferate=${PROLIFERATE:-$root/target/release/proliferate}
loadgen=${LOADGEN:-$root/bench/loadgen/target/release/loadgen}
SANDBOXES=20 COLD_RUNS=10 IDLE_RUNS=3 IDLE_REST=5 GET_RUNS=3 GET_SECS=3 CONCURRENCY=16
QUIET=20 # percentage of a core that other processes may use when a run starts

results=$root/bench/results/$(date -u +%Y%m%dT%H%M%SZ)
sides=(proliferate ceiling)
declare -A address=() server=()
over=0

say() { printf '· %s\n' "$*"; }

need_binaries() {
  [ -x "$proliferate" ] || { echo "$proliferate is missing: cargo build --release --bin proliferate" >&2; exit 1; }
  if [ -n "${LOADGEN:-}" ]; then
    [ -x "$loadgen" ] || { echo "$loadgen is missing" >&2; exit 1; }
    return
  fi
  say "building the load generator (only once; takes some minutes)"
  cargo build --release --locked --manifest-path "$root/bench/loadgen/Cargo.toml" --target-dir "$root/bench/loadgen/target"
}

command_of() { # command_of SIDE ; sets `words` to the command that starts its server
  case $1 in
    # Calls are measured, not their share.
    proliferate) words=("$proliferate" serve --listen "${address[$1]}" --data-dir "$work/data" --set PROLIFERATE_CALLS_PER_MINUTE=4000000000) ;;
    ceiling) words=("$loadgen" ceiling --listen "${address[$1]}" --db "$ceiling_db") ;;
  esac
}

measure() { # measure ITEM SIDE ARGUMENTS… ; appends one result line
  local item=$1 side=$2
  shift 2
  "${clean[@]}" "$loadgen" --addr "${address[$side]}" --tag "$side" --quiet $QUIET --quiet-max 3 "$@" >>"$work/$item.$side"
}

cold() { # cold ITEM SIDE REST
  command_of "$2"
  measure "$1" "$2" cold --runs 1 --rest "$3" --ready-path /ready -- "${words[@]}" ||
    { echo "to see why: ${words[*]}" >&2; exit 1; }
}

in_turn() { # in_turn RUNS COMMAND ITEM ARGUMENTS… ; COMMAND ITEM SIDE ARGUMENTS… for each side, RUNS times
  local runs=$1 command=$2 item=$3 run side
  shift 3
  for ((run = 0; run < runs; run++)); do
    for side in "${sides[@]}"; do "$command" "$item" "$side" "$@"; done
  done
}

start_server() { # start_server SIDE
  command_of "$1"
  "${clean[@]}" "${words[@]}" >>"$work/$1.log" 2>&1 &
  server[$1]=$!
  for _ in $(seq 100); do
    kill -0 "${server[$1]}" 2>/dev/null || break
    (exec 3<>"/dev/tcp/127.0.0.1/${address[$1]#*:}") 2>/dev/null && return
    sleep 0.05
  done
  echo "$1 did not start:" >&2
  tail -5 "$work/$1.log" >&2
  exit 1
}

stop_servers() {
  local pid
  for pid in "${server[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${server[@]}"; do
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  server=()
}

clean_up() {
  stop_servers
  stop_postgres "$work/pg"
  rm -rf "$work"
}

FAKE=127.0.0.1:58800 # address of the fake agent, to which the seeded rows refer
STREAMS=("1 1000" "1 10000" "1 0" "10 0" "100 0") # clients and deltas per second; 0 = as fast as possible

start_stream() { # start_stream [DATABASE_URL] ; starts fresh servers of both sides, and the fake agent
  "${bare[@]}" "$loadgen" fake --listen $FAKE >>"$work/fake.log" 2>&1 &
  server[fake]=$!
  clean=("${bare[@]}" SANDBOX_PROVIDER=attach "SANDBOX_ATTACH_URL=http://$FAKE/s/{sessionId}" SANDBOX_TOKEN_COMPAT=1 PROLIFERATE_LOG=warn
    CONNECTOR_ALLOWED_HOSTS=$FAKE
    GATEWAY_JWT_SECRET=loadgen-user-jwt-secret-0123456789abcdef
    SERVICE_TO_SERVICE_AUTH_TOKEN=loadgen-service-secret-0123456789abcdef)
  [ $# = 0 ] || clean+=("DATABASE_URL=$1" "USER_SECRETS_ENCRYPTION_KEY=$(printf '%064d' 7)")
  rm -rf "$work/data"
  "${clean[@]}" "$proliferate" --data-dir "$work/data" db migrate >>"$work/proliferate.log"
  "${clean[@]}" "$proliferate" --data-dir "$work/data" db seed bench >>"$work/proliferate.log"
  for side in "${sides[@]}"; do start_server "$side"; done
}

HELD=1000 HOLD_SECS=5 # live sessions with one client each, and how long to hold them before measuring memory

hold() { # hold ITEM SIDE
  measure "$1" "$2" hold --sessions $HELD --secs $HOLD_SECS --pids "gw=${server[$2]}"
}

FLOOD_PAD=4096 STALLED=64 # bytes per delta of a flooding agent; number of readers that do not read

flood() { # flood ITEM SIDE ; one agent at full speed with large deltas, for the server's peak memory (VmHWM)
  measure "$1" "$2" stream --sessions 1 --clients 1 --rate 0 --secs $GET_SECS --pad $FLOOD_PAD --pids "gw=${server[$2]}"
}

stalled() { # stalled ITEM SIDE ; sends more than the buffers of all stalled readers can hold
  measure "$1" "$2" slow --stalled $STALLED --rate 20000 --secs $GET_SECS --pad 1024 --later 0 --pids "gw=${server[$2]}"
}

stream() { # stream ITEM SIDE CLIENTS RATE
  measure "$1" "$2" stream --sessions 1 --clients "$3" --rate "$4" --secs $GET_SECS --pids "gw=${server[$2]}"
}

tools() { # tools ITEM SIDE [--dup] ; each call durably writes a claim, two events, its effect and an outcome
  measure "$1" "$2" tools --conc 64 --secs $GET_SECS --pids "gw=${server[$2]}$postgres_pid" "${@:3}"
}

ACTION_LEVELS=(16 64) INVOKES=4000 # concurrencies, and requests per run
CONNECTOR=00000000-0000-4000-8000-0000000000cc # the seeded connector, whose server is the fake agent

available() { # available ITEM SIDE CONCURRENCY ; the catalog of actions
  measure "$1" "$2" available --conc "$3" --secs $GET_SECS --pids "gw=${server[$2]}"
}

invoke() { # invoke ITEM SIDE CONCURRENCY ACTION PER_SESSION ; below the limits of a session: 60 in a minute, 10 that wait
  measure "$1" "$2" invoke --conc "$3" --n $INVOKES --action "$4" --per-session "$5" --pids "gw=${server[$2]}"
}

measure_actions() {
  local level
  # Without a review every action would need approval.
  "${clean[@]}" "$proliferate" --data-dir "$work/data" connectors review $CONNECTOR --all --yes >>"$work/proliferate.log"
  for level in "${ACTION_LEVELS[@]}"; do
    in_turn $GET_RUNS available "available-$level" "$level"
    in_turn $GET_RUNS invoke "deny-$level" "$level" danger_thing 50
    in_turn $GET_RUNS invoke "pending-$level" "$level" write_thing 10
    in_turn $GET_RUNS invoke "allow-$level" "$level" read_thing 50
  done
}

measure_tools() { # measure_tools SUFFIX ; new calls, and duplicate calls
  in_turn $GET_RUNS tools "tools$1"
  in_turn $GET_RUNS tools "dup$1" --dup
}

start_on_postgres() { # both sides on one private PostgreSQL with fsync on, with one database each
  chmod 755 "$work"
  start_postgres "$work/pg" on
  postgres_pid=,pg=$(head -1 "$work/pg/data/postmaster.pid")
  for side in "${sides[@]}"; do "$pg_bin/createdb" -h 127.0.0.1 -p "$pg_port" -U test "$side"; done
  ceiling_db=postgres://test@127.0.0.1:$pg_port/ceiling
  start_stream "postgres://test@127.0.0.1:$pg_port/proliferate"
}

get() { # get ITEM SIDE
  measure "$1" "$2" get --path /health --conc $CONCURRENCY --secs $GET_SECS --pids "gw=${server[$2]}"
}

figure() { # figure median|max SCALE KEY FILE ; over the result lines of a file
  { sed 's/"open":{[^}]*}//' "$4" | grep -o "\"$3\":[0-9.e+-]*" || true; } | cut -d: -f2 | sort -g |
    awk -v which="$1" -v scale="$2" '{ v[NR] = $1 * scale }
      END { if (!NR) exit 1; m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; print which == "max" ? v[NR] : m }'
}

row() { # row ITEM TEXT UNIT FORMAT median|max SCALE KEY [TARGET] ; TARGET: the figure must be below it
  local item=$1 text=$2 unit=$3 format=$4 which=$5 scale=$6 key=$7 target=${8:-} ours theirs ratio verdict=-
  ours=$(figure "$which" "$scale" "$key" "$work/$item.proliferate")
  theirs=$(figure "$which" "$scale" "$key" "$work/$item.ceiling")
  ratio=$(awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.2f", a / b }')
  if [ -n "$target" ]; then
    verdict=$(awk -v a="$ours" -v t="$target" 'BEGIN { print a < t ? "ok" : "over" }')
    [ $verdict = ok ] || over=$((over + 1))
  fi
  printf "| %-40s | %13s | %13s | %5s | %-8s | %-7s |\n" "$text" "$(printf "$format" "$ours") $unit" \
    "$(printf "$format" "$theirs") $unit" "$ratio" "${target:+< $target $unit}" "$verdict"
  printf '{"cmd":"bench","item":"%s","unit":"%s","proliferate":%s,"ceiling":%s,"ratio":%s,"target":%s,"verdict":"%s"}\n' \
    "$text" "$unit" "$ours" "$theirs" "$ratio" "${target:-null}" "$verdict" >>"$results.jsonl"
}

table() {
  printf "| %-40s | %13s | %13s | %5s | %-8s | %-7s |\n" item proliferate ceiling ratio target verdict
  echo "|------------------------------------------|---------------|---------------|-------|----------|---------|"
  row cold "cold start, median of $COLD_RUNS" ms %.1f median 1 ready_ms 50
  row cold "cold start, max of $COLD_RUNS" ms %.1f max 1 ready_ms 50
  row idle "idle memory, median of $IDLE_RUNS" MiB %.1f median 0.0009765625 rss_kib_idle 25
  row get "GET /health, $CONCURRENCY connections" req/s %.0f median 1 req_per_s
  row get "GET /health, p50" ms %.3f median 1 p50_ms
  row get "GET /health, p99" ms %.3f median 1 p99_ms
  row tools "tool calls, 64 at once" req/s %.0f median 1 req_per_s
  row dup "duplicate tool calls, 64 at once" req/s %.0f median 1 req_per_s
  row tools-pg "tool calls, 64 at once, PostgreSQL" req/s %.0f median 1 req_per_s
  row dup-pg "duplicate calls, 64 at once, PostgreSQL" req/s %.0f median 1 req_per_s
  for level in "${ACTION_LEVELS[@]}"; do
    row "available-$level" "actions available, $level at once" req/s %.0f median 1 req_per_s
    for mode in deny pending allow; do
      row "$mode-$level" "invoke, $mode, $level at once" req/s %.0f median 1 req_per_s
    done
  done
  for kind in "${STREAMS[@]}"; do
    read -r clients rate <<<"$kind"
    if [ "$rate" = 0 ]; then
      row "stream-$clients-0" "stream, $clients clients, max. rate" ev/s %.0f median 1 delivered_per_s
    else
      row "stream-$clients-$rate" "stream, $rate ev/s, p50" ms %.3f median 1 p50_ms
      row "stream-$clients-$rate" "stream, $rate ev/s, p99" ms %.3f median 1 p99_ms
    fi
  done
  row hold "memory per session, $HELD sessions" KiB %.0f median 1 kib_per_session_held 80
}

remarks() {
  local others wrong joined
  others=$(figure max 1 other_cpu_pct <(cat "$work"/get.*))
  wrong=$(cat "$work"/get.* | grep -vc '"codes":{"200":[0-9]*},"conc":[0-9]*,"errors":0,' || true)
  echo "ratio = proliferate / ceiling. GET: medians of $GET_RUNS runs of $GET_SECS s. The generator has one thread; if that"
  echo "is saturated (usage.loadgen.cpu_pct in the runs), req/s is a lower bound."
  echo "Other processes used up to $others % of a core during these runs; above 30 % the figures are unreliable."
  joined=$(cat "$work"/stream-*.proliferate | grep -o '"seq_mismatch":[0-9]*' | cut -d: -f2 | awk '{ n += $1 } END { print n + 0 }')
  [ "$joined" = 0 ] || echo "$joined deltas were merged for slow readers (seqFrom), which the generator counts as mismatches."
  [ "$wrong" = 0 ] || echo "$wrong OF THESE RUNS HAD ANSWERS OTHER THAN 200."
  if [ $over = 0 ]; then echo "All targets are met."; else echo "TARGETS MISSED: $over (see verdict)."; fi
}

within() { # within TEXT VALUE UNIT TARGET below|above ; prints one figure that is not compared with the ceiling
  local verdict
  verdict=$(awk -v a="$2" -v t="$4" -v how="$5" 'BEGIN { print (how == "below" ? a < t : a > t) ? "ok" : "missed" }')
  [ "$verdict" = ok ] || over=$((over + 1))
  printf "| %-48s | %10.2f %-4s | %-5s %7s | %-7s |\n" "$1" "$2" "$3" "$5" "$4" "$verdict"
  printf '{"cmd":"bench","item":"%s","unit":"%s","proliferate":%s,"target":%s,"verdict":"%s"}\n' "$1" "$3" "$2" "$4" "$verdict" \
    >>"$results.jsonl"
}

sandbox_table() { # the results of `sandbox bench`
  local start bare trip
  start=$(json startMs p50) bare=$(json bareBubblewrapMs p50) trip=$(json roundTripMs p50)
  within "sandbox: start to a ready supervisor, p50" "$start" ms 60 below
  within "sandbox: start to a ready supervisor, p95" "$(json startMs p95)" ms 60 below
  within "sandbox: bare bubblewrap /bin/true, p50" "$bare" ms 60 below
  within "sandbox: start relative to bare bubblewrap" "$(awk -v a="$start" -v b="$bare" 'BEGIN { print a / b }')" x 3 below
  within "sandbox: round trip of the channel, p50" "$trip" ms 1 below
  within "sandbox: throughput of the channel" "$(json megabytesPerSecond)" MB/s 100 above
  within "sandbox: private memory of the supervisor" "$(json supervisorPrivateMib)" MiB 10 below
}

memory_table() { # the memory that one flooding agent and stalled readers can cost; the kernel's part includes both ends of the connections
  within "memory: one flooding agent, peak" "$(figure max 1 peak_mib <(gw_of flood))" MiB 150 below
  within "memory: $STALLED stalled readers, kernel" "$(figure max 0.0009765625 kernel_tcp_kib "$work/stalled.proliferate")" MiB 100 below
  within "memory: $STALLED stalled readers, server's peak" "$(figure max 1 peak_mib <(gw_of stalled))" MiB 200 below
}

gw_of() { # gw_of ITEM ; the usage of the server alone
  grep -o '"gw":{[^}]*}' "$work/$1.proliferate"
}

gate_table() { # calls through the gate relative to bare durable inserts, and duplicate calls relative to new calls
  local name suffix
  for name in SQLite PostgreSQL; do
    if [ $name = SQLite ]; then suffix=; else suffix=-pg; fi
    within "gate, $name: calls / bare inserts" "$(times "tools$suffix.proliferate" "tools$suffix.ceiling")" x 0.4 above
    within "gate, $name: duplicate calls / new calls" "$(times "dup$suffix.proliferate" "tools$suffix.proliferate")" x 5 above
  done
}

action_table() { # the catalog and invocations relative to the ceiling
  local level goal
  for level in "${ACTION_LEVELS[@]}"; do
    for goal in "available 0.3" "deny 0.4" "pending 0.4" "allow 0.5"; do
      within "actions: ${goal% *} / ceiling, $level at once" \
        "$(times "${goal% *}-$level.proliferate" "${goal% *}-$level.ceiling")" x "${goal#* }" above
    done
  done
}

times() { # times FILE FILE ; the ratio of their requests per second
  awk -v a="$(figure median 1 req_per_s "$work/$1")" -v b="$(figure median 1 req_per_s "$work/$2")" 'BEGIN { print a / b }'
}

json() { # json KEY [KEY] ; a number from the results of `sandbox bench`
  if [ $# = 2 ]; then grep -o "\"$1\":{[^}]*}" "$work/sandbox" | grep -o "\"$2\":[0-9.e+-]*" | cut -d: -f2
  else grep -o "\"$1\":[0-9.e+-]*" "$work/sandbox" | cut -d: -f2; fi
}

need_binaries
mkdir -p "$root/bench/results" "$root/target"
work=$(mktemp -d "$root/target/bench.XXXXXX") # on the project's disk, so that both databases use the same one
bare=(env -i PATH="$PATH" HOME="$work") # the servers must not inherit settings from this shell
clean=("${bare[@]}") # the environment of the servers
ceiling_db=$work/ceiling.db postgres_pid=""
trap clean_up EXIT
trap 'exit 130' INT TERM
for side in "${sides[@]}"; do address[$side]=127.0.0.1:$(free_port); done

say "creating the data dirs: one start each, not counted"
in_turn 1 cold first 0
say "cold start to the first GET /health: $COLD_RUNS runs each"
in_turn $COLD_RUNS cold cold 0
say "memory $IDLE_REST s after GET /ready: $IDLE_RUNS runs each"
in_turn $IDLE_RUNS cold idle $IDLE_REST
say "GET /health, $CONCURRENCY connections: $GET_RUNS runs of $GET_SECS s each"
for side in "${sides[@]}"; do start_server "$side"; done
in_turn $GET_RUNS get get
stop_servers
say "sandboxes: $SANDBOXES starts, each beside a bare bubblewrap"
"${clean[@]}" "$proliferate" --data-dir "$work/sandboxes" sandbox bench --count $SANDBOXES --json >"$work/sandbox"
say "streams end to end, clients and deltas per second: ${STREAMS[*]/%/,}"
start_stream
for kind in "${STREAMS[@]}"; do
  read -r clients rate <<<"$kind"
  in_turn $GET_RUNS stream "stream-$clients-$rate" "$clients" "$rate"
done
say "tool calls through the gate, 64 at once: $GET_RUNS runs of $GET_SECS s each, and as many with duplicate calls"
measure_tools ""
stop_servers
say "actions: the catalog, and invocations that are denied, wait or are executed, ${ACTION_LEVELS[*]} at once"
start_stream
measure_actions
stop_servers
say "memory: one flooding agent, and $STALLED stalled readers, in fresh servers"
start_stream
in_turn 1 flood flood
in_turn 1 stalled stalled
stop_servers
say "memory: $HELD live sessions, in fresh servers"
start_stream
in_turn 1 hold hold
stop_servers
say "tool calls again, both sides on one PostgreSQL"
start_on_postgres
measure_tools -pg
stop_servers
for item in cold idle get stream tools dup available deny pending allow flood stalled hold; do cat "$work/$item"[.-]*; done >"$results.runs.jsonl"
echo
table
echo
sandbox_table
gate_table
action_table
memory_table
echo
remarks
say "results: ${results#"$root/"}.jsonl, and every run in ${results#"$root/"}.runs.jsonl"

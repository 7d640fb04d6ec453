#!/usr/bin/env bash
# Runs a command beside a private PostgreSQL and Redis (own folder, free ports, loopback only), and stops both after.
# No server that is already there is touched. The command finds them in TEST_DATABASE_URL and TEST_REDIS_URL.
#   scripts/with-services.sh COMMAND…
set -euo pipefail
. "$(dirname "$0")/postgres.sh"

dir=$(mktemp -d /tmp/proliferate-test.XXXXXX)
chmod 755 "$dir"
redis_pid=""

stop() {
  [ -z "$redis_pid" ] || kill "$redis_pid" 2>/dev/null || true
  stop_postgres "$dir/pg"
  [ -z "$redis_pid" ] || wait "$redis_pid" 2>/dev/null || true
  rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

# fsync off: these rows live for minutes, and what a crash keeps is tested where it counts.
start_postgres "$dir/pg" off
for try in 1 2 3 4 5; do
  redis_port=$(free_port)
  redis-server --bind 127.0.0.1 --port "$redis_port" --save '' --appendonly no --dir "$dir" >"$dir/redis.log" 2>&1 &
  redis_pid=$!
  for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$redis_port") 2>/dev/null && break 2
    kill -0 "$redis_pid" 2>/dev/null || break
    sleep 0.05
  done
  [ "$try" = 5 ] && { cat "$dir/redis.log" >&2; exit 1; }
done

export TEST_DATABASE_URL="postgres://test@127.0.0.1:$pg_port/postgres"
export TEST_REDIS_URL="redis://127.0.0.1:$redis_port"
echo "private PostgreSQL on port $pg_port, Redis on port $redis_port"
"$@"

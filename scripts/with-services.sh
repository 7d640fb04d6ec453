#!/usr/bin/env bash
# Runs a command beside a private PostgreSQL and Redis (own folder, free ports, loopback only), and stops both after.
# No server that is already there is touched. The command finds them in TEST_DATABASE_URL and TEST_REDIS_URL.
#   scripts/with-services.sh COMMAND…
set -euo pipefail

dir=$(mktemp -d /tmp/proliferate-test.XXXXXX)
chmod 755 "$dir"
bin=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb | sort -V | tail -1)")
redis_pid=""
as=()
if [ "$(id -u)" = 0 ]; then # PostgreSQL refuses to run as root
  as=(setpriv --reuid=postgres --regid=postgres --init-groups)
  install -d -o postgres -g postgres "$dir/pg"
else
  mkdir "$dir/pg"
fi

stop() {
  [ -z "$redis_pid" ] || kill "$redis_pid" 2>/dev/null || true
  "${as[@]}" "$bin/pg_ctl" -D "$dir/pg/data" -m immediate stop >/dev/null 2>&1 || true
  [ -z "$redis_pid" ] || wait "$redis_pid" 2>/dev/null || true
  rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

free_port() { # a port nobody listens on; whoever takes it meanwhile makes the start fail, and the next is tried
  local port
  while :; do
    port=$((20000 + RANDOM % 20000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

"${as[@]}" "$bin/initdb" -D "$dir/pg/data" -U test --auth=trust --no-sync -E UTF8 --locale=C >"$dir/initdb.log" 2>&1 ||
  { cat "$dir/initdb.log" >&2; exit 1; }
for try in 1 2 3 4 5; do
  pg_port=$(free_port)
  # fsync off: these rows live for minutes, and what a crash keeps is tested where it counts.
  if "${as[@]}" "$bin/pg_ctl" -D "$dir/pg/data" -l "$dir/pg/log" -w -t 60 \
    -o "-c listen_addresses=127.0.0.1 -p $pg_port -c unix_socket_directories= -c fsync=off -c max_connections=300" \
    start >/dev/null 2>&1; then break; fi
  [ "$try" = 5 ] && { cat "$dir/pg/log" >&2; exit 1; }
done
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

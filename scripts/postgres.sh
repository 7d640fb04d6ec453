# A private PostgreSQL: own directory, free port, loopback only. To be sourced; no server that is already there is touched.
#   start_postgres DIR on|off   fsync on or off; sets pg_port. DIR and all above it must be open to everybody
#                               the same in two steps, between which $DIR/data can be configured:
#   init_postgres DIR
#   run_postgres DIR on|off
#   stop_postgres DIR

pg_bin=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb | sort -V | tail -1)")
pg_as=()
[ "$(id -u)" != 0 ] || pg_as=(setpriv --reuid=postgres --regid=postgres --init-groups) # it refuses to run as root

free_port() { # a port nobody listens on, below those that connections leave from; whoever takes it meanwhile makes the start fail
  local port
  while :; do
    port=$((20000 + RANDOM % 12000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

start_postgres() {
  init_postgres "$1" || return
  run_postgres "$1" "$2"
}

init_postgres() {
  local dir=$1
  if [ ${#pg_as[@]} -gt 0 ]; then install -d -o postgres -g postgres "$dir"; else mkdir "$dir"; fi
  "${pg_as[@]}" "$pg_bin/initdb" -D "$dir/data" -U test --auth=trust --no-sync -E UTF8 --locale=C >"$dir.initdb" 2>&1 ||
    { cat "$dir.initdb" >&2; return 1; }
}

run_postgres() {
  local dir=$1 fsync=$2 try
  for try in 1 2 3 4 5; do
    pg_port=$(free_port)
    if "${pg_as[@]}" "$pg_bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 60 \
      -o "-c listen_addresses=127.0.0.1 -p $pg_port -c unix_socket_directories= -c fsync=$fsync -c max_connections=1000" \
      start >/dev/null 2>&1; then return; fi
  done
  cat "$dir/log" >&2
  return 1
}

stop_postgres() {
  "${pg_as[@]}" "$pg_bin/pg_ctl" -D "$1/data" -m immediate stop >/dev/null 2>&1 || true
}

#!/usr/bin/env bash
# Starts a private PostgreSQL (own directory, free port, loopback only), runs a command, and stops the server again.
# Other servers on this machine stay untouched. The command finds the server in TEST_DATABASE_URL.
#   scripts/with-services.sh COMMAND…
set -euo pipefail
. "$(dirname "$0")/postgres.sh"

dir=$(mktemp -d /tmp/proliferate-test.XXXXXX)
chmod 755 "$dir"

stop() {
  stop_postgres "$dir/pg"
  rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

# fsync off: these rows live for minutes, and the tests of durability do not rely on it.
start_postgres "$dir/pg" off

export TEST_DATABASE_URL="postgres://test@127.0.0.1:$pg_port/postgres"
echo "private PostgreSQL on port $pg_port"
"$@"

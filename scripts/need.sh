#!/usr/bin/env bash
# Installs what is missing for `make up`, `make test` or `make test-cgroup2`, says what it does, and does nothing the second time.
#   scripts/need.sh up|test|cgroup2
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[2m·\033[0m %s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }

OPENCODE_VERSION=$(cat scripts/opencode.version)
PLAYWRIGHT_MCP_VERSION=$(cat scripts/playwright-mcp.version)
RUST=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
packages=()
need() { # need PROGRAM PACKAGE
  have "$1" || [ -x "/usr/sbin/$1" ] || packages+=("$2")
}

fail() { echo "error: $*" >&2; exit 1; }
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; } # at_least WANTED FOUND
have cargo || fail "cargo is missing: install Rust $RUST or newer with rustup"
have npm || fail "npm is missing: install Node 20 or newer"
found=$(cargo --version | cut -d' ' -f2)
at_least "$RUST" "$found" || fail "cargo is $found: Rust $RUST or newer is needed (rustup update)"
found=$(node --version | tr -d v)
at_least 20 "$found" || fail "node is $found: Node 20 or newer is needed"
need g++ build-essential
need git git
need bwrap bubblewrap
need mkfs.btrfs btrfs-progs
need rg ripgrep
if [ "${1:-}" = test ]; then
  ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || packages+=(postgresql)
  need chromium chromium
fi
[ "${1:-}" != cgroup2 ] || need qemu-system-x86_64 qemu-system-x86

if [ ${#packages[@]} -gt 0 ]; then
  say "installing with apt: ${packages[*]}"
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    have sudo || fail "these packages are missing and there is no sudo: apt-get install ${packages[*]}"
    sudo=sudo
  fi
  export DEBIAN_FRONTEND=noninteractive
  $sudo apt-get update -qq
  # Recommended packages of a browser alone are hundreds of megabytes.
  $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

if [ "$(.tools/node_modules/.bin/opencode --version 2>/dev/null || true)" != "$OPENCODE_VERSION" ]; then
  say "installing with npm: opencode-ai $OPENCODE_VERSION into .tools"
  npm install --prefix .tools --no-save --no-package-lock --no-audit --no-fund --silent "opencode-ai@$OPENCODE_VERSION"
fi
# Chromium is hundreds of megabytes and agents work without it, so only tests install it. npm removes packages that an
# install does not name, so this one has a directory of its own.
if ! have chromium; then
  say "agents will have no browser: apt-get install chromium, and run this again, gives them one"
elif [ "$(.tools/browser/node_modules/.bin/playwright-mcp --version 2>/dev/null | grep -o '[0-9.]*$' || true)" != "$PLAYWRIGHT_MCP_VERSION" ]; then
  say "installing with npm: @playwright/mcp $PLAYWRIGHT_MCP_VERSION into .tools/browser"
  PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --prefix .tools/browser --no-save --no-package-lock --no-audit --no-fund --silent "@playwright/mcp@$PLAYWRIGHT_MCP_VERSION"
fi

# The reference server, the conformance suite, the client of the official SDK and the inspector of the Model Context
# Protocol. The suite needs Node 22, so all of it has a directory of its own, which is not on the PATH.
if [ "${1:-}" = test ]; then
  mcp=(@modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/conformance@0.2.0-alpha.10 node@22.23.3
    @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/inspector@2.12.0)
  if [ "$(cat .tools/mcp/installed 2>/dev/null || true)" != "${mcp[*]}" ]; then
    say "installing with npm: ${mcp[*]} into .tools/mcp"
    npm install --prefix .tools/mcp --no-save --no-package-lock --no-audit --no-fund --silent "${mcp[@]}"
    echo "${mcp[*]}" >.tools/mcp/installed
  fi
fi

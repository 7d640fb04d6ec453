# Everything starts here. `make up` runs the product, `make test` proves it, `make check` is for every commit.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help up test test-cgroup2 check cargo-deny bench mutants fuzz audit clean

BIN := target/release/proliferate
# The load generator is a workspace of its own: it must not share a line with what it measures.
LOADGEN := bench/loadgen/Cargo.toml
CARGO_DENY := 0.20.2
# What was installed for us alone is found first.
export PATH := $(CURDIR)/.tools/bin:$(CURDIR)/.tools/node_modules/.bin:$(PATH)

help: ## What there is
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

up: ## Build everything and run it: http://127.0.0.1:8787
	@scripts/need.sh up
	cargo build --release --locked --bin proliferate
	$(BIN) up

test: ## All tests, with a private PostgreSQL
	@scripts/need.sh test
	cargo build --workspace --locked --tests
	scripts/with-services.sh cargo test --workspace --locked --no-fail-fast
	cargo test --locked --manifest-path $(LOADGEN)

test-cgroup2: ## Local sandboxes where control groups are version 2 alone: in an emulated machine, some minutes
	@scripts/need.sh cgroup2
	test=$$(cargo test --workspace --locked --no-run --test local 2>&1 | sed -n 's|.*local/main.rs (\(.*\))|\1|p'); \
	for owner in "" 61234; do GROUP_OWNER=$$owner scripts/cgroup2.sh "$$test" --skip rootless --test-threads=1; done

check: cargo-deny ## Format, lints, tidiness, licences
	cargo fmt --all --check
	cargo fmt --manifest-path $(LOADGEN) --check
	cargo clippy --workspace --locked --all-targets -- -D warnings
	cargo clippy --locked --all-targets --manifest-path $(LOADGEN) -- -D warnings
	cargo test --locked -q -p testkit --test tidy
	cargo deny --log-level error check bans licenses sources

bench: ## Measure, beside a bare ceiling in the same run
	@scripts/need.sh up
	cargo build --release --locked --bin proliferate
	cargo test --release --locked -p store --lib -- --ignored --nocapture ways_to_sqlite
	bench/bench.sh

mutants: ## Break the gate on purpose and see that the tests notice
	@scripts/need.sh test
	scripts/with-services.sh scripts/mutants.sh

FUZZ_SECONDS ?= 3600
fuzz: ## Fuzz what a sandbox can send, an hour for each (FUZZ_SECONDS=60 for less); `make test` does it for seconds
	cargo run --release --locked -p channel --example fuzz $(FUZZ_SECONDS)
	cargo run --release --locked -p egress --example fuzz -- $(FUZZ_SECONDS)
	cargo run --release --locked -p sandboxd --example fuzz -- $(FUZZ_SECONDS)
	cargo run --release --locked -p opencode --example fuzz -- $(FUZZ_SECONDS)
	cargo run --release --locked -p ledger --example fuzz -- $(FUZZ_SECONDS)
	cargo run --release --locked -p policy --example fuzz -- $(FUZZ_SECONDS)

audit: cargo-deny ## Known vulnerabilities of dependencies (needs a network)
	cargo deny check advisories

# The one on the PATH is taken if it is of this version; else it is built into .tools, once.
cargo-deny:
	@[ "$$(cargo deny --version 2>/dev/null)" = "cargo-deny $(CARGO_DENY)" ] || { \
	  scripts/need.sh up; echo "installing cargo-deny into .tools (once; some minutes)"; \
	  cargo install --quiet --locked --root .tools cargo-deny@$(CARGO_DENY); }

clean: ## Remove what was built and installed here
	rm -rf target .tools

#!/usr/bin/env bash
# Breaks the gate on purpose, one promise at a time, in a copy of what is committed here, and expects one test to notice,
# for the right reason. A break that nobody notices is a failure, and so is one that does not fit the code any more.
# `make mutants` calls it; it needs the services that `make test` starts.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# Never the target of anything else: crates of a workspace have the same names wherever it lies, so what is built here would
# be taken for what is not broken. It is kept, as is the copy: a break then costs the crates that it touches.
export CARGO_TARGET_DIR=$root/target/mutants
tree=$CARGO_TARGET_DIR/tree
log=$CARGO_TARGET_DIR/mutants.log
BUILD=1500 TEST=120 # seconds; the first build is that of all dependencies

copy() { # files that are the same keep their time, or everything would be built anew
  [ -d "$tree/.git" ] || git clone -q "$root" "$tree"
  git -C "$tree" fetch -q "$root" HEAD
  git -C "$tree" reset -q --hard FETCH_HEAD
}

tests() { # tests NAME ; runs one test of the gateway
  local test=(cargo test --manifest-path "$tree/Cargo.toml" --locked -p gateway --test it)
  timeout $BUILD "${test[@]}" --no-run >"$log" 2>&1 || { tail -40 "$log" >&2; echo "it does not build" >&2; exit 1; }
  timeout $TEST "${test[@]}" --no-fail-fast -- --exact "$1" >"$log" 2>&1
}

mutant() { # mutant NAME FILE PATTERN REPLACEMENT TEST REASON ; PATTERN is Python's and must fit exactly once
  local name=$1 file=$2 pattern=$3 replacement=$4 test=$5 reason=$6
  copy
  echo "· $name"
  python3 - "$tree/$file" "$pattern" "$replacement" <<'PY'
import re, sys
path, pattern, replacement = sys.argv[1:]
text = open(path).read()
changed, count = re.subn(pattern, lambda _: replacement, text, flags=re.S)
if count != 1:
    sys.exit(f"{path}: the pattern fits {count} times: bring scripts/mutants.sh up to date")
open(path, "w").write(changed)
PY
  if tests "$test"; then
    echo "$name: NOBODY NOTICED ($test)" >&2
    exit 1
  fi
  grep -q "^test $test .*FAILED$" "$log" && grep -qF "$reason" "$log" ||
    { tail -20 "$log" >&2; echo "$name: noticed for another reason than: $reason" >&2; exit 1; }
  echo "  noticed by $test: $reason"
}

copy
echo "· unbroken, to know that the tests can pass"
for test in gate::without_a_ledger_nothing_is_executed contract::sqlite::a_call_under_other_pins_is_denied; do
  tests $test && grep -q "^test $test .*ok$" "$log" || { tail -20 "$log" >&2; echo "$test does not pass" >&2; exit 1; }
done

mutant "the audit is written when there is time" crates/store/src/gate.rs \
  'pub async fn gate_write\(&self, write: GateWrite\) -> Result<Written, StoreError> \{' \
  'pub async fn gate_write(&self, write: GateWrite) -> Result<Written, StoreError> {
        let store = self.clone();
        tokio::spawn(async move { store.gate_write_now(write).await });
        Ok(Written::Done)
    }

    async fn gate_write_now(&self, write: GateWrite) -> Result<Written, StoreError> {' \
  gate::without_a_ledger_nothing_is_executed "a call that is not recorded must not be answered"

mutant "the claim comes after the effect" crates/gate/src/pipeline.rs \
  'Work::Outside\(outside\) => \{' \
  'Work::Outside(outside) => {
                let early = Permit::new(request.caller.org, &request.run.id, Redactor::default());
                let _ = outside.execute(&early, request).await;' \
  gate::without_a_ledger_nothing_is_executed "a call that is not recorded must not be executed"

mutant "pins are not checked" crates/policy/src/decide.rs \
  'visit\(Check::Pins, pins\(policy, request\)\)' \
  'visit(Check::Pins, pins(policy, request).or(Ok(())))' \
  contract::sqlite::a_call_under_other_pins_is_denied "a call under other pins must be denied"

echo "every break was noticed"

#!/usr/bin/env bash
# Breaks the gate on purpose, one promise at a time, in a copy of this checkout, and expects the tests to notice. A break
# that nobody notices is a failure. `make mutants` calls it; it needs the services that `make test` starts.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# A target of its own, kept between runs: dependencies are built once.
export CARGO_TARGET_DIR=${MUTANTS_TARGET:-$root/target/mutants}

mutant() { # mutant NAME FILE PATTERN REPLACEMENT TEST ; a Python pattern, which must fit exactly once
  local name=$1 file=$2 pattern=$3 replacement=$4 test=$5
  rm -rf "$copy/tree"
  git clone -q "$root" "$copy/tree"
  python3 - "$copy/tree/$file" "$pattern" "$replacement" <<'PY'
import re, sys
path, pattern, replacement = sys.argv[1:]
text = open(path).read()
changed, count = re.subn(pattern, lambda _: replacement, text, flags=re.S)
if count != 1:
    sys.exit(f"{path}: the pattern fits {count} times: bring it up to date")
open(path, "w").write(changed)
PY
  echo "· $name"
  (cd "$copy/tree" && cargo test --workspace --locked --no-run -q --test it) || { echo "$name: does not build" >&2; exit 1; }
  if (cd "$copy/tree" && cargo test --workspace --locked -q -p gateway --test it -- "$test") >"$copy/log" 2>&1; then
    echo "$name: NOBODY NOTICED (test $test)" >&2
    exit 1
  fi
  grep -q "FAILED" "$copy/log" || { tail -20 "$copy/log" >&2; exit 1; }
  echo "  noticed by $test"
}

mutant "the audit is written when there is time" crates/gateway/src/gate/pipeline.rs \
  'let written = gate\.store\.gate_write\(gate\.claim\(&call, &decided, refusal\.as_ref\(\)\)\)\.await;' \
  'let (store, write) = (gate.store.clone(), gate.claim(&call, &decided, refusal.as_ref()));
        tokio::spawn(async move { store.gate_write(write).await });
        let written: Result<Written, store::StoreError> = Ok(Written::Done);' \
  gate::without_a_ledger_nothing_is_executed

mutant "the claim comes after the effect" crates/gateway/src/gate/pipeline.rs \
  'let refusal = refused\(&call, &decided\);' \
  'let refusal = refused(&call, &decided);
        if let (None, Some(tool)) = (&refusal, &decided.tool) {
            let _ = tool.execute(app, &Permit::new(call.org, &call.run_id), &call).await;
        }' \
  gate::without_a_ledger_nothing_is_executed

mutant "pins are not checked" crates/policy/src/decide.rs \
  'visit\(Check::Pins, pins\(policy, request\)\)' \
  'visit(Check::Pins, pins(policy, request).or(Ok(())))' \
  gate::what_policy_does_not_allow_is_denied_recorded_and_not_executed

echo "every break was noticed"

//! A cache of recent results for retried calls. A run that has ended never changes, so a cached result stays valid.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;
use proto::OrgId;
use serde_json::Value;

use crate::request::Fingerprint;
use crate::result::CallResult;

/// The number of cached results. Retries come within seconds; older results are read from the database.
const CAPACITY: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);
/// The maximum size of a cached result. A few larger ones would take most of the memory of an idle gateway.
const MAX_SIZE: usize = 4096;

/// A bounded LRU cache.
pub(crate) struct RecentResults(Mutex<LruCache<Key, (Fingerprint, CallResult)>>);

/// The organization and the run id.
type Key = (OrgId, String);

impl RecentResults {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LruCache::new(CAPACITY)))
    }

    /// The result of the same call. `None` also for another caller or content: the database decides whether that is a
    /// conflict.
    pub(crate) fn get(&self, key: &Key, fingerprint: &Fingerprint) -> Option<CallResult> {
        let mut results = self.0.lock();
        let (of, result) = results.get(key)?;
        (of == fingerprint).then(|| result.clone())
    }

    /// Caches a result that is in the database.
    pub(crate) fn insert(&self, key: Key, fingerprint: Fingerprint, result: &CallResult) {
        if size(result) <= MAX_SIZE {
            self.0.lock().put(key, (fingerprint, result.clone()));
        }
    }
}

/// The approximate size of a result in bytes.
fn size(result: &CallResult) -> usize {
    let output = result.output.as_ref();
    let text = output.map_or(0, |output| output.text.len());
    let data = output.and_then(|output| output.data.as_ref());
    let data: usize = data.into_iter().flatten().map(|(name, value)| name.len() + json_size(value)).sum();
    let error = result.reply.error.as_ref().map_or(0, |error| error.message.len());
    text + data + error + result.reply.output_artifacts.iter().map(json_size).sum::<usize>()
}

fn json_size(value: &Value) -> usize {
    let content = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(json_size).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + json_size(value)).sum(),
        _ => 0,
    };
    content + size_of::<Value>()
}

#[cfg(test)]
mod tests {
    use policy::{ActorClass, Claim};
    use proto::http::ToolCallReply;

    use super::*;
    use crate::result::CallOutcome;
    use crate::tool::Output;

    fn key(number: usize) -> Key {
        (OrgId::from(uuid::Uuid::from_u128(1)), format!("run-{number}"))
    }

    fn fingerprint(text: &str, actor: &str) -> Fingerprint {
        let actor = Claim { actor_type: ActorClass::Agent, actor_id: actor.to_owned() };
        (ledger::sha256(text.as_bytes()), actor)
    }

    fn result(text: &str) -> CallResult {
        let reply = ToolCallReply {
            outcome: "success".to_owned(),
            tool_name: "tool".to_owned(),
            operation: "read".to_owned(),
            run_id: None,
            correlation_id: None,
            output_artifacts: Vec::new(),
            response_hash_sha256: None,
            error: None,
        };
        let output = Some(Output { text: text.to_owned(), data: None });
        CallResult { outcome: CallOutcome::Success, reply, output }
    }

    #[test]
    fn a_result_is_for_the_same_request_of_the_same_caller() {
        let results = RecentResults::new();
        results.insert(key(1), fingerprint("read", "ada"), &result("yes"));
        assert_eq!(results.get(&key(1), &fingerprint("read", "ada")), Some(result("yes")));
        for (number, text, actor) in [(1, "read", "bob"), (1, "write", "ada"), (2, "read", "ada")] {
            assert_eq!(results.get(&key(number), &fingerprint(text, actor)), None, "{number} {text} {actor}");
        }
    }

    #[test]
    fn the_least_recently_used_result_is_dropped() {
        let results = RecentResults::new();
        let of = fingerprint("read", "ada");
        for number in 0..=CAPACITY.get() {
            results.insert(key(number), of.clone(), &result("yes"));
            results.insert(key(number), of.clone(), &result("yes"));
        }
        assert_eq!(results.get(&key(0), &of), None);
        assert!(results.get(&key(1), &of).is_some());
        assert_eq!(results.0.lock().len(), CAPACITY.get());
    }

    #[test]
    fn a_large_result_is_not_cached() {
        let results = RecentResults::new();
        let of = fingerprint("read", "ada");
        results.insert(key(1), of.clone(), &result(&"a".repeat(MAX_SIZE + 1)));
        assert_eq!(results.get(&key(1), &of), None);
    }
}

//! Keeps the settings of modes that decided last as they were compiled, because every call would compile the patterns of
//! its action again. A setting is found by its text, so a changed one is compiled anew.

use std::sync::{Arc, LazyLock};

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;

use crate::mode_setting::{ModeSetting, ModeSettingError};

/// The maximum number of settings and patterns that are kept. A pattern takes up to 128 KiB.
const MAX_KEPT: usize = 512;

static SHARED_SETTINGS: LazyLock<Mutex<Settings>> = LazyLock::new(Mutex::default);

/// Returns a setting, compiled now or before.
pub(crate) fn setting(value: &Value) -> Result<Arc<ModeSetting>, ModeSettingError> {
    let text = value.to_string();
    if let Some(kept) = SHARED_SETTINGS.lock().get(&text) {
        return Ok(kept);
    }
    let compiled = Arc::new(ModeSetting::parse(value)?);
    SHARED_SETTINGS.lock().insert(text, compiled.clone());
    Ok(compiled)
}

struct Settings {
    by_text: LruCache<String, Arc<ModeSetting>>,
    /// The sum of the weights of those that are kept.
    weight: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { by_text: LruCache::unbounded(), weight: 0 }
    }
}

impl Settings {
    fn get(&mut self, text: &str) -> Option<Arc<ModeSetting>> {
        self.by_text.get(text).cloned()
    }

    fn insert(&mut self, text: String, compiled: Arc<ModeSetting>) {
        self.weight += weight(&compiled);
        if let Some((_, replaced)) = self.by_text.push(text, compiled) {
            self.weight -= weight(&replaced);
        }
        while self.weight > MAX_KEPT
            && let Some((_, evicted)) = self.by_text.pop_lru()
        {
            self.weight -= weight(&evicted);
        }
    }
}

fn weight(setting: &ModeSetting) -> usize {
    1 + setting.patterns()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with_patterns(number: usize, count: usize) -> Value {
        let patterns: Vec<Value> =
            (0..count).map(|at| json!({"pattern": format!("^{number}-{at}$")})).collect();
        json!({"else": "deny", "rules": [{"when": {"anyOf": patterns}, "mode": "allow"}]})
    }

    #[test]
    fn a_setting_is_compiled_once() {
        let value = with_patterns(1, 2);
        let (first, second) = (setting(&value).unwrap(), setting(&value).unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!Arc::ptr_eq(&first, &setting(&with_patterns(2, 2)).unwrap()), "another setting");
    }

    #[test]
    fn the_settings_that_were_used_last_are_kept_up_to_a_weight() {
        let mut settings = Settings::default();
        let compiled = Arc::new(ModeSetting::parse(&with_patterns(0, 50)).unwrap());
        for number in 0..20 {
            settings.insert(number.to_string(), compiled.clone());
            settings.insert(number.to_string(), compiled.clone());
            assert!(settings.get("0").is_some(), "it was used last");
        }
        assert!(settings.get("1").is_none() && settings.get("19").is_some());
        assert_eq!((settings.weight, settings.by_text.len()), (510, 10));
    }
}

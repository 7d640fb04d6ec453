//! A latency histogram and its summary for result lines.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// A histogram in microseconds, up to ten minutes.
pub struct Latency(Histogram<u64>);

impl Latency {
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds are valid"))
    }

    pub fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record((ns / 1000).max(1));
    }

    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    pub fn summary(&self) -> Value {
        if self.0.is_empty() {
            return Value::Null;
        }
        let ms = |quantile: f64| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        json!({"p50_ms": ms(0.5), "p90_ms": ms(0.9), "p99_ms": ms(0.99), "p999_ms": ms(0.999),
            "max_ms": self.0.max() as f64 / 1000.0, "mean_ms": self.0.mean() / 1000.0})
    }
}

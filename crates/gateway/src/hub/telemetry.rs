//! Counters of a session's activity. They are flushed to the database in increments, and only what was written is
//! subtracted.

use std::collections::BTreeSet;
use std::time::Duration;

use proto::socket::ServerMessage;
use store::{LatestTask, Telemetry as Flush};

/// The number of tool calls remembered, so that a call announced twice counts once.
const MAX_CALLS: usize = 4096;

/// The activity that is not in the database yet.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    calls: BTreeSet<String>,
    tool_calls: u64,
    messages: u64,
    pr_urls: BTreeSet<String>,
    task: Option<String>,
    active: Duration,
    running_since: Option<Duration>,
}

impl Telemetry {
    /// Counts a broadcast message.
    pub(crate) fn observe(&mut self, message: &ServerMessage) {
        match message {
            ServerMessage::ToolStart { tool_call_id, .. } => {
                if self.calls.len() >= MAX_CALLS {
                    self.calls.clear();
                }
                if self.calls.insert(tool_call_id.clone()) {
                    self.tool_calls += 1;
                }
            }
            ServerMessage::ToolMetadata { title: Some(title), .. } => self.task = Some(title.clone()),
            ServerMessage::MessageComplete { .. }
            | ServerMessage::MessageCancelled { message_id: Some(_) } => self.messages += 1,
            ServerMessage::TurnComplete { outcome, .. } => {
                metrics::counter!("proliferate_turns_total", "outcome" => outcome.as_str()).increment(1);
            }
            ServerMessage::TextPartComplete { text, .. } => self.pr_urls.extend(pr_urls(text)),
            _ => {}
        }
    }

    pub(crate) fn prompted(&mut self) {
        self.messages += 1;
    }

    /// Marks the agent as working from now on. A second call changes nothing.
    pub(crate) fn start(&mut self, now: Duration) {
        self.running_since.get_or_insert(now);
    }

    pub(crate) fn stop(&mut self, now: Duration) {
        if let Some(since) = self.running_since.take() {
            self.active += now.saturating_sub(since);
        }
    }

    /// Returns what has to be written, if anything. It stays counted until [`Telemetry::written`].
    pub(crate) fn flush(&mut self, now: Duration) -> Option<Flush> {
        if self.running_since.is_some() {
            self.stop(now);
            self.running_since = Some(now);
        }
        let flush = Flush {
            tool_calls: self.tool_calls,
            messages: self.messages,
            active_seconds: self.active.as_secs(),
            new_pr_urls: self.pr_urls.iter().cloned().collect(),
            latest_task: self.task.clone().map_or(LatestTask::Keep, LatestTask::Set),
        };
        let idle = flush.tool_calls == 0 && flush.messages == 0 && flush.active_seconds == 0;
        let silent = flush.new_pr_urls.is_empty() && self.task.is_none();
        if idle && silent { None } else { Some(flush) }
    }

    /// Subtracts what was written. What was counted in the meantime stays.
    pub(crate) fn written(&mut self, flush: &Flush) {
        self.tool_calls -= flush.tool_calls;
        self.messages -= flush.messages;
        self.active -= Duration::from_secs(flush.active_seconds).min(self.active);
        for url in &flush.new_pr_urls {
            self.pr_urls.remove(url);
        }
        if let LatestTask::Set(task) = &flush.latest_task
            && self.task.as_ref() == Some(task)
        {
            self.task = None;
        }
    }
}

/// The pull requests that a text names: `https://github.com/<owner>/<repo>/pull/<number>`.
fn pr_urls(text: &str) -> Vec<String> {
    const GITHUB_URL: &str = "https://github.com/";
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let mut found = Vec::new();
    for (at, _) in text.match_indices(GITHUB_URL) {
        let mut segments = text[at + GITHUB_URL.len()..].splitn(4, '/');
        let (Some(owner), Some(repo), Some("pull"), Some(rest)) =
            (segments.next(), segments.next(), segments.next(), segments.next())
        else {
            continue;
        };
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let plain = |name: &str| !name.is_empty() && name.len() <= 100 && name.chars().all(named);
        if digits > 0 && digits < 10 && plain(owner) && plain(repo) {
            found.push(format!("{GITHUB_URL}{owner}/{repo}/pull/{}", &rest[..digits]));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_requests_are_found_and_other_links_are_not() {
        let text = "see https://github.com/a/b-c.d/pull/12, https://github.com/a/b/pull/12x\n\
            (https://github.com/x/y/issues/3) https://github.com/x/pull/3 https://github.com/x/y/pull/";
        assert_eq!(pr_urls(text), ["https://github.com/a/b-c.d/pull/12", "https://github.com/a/b/pull/12"]);
    }

    #[test]
    fn counts_during_a_flush_stay_for_the_next_one() {
        let mut telemetry = Telemetry::default();
        let call = |id: &str| ServerMessage::ToolStart {
            message_id: None,
            part_id: "p".into(),
            tool_call_id: id.into(),
            tool: "bash".into(),
            args: serde_json::Value::Null,
        };
        assert!(telemetry.flush(Duration::ZERO).is_none());
        telemetry.start(Duration::from_secs(10));
        telemetry.start(Duration::from_secs(11));
        telemetry.observe(&call("a"));
        telemetry.observe(&call("a"));
        let flush = telemetry.flush(Duration::from_secs(15)).unwrap();
        assert_eq!((flush.tool_calls, flush.messages, flush.active_seconds), (1, 0, 5));
        telemetry.observe(&call("b"));
        telemetry.prompted();
        telemetry.written(&flush);
        telemetry.stop(Duration::from_secs(16));
        let flush = telemetry.flush(Duration::from_secs(99)).unwrap();
        assert_eq!((flush.tool_calls, flush.messages, flush.active_seconds), (1, 1, 1));
        telemetry.written(&flush);
        assert!(telemetry.flush(Duration::from_secs(99)).is_none());
    }
}

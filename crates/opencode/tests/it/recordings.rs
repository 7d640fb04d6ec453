//! Replays streams that were recorded from OpenCode 1.18.33 and compares the messages to clients with
//! reviewed golden files. All invariants are checked on them too.

use std::fs;
use std::path::{Path, PathBuf};

use opencode::event::Event;
use opencode::sse::Decoder;
use opencode::translate::Effect;
use proto::socket::Frame;
use serde_json::Value;

use crate::client_invariants::check;
use crate::harness::Harness;

/// When the recordings were made, so that their timestamps are plausible.
const START: i64 = 1_794_709_000_000;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn recordings() -> Vec<PathBuf> {
    let entries = fs::read_dir(directory("recordings")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")).collect();
    paths.sort();
    paths
}

pub(crate) fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The session of a recording: the first one that is named.
pub(crate) fn session_of(lines: &[Value]) -> String {
    let named = |line: &Value| {
        let properties = &line["event"]["properties"];
        [&properties["sessionID"], &line["body"]["id"]].into_iter().find_map(Value::as_str).map(str::to_owned)
    };
    let in_path = |line: &Value| line["path"].as_str()?.split('/').nth(2).map(str::to_owned);
    lines.iter().find_map(|line| named(line).or_else(|| in_path(line))).unwrap()
}

/// The agent's history at the end of the recording.
pub(crate) fn history_of(lines: &[Value]) -> Option<&Value> {
    lines.iter().rev().map(|line| &line["body"]).find(|body| body.is_array())
}

/// Replays a recording as a hub would process it.
pub(crate) fn replay(lines: &[Value]) -> Harness {
    let mut harness = Harness::new(&session_of(lines));
    let mut settle_at = None;
    for line in lines {
        harness.now =
            START + line["t_ms"].as_f64().map_or(0, |millis| format!("{millis:.0}").parse().unwrap());
        if settle_at.is_some_and(|at| harness.now >= at) && harness.translator.is_busy() {
            harness.reconcile(history_of(lines).unwrap(), false);
        }
        if line["kind"] == "event" {
            let known = harness.effects.len();
            harness.event(&line["event"]);
            if let Some(Effect::Settle { after }) = harness.effects[known..].last() {
                settle_at = Some(harness.now + i64::try_from(after.as_millis()).unwrap());
            }
        }
    }
    if settle_at.is_some() && harness.translator.is_busy() {
        harness.reconcile(history_of(lines).unwrap(), false);
    }
    harness
}

fn format_output(harness: &Harness) -> String {
    let messages =
        harness.emitted.iter().map(|message| serde_json::to_string(&Frame::to_one(message.clone())));
    let mut lines: Vec<String> = messages.map(Result::unwrap).collect();
    lines.extend(harness.effects.iter().map(|effect| format!("{effect:?}")));
    lines.join("\n") + "\n"
}

#[test]
fn recorded_streams_match_their_golden_output() {
    let mut changed = Vec::new();
    for path in recordings() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let harness = replay(&lines(&path));
        check(&harness.emitted);
        let (now, golden) = (format_output(&harness), directory("golden").join(format!("{name}.txt")));
        if fs::read_to_string(&golden).unwrap_or_default() != now {
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.txt"));
            fs::write(&kept, now).unwrap();
            changed.push(format!("diff {} {}", golden.display(), kept.display()));
        }
    }
    assert!(
        changed.is_empty(),
        "review these differences, and copy the new files if they are right:\n{}",
        changed.join("\n")
    );
}

#[test]
fn every_recorded_event_parses() {
    let mut count = 0;
    for path in recordings() {
        for line in lines(&path).iter().filter(|line| line["kind"] == "event") {
            let text = line["event"].to_string();
            assert!(Event::parse(text.as_bytes()).is_ok(), "{text}");
            count += 1;
        }
    }
    assert!(count > 900, "only {count} events were read");
}

#[test]
fn a_recorded_byte_stream_decodes_to_events() {
    let bytes = fs::read(directory("recordings").join("stream.sse")).unwrap();
    let mut decoder = Decoder::default();
    decoder.feed(&bytes);
    let mut count = 0;
    while let Some(data) = decoder.next_event() {
        Event::parse(&data.unwrap()).unwrap();
        count += 1;
    }
    assert_eq!(count, bytes.windows(6).filter(|window| window == b"data: ").count());
    assert!(count > 20 && decoder.buffered_len() == 0, "{count}");
}

#[test]
fn every_finished_text_and_tool_of_a_recording_is_emitted() {
    let mut texts = 0;
    for path in recordings() {
        let lines = lines(&path);
        let harness = replay(&lines);
        let emitted = format_output(&harness);
        for line in lines.iter().filter(|line| line["event"]["type"] == "message.part.updated") {
            let part = &line["event"]["properties"]["part"];
            if part["type"] == "text" && part["time"]["end"].is_i64() {
                let text = format!(r#""text":{}"#, part["text"]);
                assert!(emitted.contains(&text), "{}: {text}", path.display());
                texts += 1;
            }
            if part["type"] == "tool" {
                assert!(emitted.contains(part["callID"].as_str().unwrap()), "{}", path.display());
            }
        }
    }
    assert!(texts > 30, "{texts}");
}

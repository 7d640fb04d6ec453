//! Streams that were recorded from OpenCode 1.18.33 are replayed; what clients would have seen is compared with
//! what was looked through once and kept. Every invariant is checked on them too.

use std::fs;
use std::path::{Path, PathBuf};

use opencode::event::Event;
use opencode::sse::Decoder;
use opencode::translate::Effect;
use proto::socket::Frame;
use serde_json::Value;

use crate::promises::check;
use crate::stage::Stage;

/// When the recordings were made, so that times in them make sense.
const START: i64 = 1_794_709_000_000;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn recordings() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder("recordings")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")).collect();
    paths.sort();
    paths
}

pub(crate) fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The session that a recording is about: the first one that is named.
pub(crate) fn session_of(lines: &[Value]) -> String {
    let named = |line: &Value| {
        let properties = &line["event"]["properties"];
        [&properties["sessionID"], &line["body"]["id"]].into_iter().find_map(Value::as_str).map(str::to_owned)
    };
    let in_path = |line: &Value| line["path"].as_str()?.split('/').nth(2).map(str::to_owned);
    lines.iter().find_map(|line| named(line).or_else(|| in_path(line))).unwrap()
}

/// What the agent remembered when the recording was over.
pub(crate) fn history_of(lines: &[Value]) -> Option<&Value> {
    lines.iter().rev().map(|line| &line["body"]).find(|body| body.is_array())
}

/// Plays a recording as a hub would.
pub(crate) fn replay(lines: &[Value]) -> Stage {
    let mut stage = Stage::new(&session_of(lines));
    let mut settle_at = None;
    for line in lines {
        stage.now = START + line["t_ms"].as_f64().map_or(0, |millis| format!("{millis:.0}").parse().unwrap());
        if settle_at.is_some_and(|at| stage.now >= at) && stage.translator.is_busy() {
            stage.reconcile(history_of(lines).unwrap(), false);
        }
        if line["kind"] == "event" {
            let known = stage.effects.len();
            stage.event(&line["event"]);
            if let Some(Effect::Settle { after }) = stage.effects[known..].last() {
                settle_at = Some(stage.now + i64::try_from(after.as_millis()).unwrap());
            }
        }
    }
    if settle_at.is_some() && stage.translator.is_busy() {
        stage.reconcile(history_of(lines).unwrap(), false);
    }
    stage
}

fn shown(stage: &Stage) -> String {
    let messages = stage.said.iter().map(|message| serde_json::to_string(&Frame::to_one(message.clone())));
    let mut lines: Vec<String> = messages.map(Result::unwrap).collect();
    lines.extend(stage.effects.iter().map(|effect| format!("{effect:?}")));
    lines.join("\n") + "\n"
}

#[test]
fn recorded_streams_say_to_clients_what_they_always_said() {
    let mut changed = Vec::new();
    for path in recordings() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let stage = replay(&lines(&path));
        check(&stage.said);
        let (now, golden) = (shown(&stage), folder("golden").join(format!("{name}.txt")));
        if fs::read_to_string(&golden).unwrap_or_default() != now {
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.txt"));
            fs::write(&kept, now).unwrap();
            changed.push(format!("diff {} {}", golden.display(), kept.display()));
        }
    }
    assert!(changed.is_empty(), "look at these, and copy what is right:\n{}", changed.join("\n"));
}

#[test]
fn every_recorded_event_is_understood() {
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
fn the_bytes_of_a_real_stream_are_events() {
    let bytes = fs::read(folder("recordings").join("stream.sse")).unwrap();
    let mut decoder = Decoder::default();
    decoder.feed(&bytes);
    let mut count = 0;
    while let Some(data) = decoder.next_event() {
        Event::parse(&data.unwrap()).unwrap();
        count += 1;
    }
    assert_eq!(count, bytes.windows(6).filter(|window| window == b"data: ").count());
    assert!(count > 20 && decoder.held() == 0, "{count}");
}

#[test]
fn every_finished_text_and_tool_of_a_recording_was_said() {
    let mut texts = 0;
    for path in recordings() {
        let lines = lines(&path);
        let stage = replay(&lines);
        let said = shown(&stage);
        for line in lines.iter().filter(|line| line["event"]["type"] == "message.part.updated") {
            let part = &line["event"]["properties"]["part"];
            if part["type"] == "text" && part["time"]["end"].is_i64() {
                let text = format!(r#""text":{}"#, part["text"]);
                assert!(said.contains(&text), "{}: {text}", path.display());
                texts += 1;
            }
            if part["type"] == "tool" {
                assert!(said.contains(part["callID"].as_str().unwrap()), "{}", path.display());
            }
        }
    }
    assert!(texts > 30, "{texts}");
}

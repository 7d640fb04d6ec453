//! Arbitrary policy files, and the invariants that hold for any content.

use policy::{
    Action, ActorClass, Claim, Files, Outcome, Policy, PolicyError, Request, Risk, RunState, decide, diff,
};
use testkit::fuzz::{Shape, Target, encode, kept};

pub(crate) type Load = fn(Files<'_>) -> Result<Policy, PolicyError>;

pub(crate) const POLICY: Target<'_> = Target {
    name: "policy",
    run: &|input, _| policy_with(Policy::load, input),
    corpus: &|| kept(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/policy")),
    write: encode,
    shape: Shape::text(
        &[
            "lanes:\n",
            "  - lane_id: x\n",
            "roles: [R]",
            "tools: ['*']",
            "tools: [x]",
            "%%%\n",
            "version: '1'\n",
            "scope: {}",
            "requires: [a]",
            "prohibits: [a]",
            "permits: [bypass_audit]",
            "permits: [a]",
            "override: {max_minutes: 60}",
            "examples:\n",
            "match:\n",
            "prohibitions:\n",
            "rule_id: x",
            "&a ",
            "*a",
            "!!str ",
            "---\n",
            "? ",
            ": ",
            "- ",
            "[",
            "]",
            "{",
            "}",
            "|\n",
            ">\n",
            "\"",
            "'",
            "#",
            "\t",
            "\n",
            "  ",
            "\u{feff}",
            "\r\n",
            "<<: ",
            "~",
            "\\x00",
            "%YAML 1.2\n",
            "name: a\n",
            "url: https://h\n",
            "auth: none\n",
            "schema: {}\n",
            "writes: {table: t, mode: append}\n",
            "é",
            "\u{85}",
            "\u{2028}",
            ",",
        ],
        8192,
    ),
};

/// Checks any loader; the tests plant bugs here. A line of percent signs separates the three files.
pub(crate) fn policy_with(load: Load, input: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(input);
    let mut files = text.split("%%%\n");
    let files =
        Files { lanes: files.next(), roles: Some(files.next().unwrap_or_default()), tools: files.next() };
    let policy = match load(files) {
        Ok(policy) => policy,
        Err(error) => return check_refusal(&files, &error),
    };
    let lanes = files.lanes.unwrap_or_default();
    let ensure = |kept: bool, text: &str| if kept { Ok(()) } else { Err(text.to_owned()) };
    let anchors =
        |text: &str| text.lines().any(|line| line.trim_start().starts_with("- &") || line.contains(": &"));
    ensure(!anchors(lanes) || lanes.contains(['\'', '"', '|', '>', '#']), "an anchor was accepted")?;
    ensure(
        policy.pins() == load(files).map_err(|error| error.to_string())?.pins(),
        "loading the same file again changed its pin",
    )?;
    ensure(diff(&policy, &policy).is_empty(), "a policy differs from itself")?;
    for lane in policy.lanes() {
        let open = |role: &String| policy.role(role).is_some_and(|role| role.lanes.contains(&lane.id));
        ensure(lane.roles.iter().all(open), "lanes and roles disagree")?;
        ensure(lanes.contains(lane.id.as_str()), "the policy has a lane that is not in the file")?;
        ensure(
            !lane.permits.iter().any(|flag| flag.as_str() == "bypass_audit"),
            "the audit can be bypassed",
        )?;
    }
    let stranger = decide(&policy, &unknown_caller());
    ensure(stranger.outcome == Outcome::Deny, "a caller with an unknown role was allowed")?;
    Ok(format!(
        "{} lanes {} roles {} tools {}",
        policy.lanes().count(),
        policy.roles().count(),
        policy.tools().count(),
        stranger.rule_id
    ))
}

fn check_refusal(files: &Files<'_>, error: &PolicyError) -> Result<String, String> {
    let text = match error.file {
        "lanes.yaml" => files.lanes,
        "roles.yaml" => files.roles,
        _ => files.tools,
    };
    // The parser may report the line after the last one.
    let breaks = |c: char| matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let lines = text.unwrap_or_default().matches(breaks).count() + 2;
    if error.line == 0 || error.line > lines {
        return Err(format!("line {} of {lines} does not exist", error.line));
    }
    if error.message.chars().count() > 400 || error.message.contains(char::is_control) {
        return Err("the message is too long or has control characters".to_owned());
    }
    Ok(format!(
        "{} {}",
        error.file,
        error.message.chars().filter(char::is_ascii_alphabetic).take(40).collect::<String>()
    ))
}

fn unknown_caller() -> Request {
    Request {
        actor: Claim { actor_type: ActorClass::Agent, actor_id: "unknown_caller".to_owned() },
        claimed: None,
        role: "this role is in no file".to_owned(),
        lane: "x".to_owned(),
        action: Action::Tool {
            tool_name: "x".to_owned(),
            operation: "x".to_owned(),
            risk: Risk::Read,
            registered: true,
            writes: None,
        },
        scope: [].into(),
        refs: Vec::new(),
        flags: [].into(),
        run: RunState::New,
        demanded: None,
        mode: None,
        locked: false,
        grant: None,
    }
}

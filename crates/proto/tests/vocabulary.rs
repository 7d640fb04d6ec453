//! The string enums and ids: every text written by hand, invalid ones rejected, and their API schemas.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]

use std::fmt::Debug;
use std::str::FromStr;

use proto::http::{FileKind, RunState, TokenSource, UsageBy};
use proto::socket::{
    AutoStartMode, CloseCode, GitAction, GitCode, MessageRole, MessageSource, QuestionKind, QuestionState,
    SnapshotTarget, ToolStatus, TurnOutcome, WireStatus,
};
use proto::{
    ActionMode, AutomationRunStatus, ClientType, CompletionOutcome, ConfigurationKind, ConfigurationStatus,
    DisplayStatus, InvalidId, InvocationStatus, ModeSource, OrgId, Origin, Outcome, PauseReason, PromptState,
    RepoSource, Resolution, Risk, Role, RunEventKind, SandboxMode, SessionId, SessionStatus, SessionType,
    TitleSource, TitleStatus, TriggerEventStatus, TriggerKind, UnknownWord, WaitingFor, WebhookScheme,
    WorkflowState,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use utoipa::{PartialSchema, ToSchema};

/// Asserts that an enum has exactly these values in every way of parsing and formatting them.
fn check<T>(all: &[T], words: &str)
where
    T: Copy
        + Debug
        + PartialEq
        + ToString
        + FromStr<Err = UnknownWord>
        + TryFrom<String, Error = UnknownWord>,
    T: for<'a> TryFrom<&'a str, Error = UnknownWord> + Serialize + DeserializeOwned + PartialSchema,
{
    let words: Vec<&str> = words.split(' ').collect();
    let texts: Vec<String> = all.iter().map(T::to_string).collect();
    assert_eq!(texts, words);
    for (value, word) in all.iter().zip(&words) {
        assert_eq!(word.parse::<T>().as_ref(), Ok(value));
        assert_eq!(T::try_from(*word).as_ref(), Ok(value));
        assert_eq!(T::try_from((*word).to_owned()).as_ref(), Ok(value));
        assert_eq!(serde_json::to_value(value).unwrap(), json!(word));
        assert_eq!(&serde_json::from_value::<T>(json!(word)).unwrap(), value);
        assert!(word.to_uppercase() == *word || word.to_uppercase().parse::<T>().is_err());
    }
    let error = serde_json::from_value::<T>(json!("nonsense")).unwrap_err().to_string();
    assert!(error.contains("nonsense") && error.contains(&words.join(", ")), "{error}");
    assert!(serde_json::from_value::<T>(json!(0)).is_err());
    assert_eq!(serde_json::to_value(T::schema()).unwrap(), json!({"type": "string", "enum": words}));
}

#[test]
fn each_enum_has_exactly_its_values() {
    check(SessionStatus::ALL, "pending starting running paused stopped suspended failed");
    check(SessionType::ALL, "coding setup cli");
    check(UsageBy::ALL, "day model session");
    check(FileKind::ALL, "file directory symlink other");
    check(ClientType::ALL, "web slack cli automation");
    check(WebhookScheme::ALL, "generic github linear");
    check(TriggerKind::ALL, "manual webhook cron");
    check(TriggerEventStatus::ALL, "queued processing completed failed skipped");
    check(AutomationRunStatus::ALL, "queued ready running succeeded failed needs_human timed_out cancelled");
    check(CompletionOutcome::ALL, "succeeded failed needs_human");
    check(Resolution::ALL, "succeeded failed");
    check(RunEventKind::ALL, "created transition completion waiting assignment resolution");
    check(WaitingFor::ALL, "question");
    check(Origin::ALL, "web cli");
    check(RepoSource::ALL, "github git local");
    check(ConfigurationKind::ALL, "manual managed cli");
    check(ConfigurationStatus::ALL, "pending building default ready failed");
    check(QuestionState::ALL, "open answered rejected");
    check(QuestionKind::ALL, "question permission");
    check(PromptState::ALL, "queued dispatched answered cancelled failed");
    check(
        PauseReason::ALL,
        "inactivity orphaned manual snapshot_failed credit_limit payment_failed overage_cap suspended \
         automation_completed",
    );
    check(Outcome::ALL, "completed succeeded failed needs_human");
    check(TitleSource::ALL, "prompt model person");
    check(TitleStatus::ALL, "generating");
    check(SandboxMode::ALL, "immediate deferred");
    check(DisplayStatus::ALL, "active idle recovering blocked paused completed failed");
    check(Role::ALL, "member admin owner");
    check(Risk::ALL, "read write danger");
    check(ActionMode::ALL, "allow require_approval deny");
    check(ModeSource::ALL, "automation_override org_default inferred_default");
    check(WorkflowState::ALL, "waiting_for_approval approved");
    check(InvocationStatus::ALL, "pending approved executing completed failed denied expired unknown");
    check(TokenSource::ALL, "user cli service sandbox");
    check(RunState::ALL, "running terminated");
}

#[test]
fn each_socket_enum_has_exactly_its_values() {
    check(WireStatus::ALL, "creating resuming running paused stopped error migrating");
    check(MessageRole::ALL, "user assistant");
    check(MessageSource::ALL, "slack web api cli automation");
    check(ToolStatus::ALL, "pending running completed error");
    check(SnapshotTarget::ALL, "configuration session");
    check(TurnOutcome::ALL, "ok cancelled error");
    check(AutoStartMode::ALL, "test start");
    check(GitAction::ALL, "get_status create_branch commit push create_pr");
    check(
        GitCode::ALL,
        "SUCCESS NOTHING_TO_COMMIT NO_REMOTE NOT_A_REPO SHALLOW_PUSH_FAILED AUTH_FAILED GH_NOT_AVAILABLE \
         NOT_GITHUB_REMOTE BRANCH_EXISTS MERGE_CONFLICT REPO_BUSY MULTIPLE_REMOTES UNKNOWN_ERROR",
    );
}

#[test]
fn long_unknown_values_are_truncated() {
    let error = "ä".repeat(100_000).parse::<Role>().unwrap_err();
    assert_eq!(error.given.chars().count(), 40);
    assert_eq!(error.to_string().matches('ä').count(), 40);
}

#[test]
fn ids_have_one_spelling() {
    const TEXT: &str = "0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40";
    let session: SessionId = TEXT.parse().unwrap();
    assert_eq!(TEXT.to_uppercase().parse::<SessionId>(), Ok(session));
    assert_eq!((session.to_string(), format!("{session:?}")), (TEXT.to_owned(), TEXT.to_owned()));
    assert_eq!(SessionId::from(session.uuid()), session);
    assert_eq!(serde_json::to_value(session).unwrap(), json!(TEXT));
    assert_eq!(serde_json::from_value::<SessionId>(json!(TEXT)).unwrap(), session);
}

#[test]
fn malformed_ids_are_rejected_without_echoing_them() {
    let wrong = [
        "",
        "s1",
        "0190f5d27c3e7a1180005b1f6c2d9e40",
        "{0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40}",
        "urn:uuid:0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40",
        " 0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40",
        "0190f5d2-7c3e-7a11-8000-5b1f6c2d9e4g",
        "0190f5d27-c3e-7a11-8000-5b1f6c2d9e40",
        "0190f5d2-7c3e-7a11-8000-5b1f6c2d9e4\u{e9}",
    ];
    for text in wrong {
        assert_eq!(text.parse::<OrgId>(), Err(InvalidId { kind: "organization" }), "{text:?}");
        assert!(serde_json::from_value::<OrgId>(json!(text)).is_err(), "{text:?}");
    }
    let message = "hunter2".parse::<SessionId>().unwrap_err().to_string();
    assert!(message.contains("session id") && !message.contains("hunter2"), "{message}");
}

#[test]
fn ids_are_described_as_uuids() {
    let schema = serde_json::to_value(SessionId::schema()).unwrap();
    assert_eq!((&schema["type"], &schema["format"]), (&json!("string"), &json!("uuid")));
    assert_eq!(SessionId::name(), "SessionId");
}

#[test]
fn close_codes_match_what_clients_expect() {
    let close = |c: CloseCode| (c.code, c.reason);
    assert_eq!(close(CloseCode::OWNERSHIP_TRANSFERRED), (1001, "Session ownership transferred"));
    assert_eq!(close(CloseCode::SETUP_FAILED), (1011, "Failed to setup connection"));
    assert_eq!(close(CloseCode::SLOW_CONSUMER), (1013, "slow consumer"));
}

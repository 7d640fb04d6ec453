//! Request and response bodies of login, members, API keys, tickets, secrets and readiness.

use chrono::{DateTime, Utc};
use proto::Role;
use proto::http::{
    AddMember, ApiKeyEntry, ApiKeyList, Check, CreateKey, CreateTicket, KeyScope, LoginRequest, MemberEntry,
    MemberList, NewKey, NewTicketReply, Readiness, SecretItem, SecretList, SecretOwner, SecretPurpose,
    SecretScope, SetRole, SetSecret, SetSecretReply, TicketKind,
};

use super::{check, id, json};

fn ten_oclock() -> DateTime<Utc> {
    DateTime::from_timestamp(1_771_581_600, 0).unwrap()
}

#[test]
fn ready_only_if_all_checks_pass() {
    let part = |name: &str, ok| Check { name: name.into(), ok, detail: "SQLite".into() };
    let text = r#"{"ready":false,"checks":[{"name":"database","ok":true,"detail":"SQLite"},{"name":"coordination","ok":false,"detail":"SQLite"}]}"#;
    check(text, &Readiness::from_checks(vec![part("database", true), part("coordination", false)]));
    assert!(Readiness::from_checks(vec![part("database", true)]).ready);
}

#[test]
fn members() {
    let member = MemberEntry {
        user_id: id(1),
        email: "ada@example.com".into(),
        name: "Ada".into(),
        role: Role::Admin,
        created_at: ten_oclock(),
    };
    let text = r#"{"members":[{"userId":"00000000-0000-0000-0000-000000000001","email":"ada@example.com","name":"Ada","role":"admin","createdAt":"2026-02-20T10:00:00.000Z"}]}"#;
    check(text, &MemberList { members: vec![member] });
    check(
        r#"{"email":"ada@example.com","role":"member"}"#,
        &AddMember { email: "ada@example.com".into(), name: None, role: Role::Member },
    );
    check(r#"{"role":"owner"}"#, &SetRole { role: Role::Owner });
    assert!(serde_json::from_str::<SetRole>(r#"{"role":"root"}"#).is_err());
}

#[test]
fn listed_keys_do_not_contain_the_key() {
    let key = ApiKeyEntry {
        id: id(2),
        user_id: id(1),
        name: "ci".into(),
        scope: KeyScope::Mcp,
        hint: "plk_a1b2c3".into(),
        created_at: ten_oclock(),
        revoked_at: None,
    };
    let text = r#"{"keys":[{"id":"00000000-0000-0000-0000-000000000002","userId":"00000000-0000-0000-0000-000000000001","name":"ci","scope":"mcp","hint":"plk_a1b2c3","createdAt":"2026-02-20T10:00:00.000Z","revokedAt":null}]}"#;
    check(text, &ApiKeyList { keys: vec![key] });
    let full = CreateKey { name: "ci".into(), scope: KeyScope::Full };
    check(r#"{"name":"ci","scope":"full"}"#, &full);
    assert_eq!(serde_json::from_str::<CreateKey>(r#"{"name":"ci"}"#).unwrap(), full, "the default");
    let new = NewKey { id: id(2), key: "plk_x".into() };
    let text = r#"{"id":"00000000-0000-0000-0000-000000000002","key":"plk_x"}"#;
    assert_eq!(serde_json::to_value(&new).unwrap(), json(text));
}

#[test]
fn tickets_and_logins() {
    check(
        r#"{"sessionId":"00000000-0000-0000-0000-000000000003","kind":"socket"}"#,
        &CreateTicket { session_id: id(3), kind: TicketKind::Socket },
    );
    let reply = NewTicketReply { id: id(4), ticket: "plt_x".into(), expires_at: ten_oclock() };
    let text = r#"{"id":"00000000-0000-0000-0000-000000000004","ticket":"plt_x","expiresAt":"2026-02-20T10:00:00.000Z"}"#;
    assert_eq!(serde_json::to_value(&reply).unwrap(), json(text));
    let login: LoginRequest = serde_json::from_str(r#"{"code":"pll_x"}"#).unwrap();
    assert_eq!(login.code, "pll_x");
}

#[test]
fn secrets_are_written_with_and_read_without_value() {
    let set: SetSecret =
        serde_json::from_str(r#"{"value":"v","repoId":"00000000-0000-0000-0000-000000000005"}"#).unwrap();
    assert_eq!((set.value.as_str(), set.purpose), ("v", SecretPurpose::Platform));
    assert_eq!(set.owner.repo_id, Some(id(5)));
    let item = SecretItem {
        name: "TOKEN".into(),
        purpose: SecretPurpose::Env,
        scope: SecretScope::Org,
        owner: SecretOwner::default(),
        created_at: ten_oclock(),
        updated_at: ten_oclock(),
    };
    let text = r#"{"secrets":[{"name":"TOKEN","purpose":"env","scope":"org","createdAt":"2026-02-20T10:00:00.000Z","updatedAt":"2026-02-20T10:00:00.000Z"}]}"#;
    check(text, &SecretList { secrets: vec![item] });
    check(r#"{"created":true}"#, &SetSecretReply { created: true });
}

//! The rows that most tests start with, and short names for their ids, hashes and times.

use chrono::{DateTime, TimeDelta, Utc};
use proto::socket::SnapshotTarget;
use proto::{
    ClientType, ConfigurationId, OrgId, Outcome, RepoId, Role, SessionId, SessionStatus, SessionType, UserId,
};
use store::{NewMember, NewOrg, NewSession, NewSnapshot, Owner, SessionEnd, Store, TokenHash};
use uuid::Uuid;

use crate::backend::Backend;

/// The id that raw SQL calls `#number`.
pub(crate) fn id<T: From<Uuid>>(number: u8) -> T {
    Uuid::from_u128(number.into()).into()
}

/// The hash that raw SQL calls `@number`.
pub(crate) fn hash(number: u8) -> TokenHash {
    [number; 32]
}

/// This many seconds after the start of a test's timeline.
pub(crate) fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_750_000_000, 0).unwrap() + TimeDelta::seconds(seconds)
}

pub(crate) async fn org(store: &Store, number: u8) -> OrgId {
    let org = NewOrg { id: id(number), name: format!("org {number}"), at: at(number.into()) };
    store.create_org(org).await.unwrap();
    id(number)
}

/// A new membership of the user `number` with the address `email`.
pub(crate) fn membership(org_id: OrgId, number: u8, email: &str, role: Role) -> NewMember {
    let email = email.to_owned();
    NewMember { user_id: id(number), name: email.clone(), email, org_id, role, at: at(number.into()) }
}

pub(crate) async fn member(store: &Store, org: OrgId, number: u8, role: Role) -> UserId {
    store.add_member(membership(org, number, &format!("user{number}@example.com"), role)).await.unwrap()
}

/// A new session.
pub(crate) fn new_session(org_id: OrgId, number: u8) -> NewSession {
    let new = NewSession::new(id(number), org_id, SessionType::Coding, "local", at(number.into()));
    NewSession { client_type: Some(ClientType::Web), ..new }
}

pub(crate) async fn session(store: &Store, org: OrgId, number: u8) -> SessionId {
    store.create_session(new_session(org, number)).await.unwrap();
    id(number)
}

/// Grants ownership of a session.
pub(crate) async fn own(store: &Store, session: SessionId) -> Owner {
    store.own_session(session, "one").await.unwrap().owner
}

/// An end that a person requested.
pub(crate) fn ending(at: DateTime<Utc>) -> SessionEnd {
    SessionEnd {
        status: SessionStatus::Stopped,
        stop_reason: Some("asked".to_owned()),
        pause_reason: None,
        outcome: Some(Outcome::Completed),
        at,
    }
}

/// A new snapshot.
pub(crate) fn snapshot(id: &str, target: SnapshotTarget) -> NewSnapshot {
    let (run_id, sandbox_provider) = (format!("run of {id}"), "local".to_owned());
    NewSnapshot { id: id.to_owned(), target, sandbox_provider, run_id, at: at(8) }
}

/// A repository `number` of the organization `org`.
pub(crate) async fn repo(backend: &Backend, org: u8, number: u8) -> RepoId {
    let sql = format!(
        "INSERT INTO repos (id, org_id, name, source, url, default_branch, branch_given, is_private, created_at)
        VALUES (#{number}, #{org}, 'app', 'git', 'https://example.com/{number}', 'main', false, false, '2025-06-15T00:00:00Z')"
    );
    backend.raw().await.execute(&sql).await.unwrap();
    id(number)
}

/// A configuration `number` of the organization `org`.
pub(crate) async fn configuration(backend: &Backend, org: u8, number: u8) -> ConfigurationId {
    let sql = format!(
        "INSERT INTO configurations (id, org_id, name, kind, status, sandbox_provider, created_at, updated_at)
        VALUES (#{number}, #{org}, 'app', 'manual', 'ready', 'local', '2025-06-15T00:00:00Z', '2025-06-15T00:00:00Z')"
    );
    backend.raw().await.execute(&sql).await.unwrap();
    id(number)
}

/// The results of the same call from `callers` concurrent tasks.
pub(crate) async fn together<T, Call, Work>(callers: usize, call: Call) -> Vec<T>
where
    T: Send + 'static,
    Call: Fn(usize) -> Work,
    Work: Future<Output = T> + Send + 'static,
{
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(callers));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (start, work) = (start.clone(), call(caller));
            tokio::spawn(async move {
                start.wait().await;
                work.await
            })
        })
        .collect();
    let mut results = Vec::with_capacity(callers);
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

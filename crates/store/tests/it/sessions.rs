//! Creating, finding, listing, renaming and deleting sessions, and the limit of live ones.

use proto::http::AgentConfig;
use proto::{ClientType, Origin, RepoId, Role, SessionId, SessionStatus, SessionType};
use store::{NewSession, SessionCursor, SessionFilter, SessionRecord, Starts, Store, StoreError};
use uuid::Uuid;

use crate::backend::{Backend, on_both};
use crate::world::{at, configuration, id, member, new_session, org, own, repo, session, together};

on_both! {
    a_session_is_read_as_it_was_created
    a_session_needs_an_organization_and_its_own_id
    another_organization_sees_and_changes_nothing
    a_list_has_live_sessions_first_and_then_the_latest_used
    a_list_is_filtered
    pages_follow_each_other_without_loss_or_repetition
    an_organization_cannot_exceed_its_session_limit
    a_session_without_a_sandbox_counts_for_ten_minutes
    a_configuration_has_one_setup_session_at_a_time
    a_deleted_session_leaves_its_children
    a_deleted_session_is_found_until_its_owner_has_removed_it
}

async fn a_session_is_read_as_it_was_created(b: &Backend) {
    let one = org(&b.store, 1).await;
    let ada = member(&b.store, one, 10, Role::Owner).await;
    let setup = configuration(b, 1, 30).await;
    let parent = session(&b.store, one, 40).await;
    let mut metadata = proto::JsonObject::new();
    metadata.insert("threadTs".to_owned(), "1.2\0".into());
    let made = NewSession {
        created_by: Some(ada),
        configuration_id: Some(setup),
        parent_session_id: Some(parent),
        client_type: Some(ClientType::Cli),
        client_metadata: Some(metadata),
        origin: Origin::Cli,
        starts: Starts::Now,
        title: Some("a title".to_owned()),
        initial_prompt: Some("do it\0".to_owned()),
        agent_config: Some(AgentConfig { model_id: Some("opus".to_owned()), ..AgentConfig::default() }),
        local_path_hash: Some("abc".to_owned()),
        snapshot_id: Some("snap".to_owned()),
        budget_micros: Some(5),
        ..NewSession::new(id(41), one, SessionType::Setup, "local", at(41))
    };
    b.store.create_session(made).await.unwrap();
    let row = b.store.session(one, id(41)).await.unwrap().unwrap();
    assert_eq!(
        (row.id, row.org_id, row.created_by, row.parent_session_id),
        (id(41), one, Some(ada), Some(parent))
    );
    assert_eq!((row.configuration_id, row.configuration_name.as_deref()), (Some(setup), Some("app")));
    assert_eq!(
        (row.status, row.session_type, row.origin),
        (SessionStatus::Starting, SessionType::Setup, Origin::Cli)
    );
    assert_eq!(row.client_type, Some(ClientType::Cli));
    assert_eq!(row.client_metadata.unwrap()["threadTs"], "1.2\u{fffd}");
    assert_eq!(
        (row.title.as_deref(), row.initial_prompt.as_deref()),
        (Some("a title"), Some("do it\u{fffd}"))
    );
    assert_eq!(row.agent_config.unwrap().model_id.as_deref(), Some("opus"));
    assert_eq!(row.local_path_hash.as_deref(), Some("abc"));
    assert_eq!((row.snapshot_id.as_deref(), row.budget_micros), (Some("snap"), Some(5)));
    assert_eq!((row.sandbox_id, row.sandbox_generation, row.transcript_seq), (None, 0, 0));
    assert_eq!((row.pr_urls.len(), row.metrics.tool_calls), (0, 0));
    assert_eq!((row.started_at, row.last_activity_at, row.ended_at), (at(41), at(41), None));
    assert_eq!(b.store.session_any(parent).await.unwrap().unwrap().status, SessionStatus::Pending);
    assert!(b.store.session_any(id(99)).await.unwrap().is_none());
}

async fn a_session_needs_an_organization_and_its_own_id(b: &Backend) {
    let (one, _) = (org(&b.store, 1).await, org(&b.store, 2).await);
    session(&b.store, one, 40).await;
    let foreign = configuration(b, 2, 31).await;
    let twice = b.store.create_session(new_session(one, 40)).await;
    assert!(matches!(twice, Err(StoreError::Taken("this session"))), "{twice:?}");
    let wrong = [
        new_session(id(9), 41),
        NewSession { created_by: Some(id(99)), ..new_session(one, 42) },
        NewSession { configuration_id: Some(foreign), ..new_session(one, 43) },
        NewSession { parent_session_id: Some(id(40)), ..new_session(id(2), 44) },
    ];
    for new in wrong {
        let refused = b.store.create_session(new).await;
        assert!(matches!(refused, Err(StoreError::Missing(_))), "{refused:?}");
    }
}

async fn another_organization_sees_and_changes_nothing(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let work = session(&b.store, one, 40).await;
    assert!(b.store.session(two, work).await.unwrap().is_none());
    assert!(b.store.sessions(two, SessionFilter::default(), 50, None).await.unwrap().is_empty());
    for refused in [
        b.store.rename_session(two, work, "mine").await,
        b.store.remove_session(two, work).await,
        b.store.rename_session(one, id(99), "nobody's").await,
    ] {
        assert!(matches!(refused, Err(StoreError::Missing("this session"))), "{refused:?}");
    }
    assert_eq!(b.store.session(one, work).await.unwrap().unwrap().title, None);
    b.store.rename_session(one, work, "ours").await.unwrap();
    assert_eq!(b.store.session(one, work).await.unwrap().unwrap().title.as_deref(), Some("ours"));
}

async fn list(store: &Store, filter: SessionFilter) -> Vec<u128> {
    let found = store.sessions(id(1), filter, 50, None).await.unwrap();
    found.iter().map(|session| session.id.uuid().as_u128()).collect()
}

async fn a_list_has_live_sessions_first_and_then_the_latest_used(b: &Backend) {
    let one = org(&b.store, 1).await;
    let states = ["pending", "starting", "running", "paused", "stopped", "suspended", "failed"];
    for (number, status) in (40..).zip(states) {
        session(&b.store, one, number).await;
        let sql = format!("UPDATE sessions SET status = '{status}' WHERE id = #{number}");
        b.raw().await.execute(&sql).await.unwrap();
    }
    assert_eq!(list(&b.store, SessionFilter::default()).await, [43, 42, 41, 46, 45, 44, 40]);
    let owner = own(&b.store, id(44)).await;
    b.store.touch(&owner, at(1000)).await.unwrap();
    assert_eq!(list(&b.store, SessionFilter::default()).await, [43, 42, 41, 44, 46, 45, 40]);
}

async fn a_list_is_filtered(b: &Backend) {
    let one = org(&b.store, 1).await;
    let ada = member(&b.store, one, 10, Role::Owner).await;
    let (code, with_code) = (repo(b, 1, 20).await, configuration(b, 1, 30).await);
    let link = "INSERT INTO configuration_repos (configuration_id, repo_id, org_id, workspace_path)
        VALUES (#30, #20, #1, '.')";
    b.raw().await.execute(link).await.unwrap();
    let plain = new_session(one, 40);
    let made = [
        plain.clone(),
        NewSession { session_type: SessionType::Setup, id: id(41), ..plain.clone() },
        NewSession { session_type: SessionType::Cli, id: id(42), ..plain.clone() },
        NewSession { client_type: Some(ClientType::Automation), id: id(43), ..plain.clone() },
        NewSession { client_type: None, created_by: Some(ada), id: id(44), ..plain.clone() },
        NewSession { configuration_id: Some(with_code), id: id(45), ..plain.clone() },
        NewSession { parent_session_id: Some(id(40)), starts: Starts::Now, id: id(46), ..plain },
    ];
    for new in made {
        b.store.create_session(new).await.unwrap();
    }
    let all = SessionFilter::default();
    assert_eq!(list(&b.store, all.clone()).await, [46, 45, 44, 43, 42, 41, 40]);
    let quiet =
        SessionFilter { exclude_setup: true, exclude_cli: true, exclude_automation: true, ..all.clone() };
    assert_eq!(list(&b.store, quiet).await, [46, 45, 44, 40]);
    assert_eq!(list(&b.store, SessionFilter { exclude_setup: true, ..all.clone() }).await.len(), 6);
    assert_eq!(list(&b.store, SessionFilter { created_by: Some(ada), ..all.clone() }).await, [44]);
    assert_eq!(list(&b.store, SessionFilter { repo: Some(code), ..all.clone() }).await, [45]);
    assert_eq!(
        list(&b.store, SessionFilter { repo: Some(RepoId::from(Uuid::nil())), ..all.clone() }).await,
        [0; 0]
    );
    assert_eq!(list(&b.store, SessionFilter { parent: Some(id(40)), ..all.clone() }).await, [46]);
    let starting = SessionFilter { status: Some(SessionStatus::Starting), ..all };
    assert_eq!(list(&b.store, starting).await, [46]);
}

async fn pages_follow_each_other_without_loss_or_repetition(b: &Backend) {
    let one = org(&b.store, 1).await;
    for number in 40..60 {
        // Groups of three share a time, and every other session is live.
        let starts = if number % 2 == 0 { Starts::Now } else { Starts::Later };
        let new = NewSession { starts, at: at(i64::from(number / 3)), ..new_session(one, number) };
        b.store.create_session(new).await.unwrap();
    }
    let whole = b.store.sessions(one, SessionFilter::default(), 100, None).await.unwrap();
    assert_eq!(whole.len(), 20);
    let mut paged: Vec<SessionRecord> = Vec::new();
    let mut cursor = None;
    loop {
        let page = b.store.sessions(one, SessionFilter::default(), 3, cursor).await.unwrap();
        let Some(last) = page.last() else { break };
        let text = SessionCursor::after(last).to_string();
        cursor = Some(text.parse::<SessionCursor>().unwrap());
        paged.extend(page);
    }
    assert_eq!(paged, whole);
    for wrong in ["", "1", "2.0.0.x", "1.99999999999999.0.00000000-0000-0000-0000-000000000001", "1.1.1.no"] {
        assert!(wrong.parse::<SessionCursor>().is_err(), "{wrong}");
    }
}

async fn an_organization_cannot_exceed_its_session_limit(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    b.raw().await.execute("UPDATE organizations SET session_limit = 3 WHERE id = #1").await.unwrap();
    let made = together(10, |caller| {
        let store = b.store.clone();
        let number = 40 + u8::try_from(caller).unwrap();
        async move { store.create_session(new_session(one, number)).await.map(|()| number) }
    })
    .await;
    let (made, refused): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (3, 7));
    for refused in refused {
        assert!(matches!(refused, Err(StoreError::SessionLimit { limit: 3 })), "{refused:?}");
    }
    session(&b.store, two, 60).await;
    // A paused session does not count, and must be admitted again when it resumes.
    let first: SessionId = id(*made[0].as_ref().unwrap());
    let owner = own(&b.store, first).await;
    b.store.set_status(&owner, SessionStatus::Paused, None, at(5)).await.unwrap();
    session(&b.store, one, 61).await;
    let full = b.store.start_session(&owner, at(6)).await;
    assert!(matches!(full, Err(StoreError::SessionLimit { limit: 3 })), "{full:?}");
    b.store.remove_session(one, id(61)).await.unwrap();
    b.store.start_session(&owner, at(8)).await.unwrap();
    // A live session does not count twice.
    b.store.start_session(&owner, at(9)).await.unwrap();
}

async fn a_session_without_a_sandbox_counts_for_ten_minutes(b: &Backend) {
    let one = org(&b.store, 1).await;
    b.store.set_org_limits(one, None, Some(1)).await.unwrap();
    let new = |number, second| NewSession { at: at(second), ..new_session(one, number) };
    b.store.create_session(NewSession { starts: Starts::Now, ..new(40, 0) }).await.unwrap();
    let full = b.store.create_session(new(41, 599)).await;
    assert!(matches!(full, Err(StoreError::SessionLimit { limit: 1 })), "{full:?}");
    b.store.create_session(new(41, 600)).await.unwrap();
    // A session that waited for long is admitted again; a running one counts whatever its age.
    let owner = own(&b.store, id(40)).await;
    let full = b.store.start_session(&owner, at(601)).await;
    assert!(matches!(full, Err(StoreError::SessionLimit { limit: 1 })), "{full:?}");
    b.store.start_session(&owner, at(1200)).await.unwrap();
    b.store.set_running(&owner, "box", None).await.unwrap();
    let full = b.store.create_session(new(42, 9_000)).await;
    assert!(matches!(full, Err(StoreError::SessionLimit { limit: 1 })), "{full:?}");
}

async fn a_configuration_has_one_setup_session_at_a_time(b: &Backend) {
    let one = org(&b.store, 1).await;
    let place = configuration(b, 1, 30).await;
    let new = |number, second| NewSession {
        session_type: SessionType::Setup,
        at: at(second),
        ..new_session(one, number)
    };
    let made = together(8, |caller| {
        let (store, new) = (b.store.clone(), new(40 + u8::try_from(caller).unwrap(), 0));
        async move { (new.id, store.create_setup_session(new, place).await.unwrap()) }
    })
    .await;
    let made: Vec<SessionId> = made.into_iter().filter(|(_, made)| *made).map(|(id, _)| id).collect();
    assert_eq!((made.len(), b.store.live_sessions(one, at(1)).await.unwrap()), (1, 1));
    assert!(!b.store.create_setup_session(new(50, 599), place).await.unwrap());
    // A paused setup session may resume, so it counts; one that ended or never started does not.
    let owner = own(&b.store, made[0]).await;
    b.store.set_status(&owner, SessionStatus::Paused, None, at(5)).await.unwrap();
    assert!(!b.store.create_setup_session(new(50, 9_000), place).await.unwrap());
    b.store.set_status(&owner, SessionStatus::Stopped, None, at(6)).await.unwrap();
    assert!(b.store.create_setup_session(new(50, 10_000), place).await.unwrap());
    assert!(b.store.create_setup_session(new(51, 10_600), place).await.unwrap());
}

async fn a_deleted_session_leaves_its_children(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    let child = NewSession { parent_session_id: Some(work), ..new_session(one, 41) };
    b.store.create_session(child).await.unwrap();
    let owner = own(&b.store, work).await;
    b.store.remove_session(one, work).await.unwrap();
    assert!(b.store.session(one, work).await.unwrap().is_none());
    assert_eq!(b.store.session(one, id(41)).await.unwrap().unwrap().parent_session_id, None);
    let late = b.store.touch(&owner, at(6)).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    let nobodys = b.store.own_session(work, "one").await;
    assert!(matches!(nobodys, Err(StoreError::Missing("this session"))), "{nobodys:?}");
}

async fn a_deleted_session_is_found_until_its_owner_has_removed_it(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let (work, other) = (session(&b.store, one, 40).await, session(&b.store, one, 41).await);
    own(&b.store, work).await;
    own(&b.store, other).await;
    let foreign = b.store.delete_session(two, work, at(5)).await;
    assert!(matches!(foreign, Err(StoreError::Missing("this session"))), "{foreign:?}");
    let found = async |instance: &str| b.store.deleted_sessions(instance, at(0), 9).await.unwrap();
    assert_eq!(found("one").await, []);
    b.store.see_instance("one", None, at(5)).await.unwrap();
    b.store.delete_session(one, work, at(5)).await.unwrap();
    assert_eq!(found("one").await, [work]);
    assert_eq!(found("two").await, [], "its owner is alive");
    b.store.forget_instance("one").await.unwrap();
    assert_eq!(found("two").await, [work]);
    let next = b.store.own_session(work, "two").await.unwrap();
    assert!(next.deleted);
    assert!(!b.store.own_session(other, "two").await.unwrap().deleted);
    b.store.remove_session(one, work).await.unwrap();
    assert_eq!(found("two").await, []);
}

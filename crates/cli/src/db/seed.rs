//! Inserts the rows that the load generator expects, with its default ids (`bench/loadgen/README.md`).

use std::str::FromStr;

use chrono::{DateTime, Utc};
use gate::{AdminChange, Subject};
use proto::{ConfigurationId, InvalidId, OrgId, RepoId, Risk, Role, UserId};
use secrecy::SecretString;
use serde_json::json;
use store::{Connector, NewConfiguration, NewMember, NewOrg, NewRepo, Placement, RemoteSource, Scope, Store};

use crate::context::Context;
use crate::failure::Failure;

const CONFIGURATION_COUNT: u64 = 64;
const SANDBOX_PROVIDER: &str = "attach";
const FAKE_MCP: &str = "http://127.0.0.1:58800/mcp";
/// The id groups of the load generator.
const ROW_ID_GROUP: u16 = 0x8000;
const REPO_ID_GROUP: u16 = 0x9000;

/// Creates an organization with everything that a benchmark needs. Does nothing if it exists.
pub(super) async fn bench(context: &Context) -> Result<(), Failure> {
    let (org, user): (OrgId, UserId) = (id(ROW_ID_GROUP, 0xaa)?, id(ROW_ID_GROUP, 0xbb)?);
    let store = context.store_or_new().await?;
    let is_new = !store.orgs().await?.iter().any(|known| known.id == org);
    if is_new {
        let at = context.clock.now();
        seeding(context, &store, org, Subject::Organization, "create")
            .await?
            .create_org(NewOrg { id: org, name: "Bench".to_owned(), at })
            .await?;
        owner(context, &store, (org, user), at).await?;
        configurations(context, &store, (org, user), at).await?;
        connector(context, &store, (org, user), at).await?;
        let store = seeding(context, &store, org, Subject::Secret, "set").await?;
        let secret = [("BENCH_SECRET".to_owned(), SecretString::from("nothing that is secret"))];
        context.vault(&store).await?.set_all(org, Scope::Org, &secret, Some(user)).await?;
    }
    let value =
        json!({ "orgId": org, "userId": user, "configurations": CONFIGURATION_COUNT, "created": is_new });
    let sentence =
        if is_new { "made what the load generator needs" } else { "what the load generator needs is there" };
    context.out.result(&value, sentence);
    Ok(())
}

/// Returns the store that inserts and records one seed row.
async fn seeding(
    context: &Context,
    store: &Store,
    org: OrgId,
    subject: Subject,
    operation: &'static str,
) -> Result<Store, Failure> {
    context.administer(store, org, &AdminChange::new(subject, operation, "for a measurement")).await
}

async fn owner(
    context: &Context,
    store: &Store,
    (org_id, user_id): (OrgId, UserId),
    at: DateTime<Utc>,
) -> Result<(), Failure> {
    let email = "bench@localhost".to_owned();
    let made = seeding(context, store, org_id, Subject::Member, "add")
        .await?
        .add_member(NewMember { user_id, name: email.clone(), email, org_id, role: Role::Owner, at })
        .await?;
    if made == user_id {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "bench@localhost is the address of user {made} already: seed a database of its own"
    )))
}

async fn configurations(
    context: &Context,
    store: &Store,
    (org, user): (OrgId, UserId),
    at: DateTime<Utc>,
) -> Result<(), Failure> {
    for number in 1..=CONFIGURATION_COUNT {
        let (repo, configuration): (RepoId, ConfigurationId) =
            (id(REPO_ID_GROUP, number)?, id(ROW_ID_GROUP, number)?);
        let new = NewRepo {
            id: repo,
            org_id: org,
            name: format!("bench/{number}"),
            from: RemoteSource::Git,
            url: format!("https://git.invalid/bench/{number}.git"),
            default_branch: None,
            is_private: false,
            added_by: Some(user),
            at,
        };
        seeding(context, store, org, Subject::Repository, "add").await?.create_repo(new).await?;
        let new = NewConfiguration {
            id: configuration,
            org_id: org,
            name: format!("bench {number}"),
            sandbox_provider: SANDBOX_PROVIDER.to_owned(),
            repos: vec![Placement { repo_id: repo, workspace_path: ".".to_owned() }],
            created_by: Some(user),
            at,
        };
        let store = seeding(context, store, org, Subject::Configuration, "create").await?;
        store.create_configuration(new).await?;
    }
    Ok(())
}

/// The fake MCP server of the load generator. Its three tools get the three risks: one is read-only, one is set to write,
/// and one calls itself destructive.
async fn connector(
    context: &Context,
    store: &Store,
    (org_id, user): (OrgId, UserId),
    at: DateTime<Utc>,
) -> Result<(), Failure> {
    let new = Connector {
        id: id(ROW_ID_GROUP, 0xcc)?,
        org_id,
        name: "bench".to_owned(),
        url: FAKE_MCP.to_owned(),
        auth: json!({"type": "none"}),
        default_risk: Risk::Read,
        enabled: true,
        created_by: Some(user),
        created_at: at,
        updated_at: at,
    };
    let store = seeding(context, store, org_id, Subject::Connector, "create").await?;
    store.create_connector(new, vec![("write_thing".to_owned(), Some(Risk::Write))]).await?;
    Ok(())
}

fn id<T: FromStr<Err = InvalidId>>(group: u16, number: u64) -> Result<T, Failure> {
    let text = format!("00000000-0000-4000-{group:04x}-{number:012x}");
    text.parse().map_err(|error: InvalidId| Failure::failed(error.to_string()))
}

//! `users` and `login-link`: manages members and their roles, and creates login links.

use gate::{AdminChange, Subject};
use gateway::identity::login_link;
use proto::{Role, UserId, iso, text};
use secrecy::ExposeSecret as _;
use serde_json::json;
use store::NewMember;

use crate::args::{NewUser, UsersCommand, WhichMember};
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(context: &Context, command: UsersCommand) -> Result<(), Failure> {
    match command {
        UsersCommand::Create(new) => create(context, new).await,
        UsersCommand::Ls { org } => ls(context, org.org.as_deref()).await,
        UsersCommand::Role { user, role, org } => {
            change(context, org.org.as_deref(), &user, Some(role)).await
        }
        UsersCommand::Rm { user, org } => change(context, org.org.as_deref(), &user, None).await,
    }
}

/// Prints a single-use login link for a member.
pub(crate) async fn link(context: &Context, which: WhichMember) -> Result<(), Failure> {
    let store = context.store().await?;
    let member = context.member(&store, &which).await?;
    let link = login_link(&store, &member, &context.public_url(), &context.clock, &context.rng).await?;
    context.out.result(&json!({ "link": link.expose_secret() }), link.expose_secret());
    Ok(())
}

async fn create(context: &Context, new: NewUser) -> Result<(), Failure> {
    let NewUser { email, name, role, org } = new;
    if !text::is_email(&email) {
        return Err(Failure::usage(format!(
            "--email {email}: must be an e-mail address, such as ada@example.com"
        )));
    }
    let name = name.unwrap_or_else(|| email.clone());
    if !text::is_line(&name, text::MAX_NAME) {
        return Err(Failure::usage("--name must be one line of 1 to 320 characters"));
    }
    let store = context.store().await?;
    let org_id = context.org(&store, org.org.as_deref()).await?;
    let at = context.clock.now();
    let user_id = UserId::from(context.rng.uuid(at));
    let member = NewMember { user_id, email: email.clone(), name, org_id, role, at };
    let change = AdminChange::new(Subject::Member, "add", format!("role {role}"));
    let user = context.administer(&store, org_id, &change).await?.add_member(member).await?;
    context.out.result(&json!({ "id": user }), &format!("user {user} ({email}) is {role} of {org_id}"));
    Ok(())
}

async fn ls(context: &Context, org: Option<&str>) -> Result<(), Failure> {
    let store = context.store().await?;
    let members = store.members(context.org(&store, org).await?).await?;
    let rows: Vec<_> = members
        .iter()
        .map(|m| vec![m.user_id.to_string(), m.email.clone(), m.role.to_string(), context.ago(m.created_at)])
        .collect();
    let values = members.iter().map(|m| {
        json!({ "id": m.user_id, "email": m.email, "name": m.name, "role": m.role, "org": m.org_id,
            "createdAt": iso::text(&m.created_at) })
    });
    context.out.list(values.collect(), &["ID", "EMAIL", "ROLE", "SINCE"], &rows);
    Ok(())
}

/// Changes the role of a member, or ends the membership.
async fn change(context: &Context, org: Option<&str>, user: &str, to: Option<Role>) -> Result<(), Failure> {
    let store = context.store().await?;
    let org = context.org(&store, org).await?;
    let user = context.user(&store, org, user).await?;
    let change = match to {
        Some(role) => AdminChange::new(Subject::Role, "change", format!("user {user}, role {role}")),
        None => AdminChange::new(Subject::Member, "remove", format!("user {user}")),
    };
    let now = context.clock.now();
    context.administer(&store, org, &change).await?.change_member(org, user, to, now).await?;
    let sentence = match to {
        Some(role) => format!("user {user} is {role} now"),
        None => format!("user {user} is no longer a member of {org}"),
    };
    context.out.result(&json!({ "id": user, "role": to }), &sentence);
    Ok(())
}

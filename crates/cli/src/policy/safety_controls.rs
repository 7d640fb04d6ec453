//! `policy lock`, `unlock`, `override grant` and `grants revoke`: changes that all gateways apply within a second.

use gate::Grant;
use proto::iso;
use serde_json::json;

use crate::args::GrantArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::lookup;

pub(super) async fn lock(context: &Context, locked: bool, reason: &str) -> Result<(), Failure> {
    let store = context.store().await?;
    context.governance(&store).lock(locked, reason).await?;
    let sentence = if locked {
        "locked: within a second no call is executed in any lane; `proliferate policy unlock --reason …` ends it"
    } else {
        "unlocked: calls are decided by the lanes again"
    };
    context.out.result(&json!({ "locked": locked }), sentence);
    Ok(())
}

pub(super) async fn grant(context: &Context, args: &GrantArgs) -> Result<(), Failure> {
    let store = context.store().await?;
    let GrantArgs { user, org, ticket, reason, minutes } = args;
    let org = context.org(&store, Some(org)).await?;
    let id = context.user(&store, org, user).await?;
    let grant_request = Grant { org, user: id, ticket, reason, minutes: *minutes };
    let grant = context.governance(&store).grant(&grant_request).await?;
    let until = iso::text(&grant.valid_until);
    let sentence = format!(
        "{user} may use the override lane until {until}, in calls whose scope has override_ticket_id {ticket:?} \
         and an override_reason"
    );
    context.out.result(&json!({ "id": grant.id, "validUntil": until }), &sentence);
    Ok(())
}

pub(super) async fn revoke(context: &Context, grant: &str, reason: &str) -> Result<(), Failure> {
    let store = context.store().await?;
    let id = context.grant(&store, grant).await?;
    let revoked = context.governance(&store).revoke_grant(id, reason).await?;
    let user = lookup::emails(&store).await?.name(&revoked.user_id.to_string());
    let sentence = format!("{user} may no longer break the glass under ticket {:?}", revoked.ticket);
    context.out.result(&json!({ "id": revoked.id }), &sentence);
    Ok(())
}

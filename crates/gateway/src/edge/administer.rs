//! Administrative changes over HTTP. Each is made through a store that records it in the ledger under the caller's
//! name.

use policy::{ActorClass, Claim};
use store::{NewEvent, Store};

use super::auth::User;
use crate::app::AppState;
use gate::{AdminChange, Subject};

/// The store through which `user` makes a change. It appends the event to the ledger in the same transaction.
pub(super) fn administer(
    app: &AppState,
    user: &User,
    subject: Subject,
    operation: &'static str,
    details: impl Into<String>,
) -> Store {
    administer_as(app, user, &AdminChange::new(subject, operation, details))
}

/// The same as [`administer`], for an [`AdminChange`] that already exists.
pub(super) fn administer_as(app: &AppState, user: &User, change: &AdminChange) -> Store {
    app.store.recorded(admin_event(app, user, change))
}

pub(super) fn admin_event(app: &AppState, user: &User, change: &AdminChange) -> NewEvent {
    let actor = Claim { actor_type: ActorClass::Human, actor_id: user.id.to_string() };
    app.gate.admin_event(user.org, &actor, change)
}

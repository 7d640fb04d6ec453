//! Presence: the users who are watching a session, each listed once with their number of
//! connections.

use std::collections::BTreeMap;

use proto::UserId;
use proto::http::{Presence, PresentUser};

/// The number of connections by user. Connections of API clients without a user count under `None`.
#[derive(Default)]
pub(super) struct Watchers(BTreeMap<Option<UserId>, u64>);

impl Watchers {
    pub(super) fn join(&mut self, user: Option<UserId>) {
        *self.0.entry(user).or_default() += 1;
    }

    pub(super) fn leave(&mut self, user: Option<UserId>) {
        if let Some(connections) = self.0.get_mut(&user) {
            *connections -= 1;
        }
        self.0.retain(|_, connections| *connections > 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn presence(&self) -> Presence {
        let user = |(user, clients): (&Option<UserId>, &u64)| {
            user.map(|user_id| PresentUser { user_id, clients: *clients })
        };
        Presence {
            users: self.0.iter().filter_map(user).collect(),
            programs: self.0.get(&None).copied().unwrap_or_default(),
        }
    }
}

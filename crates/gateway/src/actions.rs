//! The actions of agents: the catalog that a session sees.

mod catalog;

use std::sync::Arc;

use gate::Gate;
use store::Store;

use crate::sources::Registry;

/// What the use cases of actions need.
pub struct Actions {
    store: Store,
    gate: Arc<Gate>,
    sources: Arc<Registry>,
}

impl Actions {
    pub(crate) fn new(store: Store, gate: Arc<Gate>, sources: Arc<Registry>) -> Self {
        Self { store, gate, sources }
    }
}

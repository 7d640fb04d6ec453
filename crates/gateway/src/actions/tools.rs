//! Actions as MCP tools: which one a name stands for.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use proto::http::ActionInfo;
use store::StoreError;

use super::catalog::{VisibleSource, shown};
use super::tool_names::tool_name;
use super::{ActionCaller, Actions};

impl Actions {
    /// The actions that a caller can use now, by their names as tools.
    pub(crate) async fn tools(
        &self,
        caller: &ActionCaller,
    ) -> Result<BTreeMap<String, ActionInfo>, StoreError> {
        let audience = caller.audience();
        let modes = self.store.all_action_modes(audience.org(), audience.session()).await?;
        let (visible, _) = self.visible_sources(&audience).await?;
        let mut tools = BTreeMap::new();
        let mut names = self.names.lock();
        for VisibleSource { source, prohibited } in visible {
            let (id, display_name) = (source.id.clone(), source.display_name.clone());
            let name_of = |action: &str| tool_name(&id, display_name.as_deref(), action);
            // A call of what lanes prohibit is recorded and says why, although it is in no list.
            for action in prohibited {
                names.put((caller.org(), name_of(&action)), (id.clone(), action));
            }
            for action in shown(source, &modes).into_iter().flat_map(|source| source.actions) {
                // If a server makes two of its tools read the same, the first one keeps the name.
                if let Entry::Vacant(free) = tools.entry(name_of(&action.name)) {
                    names.put((caller.org(), free.key().clone()), (id.clone(), action.name.clone()));
                    free.insert(action);
                }
            }
        }
        Ok(tools)
    }

    /// The source and the action that a tool's name stands for. Names that were listed lately are known, so that a source
    /// that does not answer delays only calls of its own tools.
    pub(crate) async fn find_tool(
        &self,
        caller: &ActionCaller,
        name: &str,
    ) -> Result<Option<(String, String)>, StoreError> {
        let key = (caller.org(), name.to_owned());
        let known = |actions: &Self| actions.names.lock().get(&key).cloned();
        if let Some(found) = known(self) {
            return Ok(Some(found));
        }
        self.tools(caller).await?;
        Ok(known(self))
    }
}

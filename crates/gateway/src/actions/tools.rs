//! Actions as MCP tools: which one a name stands for.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use proto::http::ActionInfo;
use store::StoreError;

use super::tool_names::tool_name;
use super::{ActionCaller, Actions};

impl Actions {
    /// The actions that a caller can use now, by their names as tools.
    pub(crate) async fn tools(
        &self,
        caller: &ActionCaller,
    ) -> Result<BTreeMap<String, ActionInfo>, StoreError> {
        let mut tools = BTreeMap::new();
        let sources = self.available(caller.scope(), caller.chooser()).await?.integrations;
        let mut names = self.names.lock();
        for mut source in sources {
            for action in std::mem::take(&mut source.actions) {
                // If a server makes two of its tools read the same, the first one keeps the name.
                if let Entry::Vacant(free) = tools.entry(tool_name(&source, &action.name)) {
                    let key = (caller.org(), free.key().clone());
                    names.put(key, (source.integration.clone(), action.name.clone()));
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
        let listed = self.tools(caller).await?.contains_key(name);
        Ok(known(self).filter(|_| listed))
    }
}

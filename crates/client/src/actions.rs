//! The actions of a session, and the approval of invocations.

use proto::http::{ActionCatalog, ActionGuide, Invocation, InvocationList, InvocationReply, InvokeAction};
use proto::{InvocationId, SessionId};

use crate::client::{Client, read};
use crate::error::Error;

impl Client {
    /// All actions that the agent of a session can use now.
    pub async fn actions(&self, session: SessionId) -> Result<ActionCatalog, Error> {
        read(self.get(self.url(&["proliferate", &session.to_string(), "actions", "available"]))).await
    }

    /// How to use one source of actions, in Markdown.
    pub async fn action_guide(&self, session: SessionId, integration: &str) -> Result<ActionGuide, Error> {
        let path = ["proliferate", &session.to_string(), "actions", "guide", integration];
        read(self.get(self.url(&path))).await
    }

    /// Invokes an action. The invocation is `completed` and has its result, or it is `pending` and waits for approval.
    pub async fn invoke_action(
        &self,
        session: SessionId,
        request: &InvokeAction,
    ) -> Result<Invocation, Error> {
        let path = ["proliferate", &session.to_string(), "actions", "invoke"];
        let reply: InvocationReply = read(self.post(&path, None).json(request)).await?;
        Ok(reply.invocation)
    }

    /// The invocations of a session, newest first.
    pub async fn invocations(&self, session: SessionId) -> Result<InvocationList, Error> {
        read(self.get(self.url(&["proliferate", &session.to_string(), "actions", "invocations"]))).await
    }

    /// One invocation of a session.
    pub async fn invocation(&self, session: SessionId, id: InvocationId) -> Result<Invocation, Error> {
        let path = ["proliferate", &session.to_string(), "actions", "invocations", &id.to_string()];
        let reply: InvocationReply = read(self.get(self.url(&path))).await?;
        Ok(reply.invocation)
    }

    /// Approves a waiting invocation. It is `completed` and has its result, or it is `approved` and is executed when
    /// its caller repeats it.
    pub async fn approve_invocation(&self, id: InvocationId) -> Result<Invocation, Error> {
        self.decide(id, "approve").await
    }

    /// Denies a waiting invocation.
    pub async fn deny_invocation(&self, id: InvocationId) -> Result<Invocation, Error> {
        self.decide(id, "deny").await
    }

    async fn decide(&self, id: InvocationId, act: &str) -> Result<Invocation, Error> {
        let path = ["v1", "invocations", &id.to_string(), act];
        let reply: InvocationReply = read(self.post(&path, None)).await?;
        Ok(reply.invocation)
    }
}

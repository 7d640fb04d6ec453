//! The actions of a session, and the approval of invocations.

use proto::http::{
    ActionCatalog, ActionGuide, ActionModeList, ApproveInvocation, DenyInvocation, Invocation,
    InvocationList, InvocationReply, InvokeAction, SetActionMode,
};
use proto::{InvocationId, SessionId};
use reqwest::Method;

use crate::client::{Client, ok, read};
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

    /// One invocation of the organization.
    pub async fn org_invocation(&self, id: InvocationId) -> Result<Invocation, Error> {
        let reply: InvocationReply =
            read(self.get(self.url(&["v1", "invocations", &id.to_string()]))).await?;
        Ok(reply.invocation)
    }

    /// Approves a waiting invocation, with other parameters if there are some. It is `completed` and has its result, or it
    /// is `approved` and is executed when its caller repeats it, or it is `pending` until another person approves it too.
    pub async fn approve_invocation(
        &self,
        id: InvocationId,
        approval: &ApproveInvocation,
    ) -> Result<Invocation, Error> {
        let path = ["v1", "invocations", &id.to_string(), "approve"];
        let reply: InvocationReply = read(self.post(&path, None).json(approval)).await?;
        Ok(reply.invocation)
    }

    /// Denies a waiting invocation. Its agent is told the reason.
    pub async fn deny_invocation(
        &self,
        id: InvocationId,
        denial: &DenyInvocation,
    ) -> Result<Invocation, Error> {
        let path = ["v1", "invocations", &id.to_string(), "deny"];
        let reply: InvocationReply = read(self.post(&path, None).json(denial)).await?;
        Ok(reply.invocation)
    }

    /// The modes that the organization has set.
    pub async fn action_modes(&self) -> Result<ActionModeList, Error> {
        read(self.get(self.url(&["v1", "action-modes"]))).await
    }

    /// Sets the mode of an action.
    pub async fn set_action_mode(&self, mode: &SetActionMode) -> Result<(), Error> {
        let url = self.url(&["v1", "action-modes"]);
        ok(self.http.request(Method::PUT, url).json(mode)).await
    }
}

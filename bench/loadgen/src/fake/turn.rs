//! One turn of the fake agent: the events around an answer, in the order of the real agent.

use std::sync::Arc;

use serde_json::{Value, json};

use super::deltas::{Deltas, Plan};
use super::state::State;

pub struct Turn {
    pub state: Arc<State>,
    pub sandbox: String,
    pub session: String,
    pub generation: u64,
    pub answer: String,
    question: String,
    text: String,
}

impl Turn {
    /// `message_id` is the message id that the gateway chose, if any.
    pub fn new(
        state: Arc<State>,
        sandbox: String,
        session: String,
        generation: u64,
        message_id: Option<String>,
        text: String,
    ) -> Self {
        let question = message_id.unwrap_or_else(|| state.id("msg"));
        let answer = state.id("msg");
        Self { state, sandbox, session, generation, answer, question, text }
    }

    pub async fn run(self) {
        self.begin().await;
        let part = self.state.id("prt");
        let last_part = match Plan::parse(&self.text) {
            Some(plan) => Deltas::new(&self, plan, part).send().await,
            None => part,
        };
        self.end(&last_part).await;
    }

    async fn publish(&self, kind: &str, properties: Value) {
        self.state.publish(&self.sandbox, kind, properties).await;
    }

    async fn begin(&self) {
        let Self { session, question, answer, text, .. } = self;
        let part = self.state.id("prt");
        self.publish(
            "message.updated",
            json!({"info": {"id": question, "sessionID": session, "role": "user", "time": {"created": 1}}}),
        )
        .await;
        self.publish(
            "message.part.updated",
            json!({"part": {"id": part, "sessionID": session, "messageID": question, "type": "text", "text": text}}),
        )
        .await;
        self.publish("session.status", json!({"sessionID": session, "status": {"type": "busy"}})).await;
        self.publish(
            "message.updated",
            json!({"info": {"id": answer, "sessionID": session, "role": "assistant", "time": {"created": 2}}}),
        )
        .await;
    }

    async fn end(&self, part: &str) {
        let Self { session, answer, .. } = self;
        self.publish(
            "message.part.updated",
            json!({"part": {"id": part, "sessionID": session, "messageID": answer, "type": "text", "text": "done"}}),
        )
        .await;
        self.publish(
            "message.updated",
            json!({"info": {"id": answer, "sessionID": session, "role": "assistant",
                "time": {"created": 2, "completed": 3}}}),
        )
        .await;
        self.publish("session.status", json!({"sessionID": session, "status": {"type": "idle"}})).await;
        self.publish("session.idle", json!({"sessionID": session})).await;
    }
}

//! A small hub: it sends prompts, listens, does what the translator asks for, and keeps what clients would see.

use std::time::Duration;

use opencode::api::{ApiError, Client, Dial, Events, Prompt};
use opencode::event::Event;
use opencode::ids::PromptIds;
use opencode::translate::{Effect, Output, Translator};
use proto::socket::{ServerMessage, TurnOutcome};
use tokio::time::timeout;

use crate::agent::{Agent, MODEL, PATIENCE};

pub(crate) struct Watcher<'a, D> {
    agent: &'a Agent,
    pub(crate) client: Client<D>,
    events: Events,
    pub(crate) session: String,
    pub(crate) translator: Translator,
    pub(crate) said: Vec<ServerMessage>,
    pub(crate) ids: PromptIds,
    settle: Option<Duration>,
}

/// What came of a turn.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) outcome: TurnOutcome,
    pub(crate) messages: usize,
    /// All final texts.
    pub(crate) text: String,
    pub(crate) said: Vec<ServerMessage>,
}

/// One prompt in a session of its own, to its end.
pub(crate) async fn turn(agent: &Agent, text: &str) -> Seen {
    let mut watcher = watch(agent).await;
    watcher.prompt(text).await;
    watcher.finish().await
}

pub(crate) async fn watch(agent: &Agent) -> Watcher<'_, impl Dial> {
    let client = agent.client();
    let events = client.events().await.unwrap();
    let session = client.create_session("a test").await.unwrap();
    let translator = Translator::new(&session);
    let ids = PromptIds::new(agent.now(), 1, &agent.rng);
    Watcher { agent, client, events, session, translator, said: Vec::new(), ids, settle: None }
}

impl<D: Dial> Watcher<'_, D> {
    pub(crate) async fn prompt(&mut self, text: &str) {
        self.ids = PromptIds::new(self.agent.now(), 1, &self.agent.rng);
        self.translator.begin(&self.ids.message);
        self.send(text).await.unwrap();
    }

    /// Sends the prompt, or sends it again.
    pub(crate) async fn send(&self, text: &str) -> Result<(), ApiError> {
        let prompt = Prompt { ids: &self.ids, model: MODEL, text, images: &[] };
        self.client.prompt(&self.session, &prompt).await
    }

    /// Takes the next event and does what follows from it. A busy machine may make the agent close its stream; whoever
    /// follows it then listens anew, as the gateway does.
    pub(crate) async fn step(&mut self) {
        let data = match timeout(PATIENCE, self.events.next()).await.unwrap() {
            Ok(Some(data)) => data,
            Ok(None) | Err(ApiError::Broken(_) | ApiError::Unreachable(_) | ApiError::Silent) => {
                return self.listen_anew().await;
            }
            Err(error) => panic!("{error}"),
        };
        let event = Event::parse(&data).unwrap();
        let output = self.translator.observe(&event, self.agent.now());
        self.take(output);
    }

    fn take(&mut self, output: Output) {
        self.said.extend(output.messages);
        for effect in output.effects {
            let Effect::Settle { after } = effect else { panic!("{effect:?}") };
            self.settle = Some(after);
        }
    }

    /// Breaks the stream, listens anew and catches up.
    pub(crate) async fn reconnect(&mut self, translator: Translator) {
        self.translator = translator;
        self.listen_anew().await;
    }

    async fn listen_anew(&mut self) {
        self.events = self.client.events().await.unwrap();
        self.translator.stream_lost();
        self.catch_up().await;
    }

    /// Gives the turn so much time to end by itself, and then asks.
    async fn settle(&mut self, after: Duration) {
        let ending = async {
            while self.translator.is_busy() && self.settle.is_none() {
                self.step().await;
            }
        };
        if timeout(after, ending).await.is_err() {
            self.catch_up().await;
        }
    }

    async fn catch_up(&mut self) {
        let history = self.client.history(&self.session, &self.ids.message, &mut |_| true).await.unwrap();
        let output = self.translator.reconcile(&history, self.agent.now());
        self.take(output);
    }

    /// Until the turn has ended.
    pub(crate) async fn finish(&mut self) -> Seen {
        let ending = async {
            while self.translator.is_busy() {
                match self.settle.take() {
                    None => self.step().await,
                    Some(after) => self.settle(after).await,
                }
            }
        };
        // Heartbeats come for ever, so it is the whole that must end.
        let ended = timeout(PATIENCE, ending).await;
        assert!(ended.is_ok(), "the turn never ended: {:?}", self.said);
        let said = std::mem::take(&mut self.said);
        let Some(ServerMessage::TurnComplete { message_ids, outcome }) = said.last() else {
            panic!("the turn did not end last: {said:?}")
        };
        let texts = said.iter().filter_map(|message| match message {
            ServerMessage::TextPartComplete { text, .. } => Some(text.as_str()),
            _ => None,
        });
        Seen { outcome: *outcome, messages: message_ids.len(), text: texts.collect(), said }
    }
}

impl Seen {
    pub(crate) fn errors(&self) -> Vec<&str> {
        let errors = self.said.iter().filter_map(|message| match message {
            ServerMessage::Error { message } => Some(message.as_str()),
            _ => None,
        });
        errors.collect()
    }

    /// All tokens, joined.
    pub(crate) fn tokens(&self) -> String {
        let token = |message: &ServerMessage| match message {
            ServerMessage::Token { token, .. } => Some(token.clone()),
            _ => None,
        };
        self.said.iter().filter_map(token).collect()
    }
}

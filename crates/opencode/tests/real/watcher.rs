//! A minimal hub: it sends prompts, reads events, performs effects, and collects what clients would see.

use std::time::Duration;

use agent::{Prompt, prompt_id};
use opencode::api::{ApiError, Client, Dial, Events};
use opencode::event::Event;
use opencode::translate::{Effect, Output, Translator};
use proto::socket::{ServerMessage, TurnOutcome};
use tokio::time::timeout;

use crate::agent::{Agent, MODEL, TEST_TIMEOUT};

pub(crate) struct Watcher<'a, D> {
    agent: &'a Agent,
    pub(crate) client: Client<D>,
    events: Events,
    pub(crate) session: String,
    pub(crate) translator: Translator,
    pub(crate) emitted: Vec<ServerMessage>,
    /// The id of the last prompt.
    pub(crate) prompt_id: String,
    settle: Option<Duration>,
}

/// The result of a turn.
#[derive(Debug)]
pub(crate) struct TurnResult {
    pub(crate) outcome: TurnOutcome,
    pub(crate) messages: usize,
    /// All final texts, concatenated.
    pub(crate) text: String,
    pub(crate) emitted: Vec<ServerMessage>,
}

/// Sends one prompt in a session of its own and waits for the end of the turn.
pub(crate) async fn turn(agent: &Agent, text: &str) -> TurnResult {
    let mut watcher = watch(agent).await;
    watcher.prompt(text).await;
    watcher.finish().await
}

pub(crate) async fn watch(agent: &Agent) -> Watcher<'_, impl Dial> {
    let client = agent.client();
    let events = client.events().await.unwrap();
    let session = client.create_session(Some("a test")).await.unwrap();
    let translator = Translator::new(&session);
    let prompt_id = prompt_id(agent.now(), &agent.rng);
    Watcher { agent, client, events, session, translator, emitted: Vec::new(), prompt_id, settle: None }
}

impl<D: Dial> Watcher<'_, D> {
    pub(crate) async fn prompt(&mut self, text: &str) {
        self.prompt_id = prompt_id(self.agent.now(), &self.agent.rng);
        self.translator.begin(&self.prompt_id);
        self.send(text).await.unwrap();
    }

    /// Sends the prompt, or sends it again.
    pub(crate) async fn send(&self, text: &str) -> Result<(), ApiError> {
        let prompt = Prompt { id: &self.prompt_id, model: MODEL, effort: None, text, images: &[] };
        self.client.prompt(&self.session, &prompt).await
    }

    /// Processes the next event. On a busy machine the agent may close its stream; then this subscribes
    /// again, as the gateway does.
    pub(crate) async fn step(&mut self) {
        let data = match timeout(TEST_TIMEOUT, self.events.next()).await.unwrap() {
            Ok(Some(data)) => data,
            Ok(None) | Err(ApiError::Broken(_) | ApiError::Unreachable(_) | ApiError::Silent) => {
                return self.resubscribe().await;
            }
            Err(error) => panic!("{error}"),
        };
        let event = Event::parse(&data).unwrap();
        let output = self.translator.observe(&event, self.agent.now());
        self.take(output);
    }

    fn take(&mut self, output: Output) {
        self.emitted.extend(output.messages);
        for effect in output.effects {
            match effect {
                Effect::Settle { after } => self.settle = Some(after),
                // The title that the session was created with.
                Effect::Title(title) if title == "a test" => {}
                effect => panic!("{effect:?}"),
            }
        }
    }

    /// Breaks the stream, subscribes again and catches up.
    pub(crate) async fn reconnect(&mut self, translator: Translator) {
        self.translator = translator;
        self.resubscribe().await;
    }

    async fn resubscribe(&mut self) {
        self.events = self.client.events().await.unwrap();
        self.translator.stream_lost();
        self.catch_up().await;
    }

    /// Gives the turn this much time to end by itself, then fetches the history.
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
        let history = self.client.history(&self.session, &self.prompt_id, &mut |_| true).await.unwrap();
        let output = self.translator.reconcile(&history, self.agent.now());
        self.take(output);
    }

    /// Runs until the turn has ended.
    pub(crate) async fn finish(&mut self) -> TurnResult {
        let ending = async {
            while self.translator.is_busy() {
                match self.settle.take() {
                    None => self.step().await,
                    Some(after) => self.settle(after).await,
                }
            }
        };
        // Heartbeats never stop, so the timeout must cover the whole loop.
        let ended = timeout(TEST_TIMEOUT, ending).await;
        assert!(ended.is_ok(), "the turn never ended: {:?}", self.emitted);
        let emitted = std::mem::take(&mut self.emitted);
        let Some(ServerMessage::TurnComplete { message_ids, outcome }) = emitted.last() else {
            panic!("the turn did not end last: {emitted:?}")
        };
        let texts = emitted.iter().filter_map(|message| match message {
            ServerMessage::TextPartComplete { text, .. } => Some(text.as_str()),
            _ => None,
        });
        TurnResult { outcome: *outcome, messages: message_ids.len(), text: texts.collect(), emitted }
    }
}

impl TurnResult {
    pub(crate) fn errors(&self) -> Vec<&str> {
        let errors = self.emitted.iter().filter_map(|message| match message {
            ServerMessage::Error { message } => Some(message.as_str()),
            _ => None,
        });
        errors.collect()
    }

    /// All tokens, concatenated.
    pub(crate) fn tokens(&self) -> String {
        let token = |message: &ServerMessage| match message {
            ServerMessage::Token { token, .. } => Some(token.clone()),
            _ => None,
        };
        self.emitted.iter().filter_map(token).collect()
    }
}

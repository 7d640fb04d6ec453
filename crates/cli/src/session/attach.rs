//! A terminal, or a pipe, attached to a session: what is said there is shown here, what is written here is said there.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use client::{Client, Event, Stream, Watch};
use proto::SessionId;
use proto::socket::{Frame, ServerMessage, TurnOutcome};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::screen::Screen;
use super::send;
use super::turns::{Ended, Turns};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{DIM, RED, line};

/// One session and whoever sits here.
pub(super) struct Attached<'a> {
    context: &'a Context,
    client: Client,
    id: SessionId,
    stream: Stream,
    turns: Turns,
    screen: Screen<anstream::AutoStream<std::io::Stdout>>,
    /// Somebody types here and sees what they typed.
    is_terminal: bool,
    history: History,
    /// Somebody has asked to cancel the turn that runs.
    cancelled: bool,
    /// A turn of ours did not end well.
    failed: bool,
}

/// Whether what was said before is wanted, or only what comes.
enum History {
    Shown,
    Hidden,
}

impl<'a> Attached<'a> {
    pub(super) async fn open(context: &'a Context, client: Client, id: SessionId) -> Result<Self, Failure> {
        let stream = client.connect(id, Watch::default()).await?;
        Ok(Self {
            context,
            client,
            id,
            stream,
            turns: Turns::new(),
            screen: Screen::new(anstream::stdout()),
            is_terminal: std::io::stdin().is_terminal(),
            history: History::Shown,
            cancelled: false,
            failed: false,
        })
    }

    /// The session will begin with this prompt by itself.
    pub(super) fn expecting(mut self, prompt: Option<String>) -> Self {
        if let Some(prompt) = prompt {
            self.turns.sent(prompt);
        }
        self
    }

    /// Talks until whoever sits here has enough, or until the last piped line is answered.
    pub(super) async fn run(mut self) -> Result<ExitCode, Failure> {
        let mut interrupts = interrupts()?;
        let mut lines: Option<Lines<BufReader<Stdin>>> = Some(BufReader::new(tokio::io::stdin()).lines());
        if self.is_terminal {
            self.notice("each line is a prompt · Ctrl-C cancels the turn, twice leaves · Ctrl-D leaves");
        }
        while lines.is_some() || !self.turns.are_at_rest() {
            let listens = self.is_terminal || self.turns.are_at_rest();
            tokio::select! {
                event = self.stream.next() => self.hear(event)?,
                text = next_line(&mut lines), if listens => match text? {
                    Some(text) => self.say(text).await?,
                    None if self.is_terminal => break,
                    None => lines = None,
                },
                _ = interrupts.recv() => if self.interrupted().await? { break },
            }
        }
        self.screen.finish();
        // Whoever typed was told of what went wrong; a script has only the exit code.
        Ok(if self.failed && !self.is_terminal { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Sends one prompt and shows what comes of it.
    pub(super) async fn answer(mut self, text: String) -> Result<ExitCode, Failure> {
        let mut interrupts = interrupts()?;
        self.history = History::Hidden;
        while !self.turns.is_ready() {
            let event = self.stream.next().await;
            self.hear(event)?;
        }
        send(self.context, &self.client, self.id, &text).await?;
        self.turns.sent(text);
        while !self.turns.are_at_rest() {
            tokio::select! {
                event = self.stream.next() => self.hear(event)?,
                _ = interrupts.recv() => if self.interrupted().await? { return Ok(ExitCode::FAILURE) },
            }
        }
        self.screen.finish();
        Ok(if self.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    async fn say(&mut self, text: String) -> Result<(), Failure> {
        if text.trim().is_empty() {
            return Ok(());
        }
        match send(self.context, &self.client, self.id, &text).await {
            Ok(()) => self.turns.sent(text),
            // Whoever types can type it again.
            Err(failure) if self.is_terminal => self.complain(&failure.to_string()),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Ctrl-C: the first one cancels what runs. `true`: it is time to leave.
    async fn interrupted(&mut self) -> Result<bool, Failure> {
        if self.cancelled || !self.turns.is_busy() {
            return Ok(true);
        }
        self.cancelled = true;
        self.notice("cancelling; Ctrl-C again leaves");
        match self.client.cancel(self.id).await {
            Ok(()) => {}
            Err(error) if error.may_pass() => self.complain(&error.to_string()),
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }

    fn hear(&mut self, event: Option<Result<Event, client::Error>>) -> Result<(), Failure> {
        let event = event.ok_or_else(|| Failure::failed("the stream ended"))??;
        match event {
            Event::Frame(frame) => self.frame(&frame),
            Event::Unknown(text) if self.context.out.is_json() => line(&text),
            Event::Unknown(_) => {}
            Event::Lost { reason, attempt, pause } => {
                self.notice(&format!(
                    "connection lost: {reason}; attempt {attempt} to come back in {} s",
                    pause.as_secs()
                ));
            }
            Event::Back => self.notice("connected again"),
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame) {
        let busy = self.turns.is_busy();
        let ended = self.turns.observe(frame);
        if self.context.out.is_json() {
            line(&serde_json::json!(frame).to_string());
        } else {
            match (&frame.message, &self.history) {
                (ServerMessage::Init { .. }, History::Hidden) => {}
                (ServerMessage::Init { messages, earlier, .. }, History::Shown) => {
                    if *earlier > 0 {
                        let id = self.id;
                        self.notice(&format!(
                            "{earlier} earlier messages: `proliferate session show {id}` has them"
                        ));
                    }
                    self.screen.conversation(messages);
                }
                (other, _) => self.screen.show(other),
            }
        }
        if busy && !self.turns.is_busy() {
            self.cancelled = false;
        }
        match ended {
            None | Some(Ended::With(TurnOutcome::Ok)) => {}
            Some(Ended::With(TurnOutcome::Cancelled | TurnOutcome::Error)) => self.failed = true,
            Some(Ended::Unseen) => {
                self.failed = true;
                self.complain(&format!(
                    "the end of the turn was missed: `proliferate session show {}` has the answer",
                    self.id
                ));
            }
            Some(Ended::Never) => {
                self.failed = true;
                self.complain("the session ended before the prompt was answered");
            }
        }
    }

    fn notice(&mut self, text: &str) {
        self.screen.finish();
        // Nobody may be left to read it, which is no reason to stop.
        let _ = writeln!(anstream::stderr(), "{DIM}· {text}{DIM:#}");
    }

    fn complain(&mut self, text: &str) {
        self.screen.finish();
        let _ = writeln!(anstream::stderr(), "{RED}{text}{RED:#}");
    }
}

/// The next line of whoever writes here; nothing ever again once there is no more.
async fn next_line(lines: &mut Option<Lines<BufReader<Stdin>>>) -> Result<Option<String>, Failure> {
    match lines {
        Some(lines) => {
            let read = lines.next_line().await;
            read.map_err(|error| Failure::failed(format!("cannot read standard input: {error}")))
        }
        None => std::future::pending().await,
    }
}

fn interrupts() -> Result<Signal, Failure> {
    signal(SignalKind::interrupt())
        .map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))
}

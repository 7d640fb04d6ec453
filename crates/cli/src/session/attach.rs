//! Attaches a terminal or a pipe to a session: prints its events here and sends each input line as a prompt.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use client::{Client, Event, Stream, Watch};
use proto::SessionId;
use proto::http::AnswerQuestion;
use proto::socket::{Frame, ServerMessage, TurnOutcome};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::editor::{Editor, InputEvent, Terminal};
use super::question::TypedQuestions;
use super::screen::Screen;
use super::send;
use super::turns::{Ended, Prompt, Turns};
use crate::clean::{clean, clean_json};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{DIM, RED, json_line, line};

/// A connection between one session and the local terminal or pipe.
pub(super) struct AttachedSession<'a> {
    context: &'a Context,
    client: Client,
    id: SessionId,
    stream: Stream,
    turns: Turns,
    questions: TypedQuestions,
    screen: Screen<Terminal>,
    /// Standard input is a terminal, where a person types.
    is_terminal: bool,
    history: Backlog,
    interrupt: Interrupt,
    outcome: PromptOutcome,
    full: bool,
}

/// The outcome of the prompts sent from here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PromptOutcome {
    Pending,
    Succeeded,
    /// At least one prompt was not answered, or its turn failed.
    Failed,
}

/// What the last Ctrl-C did. After one that did something, the next one leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interrupt {
    None,
    /// It cancelled the running turn.
    Cancelled,
    /// It came at an idle prompt.
    Idle,
}

/// Whether to show earlier messages or only new ones.
enum Backlog {
    Shown,
    Hidden,
}

impl<'a> AttachedSession<'a> {
    pub(super) async fn open(
        context: &'a Context,
        client: Client,
        id: SessionId,
        full: bool,
    ) -> Result<Self, Failure> {
        let stream = client.connect(id, Watch::default()).await?;
        Ok(Self {
            context,
            client,
            id,
            stream,
            turns: Turns::new(),
            questions: TypedQuestions::default(),
            screen: Screen::new(Terminal::plain(), full),
            full,
            is_terminal: std::io::stdin().is_terminal(),
            history: Backlog::Shown,
            interrupt: Interrupt::None,
            outcome: PromptOutcome::Pending,
        })
    }

    /// Registers the first prompt of a new session, which was sent before this terminal attached.
    pub(super) fn expecting(mut self, prompt: Option<Prompt>) -> Self {
        if let Some(prompt) = prompt {
            self.turns.sent(prompt);
        }
        self
    }

    /// Runs until the user leaves, or until the last piped line is answered.
    pub(super) async fn run(mut self) -> Result<ExitCode, Failure> {
        if self.is_terminal {
            return self.converse().await;
        }
        let mut interrupts = interrupts()?;
        let mut lines: Option<Lines<BufReader<Stdin>>> = Some(BufReader::new(tokio::io::stdin()).lines());
        while lines.is_some() || !self.turns.are_idle() {
            tokio::select! {
                event = self.stream.next() => self.handle_event(event)?,
                text = next_line(&mut lines), if self.turns.are_idle() => match text? {
                    Some(text) => self.send_prompt(text).await?,
                    None => lines = None,
                },
                _ = interrupts.recv() => if self.handle_interrupt().await? { break },
            }
        }
        self.screen.finish();
        Ok(if self.outcome == PromptOutcome::Failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// The interactive loop, which prints errors instead of ending. The prompt appears only while no turn runs, or while
    /// the agent waits for an answer; anything typed earlier stays in the terminal's input buffer until then.
    async fn converse(mut self) -> Result<ExitCode, Failure> {
        let mut interrupts = interrupts()?;
        let mut editor = Editor::start()?;
        self.screen = Screen::new(editor.terminal(), self.full);
        self.notice("each line is a prompt, and so is a paste of several · Ctrl-C cancels the turn, twice leaves · Ctrl-D leaves, also while the agent works");
        loop {
            let takes_lines = self.turns.are_idle() || self.questions.wait();
            // Nobody answers a question with what was typed before it was asked.
            if takes_lines && !editor.waits() && self.questions.bind_prompt() {
                Editor::discard_typed();
            }
            tokio::select! {
                event = self.stream.next() => self.handle_event(event)?,
                typed = editor.next(takes_lines) => match typed {
                    InputEvent::Line(text) => self.enter(text).await?,
                    InputEvent::Interrupt => if self.handle_interrupt().await? { break },
                    InputEvent::End => break,
                },
                _ = interrupts.recv() => if self.handle_interrupt().await? { break },
            }
        }
        self.screen.finish();
        Ok(ExitCode::SUCCESS)
    }

    /// Sends one prompt and prints its answer. Neither prints nor waits for the turns of other users.
    pub(super) async fn answer(mut self, text: &str) -> Result<ExitCode, Failure> {
        let mut interrupts = interrupts()?;
        self.history = Backlog::Hidden;
        while !self.turns.is_ready() {
            let event = self.stream.next().await;
            self.handle_event(event)?;
        }
        let sent = send(self.context, &self.client, self.id, text).await?;
        self.turns.sent(Prompt::Id(sent));
        while self.outcome == PromptOutcome::Pending {
            tokio::select! {
                event = self.stream.next() => self.handle_event(event)?,
                _ = interrupts.recv() => if self.handle_interrupt().await? { return Ok(ExitCode::FAILURE) },
            }
        }
        self.screen.finish();
        Ok(if self.outcome == PromptOutcome::Failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Answers the agent's question with a typed line if the prompt was for it, or sends the line as a prompt.
    async fn enter(&mut self, text: String) -> Result<(), Failure> {
        let Some(question) = self.questions.take_bound() else { return self.send_prompt(text).await };
        match self.questions.answer(&question, &text) {
            _ if text.trim().is_empty() => {}
            None => self.notice("not sent: the question was answered meanwhile"),
            Some(Err(reason)) => self.print_error(&reason),
            Some(Ok(answers)) => {
                self.interrupt = Interrupt::None;
                let answered = self.client.answer(self.id, &question, &AnswerQuestion { answers }).await;
                match answered {
                    Ok(()) => self.questions.forget(&question),
                    Err(error) => self.print_error(&error.to_string()),
                }
            }
        }
        Ok(())
    }

    async fn send_prompt(&mut self, text: String) -> Result<(), Failure> {
        self.interrupt = Interrupt::None;
        if text.trim().is_empty() {
            return Ok(());
        }
        match send(self.context, &self.client, self.id, &text).await {
            Ok(id) => self.turns.sent(Prompt::Id(id)),
            // Report the error and continue: a person can type the prompt again.
            Err(failure) if self.is_terminal => self.print_error(&failure.to_string()),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Handles Ctrl-C: the first one cancels the running turn, or the typed line at an idle prompt. Returns `true` if the
    /// program should exit.
    async fn handle_interrupt(&mut self) -> Result<bool, Failure> {
        if self.interrupt != Interrupt::None {
            return Ok(true);
        }
        if !self.turns.is_busy() {
            if self.is_terminal {
                self.interrupt = Interrupt::Idle;
                self.notice("Ctrl-C again leaves, and so does Ctrl-D");
            }
            return Ok(!self.is_terminal);
        }
        self.interrupt = Interrupt::Cancelled;
        self.notice("cancelling; Ctrl-C again leaves");
        match self.client.cancel(self.id).await {
            Ok(()) => {}
            Err(error) if error.is_transient() => self.print_error(&error.to_string()),
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }

    fn handle_event(&mut self, event: Option<Result<Event, client::Error>>) -> Result<(), Failure> {
        let event = event.ok_or_else(|| Failure::failed("the stream ended"))??;
        match event {
            Event::Frame(frame) => self.frame(&frame),
            Event::Unknown(text) if self.context.out.is_json() => line(&clean_json(&text)),
            Event::Unknown(_) => {}
            Event::Disconnected { reason, attempt, pause } => {
                self.notice(&format!(
                    "connection lost: {reason}; attempt {attempt} to come back in {} s",
                    pause.as_secs()
                ));
            }
            Event::Reconnected => self.notice("connected again"),
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame) {
        let (busy, ours) = (self.turns.is_busy(), self.turns.is_ours());
        let ended = self.turns.observe(frame);
        let ours = ours || self.turns.is_ours() || ended.is_some();
        if ended.is_some() && self.outcome == PromptOutcome::Pending {
            self.outcome = PromptOutcome::Succeeded;
        }
        if self.context.out.is_json() {
            json_line(&serde_json::json!(frame));
        } else {
            match (&frame.message, &self.history) {
                (ServerMessage::Init { .. }, Backlog::Hidden) => {}
                (ServerMessage::Error { .. }, Backlog::Hidden) => self.screen.show(&frame.message),
                (_, Backlog::Hidden) if !ours => {}
                (ServerMessage::Init { messages, earlier, questions, approvals, .. }, Backlog::Shown) => {
                    if *earlier > 0 {
                        let id = self.id;
                        self.notice(&format!(
                            "{earlier} earlier messages: `proliferate session show {id}` has them"
                        ));
                    }
                    self.screen.conversation(messages);
                    self.screen.waiting(questions, approvals);
                }
                (other, _) => self.screen.show(other),
            }
        }
        if self.questions.observe(&frame.message) && self.is_terminal {
            self.notice(
                "type the answer, or the number of an option; if the prompt is visible, press Enter first",
            );
        }
        if busy && !self.turns.is_busy() {
            self.interrupt = Interrupt::None;
        }
        match ended {
            None | Some(Ended::With(TurnOutcome::Ok)) => {}
            Some(Ended::With(TurnOutcome::Cancelled | TurnOutcome::Error)) => {
                self.outcome = PromptOutcome::Failed;
            }
            Some(Ended::Unseen) => {
                self.outcome = PromptOutcome::Failed;
                self.print_error(&format!(
                    "the end of the turn was missed: `proliferate session show {}` has the answer",
                    self.id
                ));
            }
            Some(Ended::Never) => {
                self.outcome = PromptOutcome::Failed;
                self.print_error("the session ended before the prompt was answered");
            }
        }
    }

    fn notice(&mut self, text: &str) {
        self.screen.finish();
        self.print_note(&format!("{DIM}· {}{DIM:#}", clean(text)));
    }

    /// Prints a message for people: to the screen on a terminal, otherwise to stderr, so that piped output stays
    /// clean.
    fn print_note(&mut self, text: &str) {
        // Ignore write errors: a closed stderr is no reason to stop.
        let _ =
            if self.is_terminal { self.screen.note(text) } else { writeln!(anstream::stderr(), "{text}") };
    }

    fn print_error(&mut self, text: &str) {
        self.screen.finish();
        self.print_note(&format!("{RED}{}{RED:#}", clean(text)));
    }
}

/// The next line of standard input; `None` at its end, and pending for ever after that.
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

//! The line editor for prompts, with history and multi-line pastes, while the session prints above it.
//!
//! The editor blocks on keystrokes, so it runs on its own thread. It owns the terminal only while it waits for input;
//! output printed meanwhile goes through it, one line at a time. At all other times output goes straight to the
//! terminal.

use std::cell::RefCell;
use std::io::{self, Stdin, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use gateway::config;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{self, OptionalActions, QueueSelector, Termios};
use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, ExternalPrinter};
use tokio::sync::mpsc;

use crate::failure::Failure;

const PROMPT: &str = "› ";
/// How often we look for Ctrl-D while the agent works. To wait for it, something would have to read what is typed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An input event at the prompt.
#[derive(Debug)]
pub(super) enum InputEvent {
    Line(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, or the terminal was closed.
    End,
}

/// The line editor of one terminal.
pub(super) struct Editor {
    go: std_mpsc::Sender<()>,
    typed: mpsc::Receiver<InputEvent>,
    terminal: Terminal,
    before: Option<Termios>,
    waits: bool,
}

type Printer = Box<dyn ExternalPrinter>;

/// A writer to the terminal that works whether or not the editor owns it.
#[derive(Clone)]
pub(super) struct Terminal(Rc<RefCell<Inner>>);

struct Inner {
    printer: Option<Printer>,
    /// An incomplete line, buffered until it can be passed to the editor.
    line: Vec<u8>,
    edits: bool,
}

impl Terminal {
    pub(super) fn plain() -> Self {
        Self(Rc::new(RefCell::new(Inner { printer: None, line: Vec::new(), edits: false })))
    }
}

impl Write for Terminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.borrow_mut();
        if !inner.edits {
            return anstream::stdout().write(bytes);
        }
        inner.line.extend_from_slice(bytes);
        if let Some(end) = inner.line.iter().rposition(|byte| *byte == b'\n') {
            let lines: Vec<u8> = inner.line.drain(..=end).collect();
            inner.print(&lines);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        anstream::stdout().flush()
    }
}

impl Inner {
    fn print(&mut self, text: &[u8]) {
        if let Some(printer) = &mut self.printer {
            // Ignore errors: reading from the terminal reports that it was closed.
            let _ = printer.print(String::from_utf8_lossy(text).into_owned());
        }
    }
}

impl Editor {
    pub(super) fn start() -> Result<Self, Failure> {
        let failed = |error: ReadlineError| Failure::failed(format!("cannot use this terminal: {error}"));
        let mut editor = DefaultEditor::new().map_err(failed)?;
        editor.set_max_history_size(1000).map_err(failed)?;
        let printer = editor.create_external_printer().map_err(failed)?;
        let history = history_file();
        if let Some(file) = &history {
            // The history file does not exist on the first use.
            let _ = editor.load_history(file);
        }
        let (go, asked) = std_mpsc::channel();
        let (tell, typed) = mpsc::channel(1);
        let before = termios::tcgetattr(io::stdin()).ok();
        std::thread::spawn(move || read_lines(editor, history.as_deref(), &asked, &tell));
        let terminal = Terminal::plain();
        terminal.0.borrow_mut().printer = Some(Box::new(printer));
        Ok(Self { go, typed, terminal, before, waits: false })
    }

    pub(super) fn terminal(&self) -> Terminal {
        self.terminal.clone()
    }

    /// Whether the prompt is visible.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Forgets what was typed while the prompt was not visible.
    pub(super) fn discard_typed() {
        // Ignore errors: what cannot be discarded is shown in the line, where it can be deleted.
        let _ = termios::tcflush(io::stdin(), QueueSelector::IFlush);
    }

    /// Waits until Ctrl-D is pressed on an empty line, or the terminal is closed, while the prompt is not visible. Lines
    /// that are typed meanwhile stay where they are.
    async fn end_of_input(&self) {
        while !is_at_end(&io::stdin()) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits for the next line. The first call that takes lines shows the prompt; before, only the end of the input is
    /// awaited. Cancel-safe: a caller that stops waiting may call again.
    pub(super) async fn next(&mut self, takes_lines: bool) -> InputEvent {
        if !self.waits && !takes_lines {
            self.end_of_input().await;
            return InputEvent::End;
        }
        if !self.waits {
            self.waits = true;
            self.terminal.0.borrow_mut().edits = true;
            let _ = self.go.send(());
        }
        let typed = self.typed.recv().await.unwrap_or(InputEvent::End);
        self.waits = false;
        let mut inner = self.terminal.0.borrow_mut();
        inner.edits = false;
        let rest = std::mem::take(&mut inner.line);
        let _ = anstream::stdout().write_all(&rest);
        typed
    }
}

/// Whether the terminal's next read returns its end: it is readable, but no byte is there. It must not be in raw mode, in
/// which Ctrl-D is a byte.
fn is_at_end(input: &Stdin) -> bool {
    let mut watched = [PollFd::new(input, PollFlags::IN)];
    let is_readable = poll(&mut watched, Some(&Timespec::default())).is_ok_and(|count| count > 0);
    is_readable && rustix::io::ioctl_fionread(input).is_ok_and(|bytes| bytes == 0)
}

/// Restores the terminal settings, because a thread that is still waiting for keys does not.
impl Drop for Editor {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
        if self.waits {
            // Disable bracketed paste.
            let _ = io::stdout().write_all(b"\x1b[?2004l\n");
        }
    }
}

fn read_lines(
    mut editor: DefaultEditor,
    history: Option<&Path>,
    asked: &std_mpsc::Receiver<()>,
    tell: &mpsc::Sender<InputEvent>,
) {
    while asked.recv().is_ok() {
        let typed = match editor.readline(PROMPT) {
            Ok(line) => {
                if editor.add_history_entry(line.as_str()).unwrap_or(false)
                    && let Some(file) = history
                {
                    // Ignore errors: a prompt is still valid if it cannot be saved to the history.
                    let _ = editor.append_history(file);
                }
                InputEvent::Line(line)
            }
            Err(ReadlineError::Interrupted) => InputEvent::Interrupt,
            Err(_) => InputEvent::End,
        };
        if tell.blocking_send(typed).is_err() {
            return;
        }
    }
}

/// The path of the history file, `$XDG_STATE_HOME/proliferate/history`, in a directory that only its owner can read.
fn history_file() -> Option<PathBuf> {
    let environment = config::environment();
    let directory = |name: &str| environment.get(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let state = directory("XDG_STATE_HOME").or_else(|| Some(directory("HOME")?.join(".local/state")))?;
    let directory = state.join("proliferate");
    gateway::DataDir::prepare(&directory).ok()?;
    Some(directory.join("history"))
}

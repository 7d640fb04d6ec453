//! Deadlines for everything that tests wait for. A test that hangs would hide the results of all others, and what it waited
//! for.

use std::fmt::Display;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine: a boot of the agent, a snapshot, a restart.
pub(crate) const DEADLINE: Duration = Duration::from_mins(4);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The moment at which a test gives up.
pub(crate) struct Deadline(Instant);

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "a test that hangs does so in real time")]
    pub(crate) fn new() -> Self {
        Self(Instant::now() + DEADLINE)
    }

    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "a test that hangs does so in real time")]
    pub(crate) fn check(&self, what: impl Display) {
        assert!(Instant::now() < self.0, "waited {DEADLINE:?} in vain for {what}");
    }
}

/// Polls until the condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// Polls until there is a value.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::new();
    loop {
        if let Some(found) = find() {
            return found;
        }
        deadline.check(what);
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Runs a program to its end, or kills it.
#[track_caller]
pub(crate) fn output_of(command: &mut Command) -> Output {
    let what = format!("{command:?}");
    finish(
        &what,
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap(),
    )
}

/// Waits until a child has ended, and returns what it printed.
#[track_caller]
pub(crate) fn finish(what: &str, child: Child) -> Output {
    let pid = rustix::process::Pid::from_child(&child);
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    ended.recv_timeout(DEADLINE).map_or_else(
        |_| {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            panic!("waited {DEADLINE:?} in vain for the end of {what}")
        },
        Result::unwrap,
    )
}

/// Waits until a child has ended.
#[track_caller]
pub(crate) fn wait_for_end(what: &str, child: &mut Child) -> ExitStatus {
    wait_for(what, || child.try_wait().unwrap())
}

/// The lines that a program prints, as they come. The mutex is only for threads that share what has one of these.
pub(crate) struct Lines(Mutex<Receiver<String>>);

impl Lines {
    pub(crate) fn of(output: impl Read + Send + 'static) -> Self {
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Reads on when nobody listens any more, so that the program does not block.
                let _ = send.send(line);
            }
        });
        Self(Mutex::new(lines))
    }

    /// The next line, if the program has printed one.
    pub(crate) fn try_next(&mut self) -> Option<String> {
        self.0.get_mut().unwrap().try_recv().ok()
    }

    /// The next line; `None` at the end.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Option<String> {
        match self.0.get_mut().unwrap().recv_timeout(DEADLINE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("waited {DEADLINE:?} in vain for a line of output"),
        }
    }
}

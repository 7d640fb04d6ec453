//! Runs cases against a target until something is found or the time is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use clock::Clock;

use crate::mutate::{Dice, Mutator};

/// What is wrong with this input, if anything; chance decides how it is fed.
pub(crate) type Target<'a> = &'a dyn Fn(&[u8], &Dice) -> Result<(), String>;

/// An input that must not do what it did.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) case: u64,
    pub(crate) input: Vec<u8>,
    pub(crate) what: String,
}

impl Finding {
    /// What a person needs to repeat it and to keep it.
    pub(crate) fn report(&self) -> String {
        let (what, case, hex) = (&self.what, self.case, hex::encode(&self.input));
        format!("{what}\ncase {case}, to be kept in the corpus once it is mended:\n{hex}")
    }
}

/// The number of cases that ran, from number `first` on, or the first finding. A panic is a finding.
pub(crate) fn run(
    mutator: &Mutator<'_>,
    target: Target<'_>,
    first: u64,
    time: Duration,
) -> Result<u64, Finding> {
    let clock = Clock::system();
    let mut case = first;
    while clock.elapsed() < time {
        let dice = Dice::new(case);
        let input = mutator.case(case, &dice);
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&input, &dice)));
        let outcome = outcome.unwrap_or_else(|panic| Err(format!("panic: {}", text_of(&*panic))));
        if let Err(what) = outcome {
            return Err(Finding { case, input, what });
        }
        case += 1;
    }
    Ok(case - first)
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}

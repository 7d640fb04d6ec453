//! A small deterministic fuzzer without instrumentation: an input counts as new when its outcome has a shape that was
//! not seen before, and is then mutated further. Shared with the example that runs for longer and with `policy`.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use clock::{Clock, Rng};

/// Runs the code on an input and gives a second opinion: the shape of the outcome, or the promise that was broken.
pub(crate) type Run = fn(&[u8]) -> Result<String, String>;

/// What is fuzzed.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) run: Run,
    /// Pieces that readers trip over; spliced in anywhere.
    pub(crate) dictionary: &'static [&'static str],
    /// The crate whose folder `corpus/<name>` holds the kept inputs.
    pub(crate) home: &'static str,
}

/// One input that broke a promise, and which.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) input: Vec<u8>,
    pub(crate) problem: String,
}

pub(crate) struct Fuzzer {
    target: Target,
    rng: Rng,
    corpus: Vec<Vec<u8>>,
    shapes: HashSet<String>,
    pub(crate) runs: u64,
}

impl Fuzzer {
    pub(crate) fn new(target: Target, seed: u64) -> Self {
        let corpus = kept(&target);
        Self { target, rng: Rng::seeded(seed), corpus, shapes: HashSet::new(), runs: 0 }
    }

    /// Tries every kept input as it is, and then mutates them for so long, or so often.
    pub(crate) fn run(&mut self, time: Duration, most: u64) -> Result<(), Finding> {
        let clock = Clock::system();
        for input in self.corpus.clone() {
            self.try_one(&input)?;
        }
        while clock.elapsed() < time && self.runs < most {
            let pick = self.below(self.corpus.len());
            let mut input = self.corpus[pick].clone();
            for _ in 0..=self.below(4) {
                self.mutate(&mut input);
            }
            input.truncate(8192);
            if self.try_one(&input)? {
                self.corpus.push(input);
            }
        }
        Ok(())
    }

    /// Inputs that are worth keeping: one for each shape of outcome.
    pub(crate) fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    /// Returns whether the outcome has a new shape.
    fn try_one(&mut self, input: &[u8]) -> Result<bool, Finding> {
        self.runs += 1;
        let run = self.target.run;
        let outcome =
            catch_unwind(AssertUnwindSafe(|| run(input))).unwrap_or_else(|_| Err("it panicked".to_owned()));
        let shape = outcome.map_err(|problem| Finding { input: input.to_vec(), problem })?;
        Ok(self.shapes.insert(shape))
    }

    fn below(&self, limit: usize) -> usize {
        let random = u64::from_le_bytes(self.rng.bytes());
        usize::try_from(random % limit.max(1) as u64).unwrap_or_default()
    }

    fn mutate(&self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        match self.below(8) {
            0 | 1 => {
                let piece = self.target.dictionary[self.below(self.target.dictionary.len())];
                input.splice(at..at, piece.bytes());
            }
            2 if at < input.len() => input[at] = self.rng.bytes::<1>()[0],
            3 => {
                let end = (at + self.below(16)).min(input.len());
                input.drain(at..end);
            }
            4 => self.mutate_line(input),
            5 => {
                let other = &self.corpus[self.below(self.corpus.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 => {
                let end = (at + self.below(32)).min(input.len());
                let piece = input[at..end].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            _ => input.truncate(at),
        }
    }

    /// Doubles, drops or swaps whole lines: what a flip of single bytes does not find.
    fn mutate_line(&self, input: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> =
            input.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        if lines.is_empty() {
            return;
        }
        let (at, other) = (self.below(lines.len()), self.below(lines.len()));
        match self.below(3) {
            0 => lines.insert(other, lines[at].clone()),
            1 => {
                lines.remove(at);
            }
            _ => lines.swap(at, other),
        }
        *input = lines.concat();
    }
}

/// Reads a kept input. They are written with escapes, so that they can be read and no editor mends them; a real
/// line end means nothing.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut letters = text.bytes().filter(|byte| *byte != b'\n');
    while let Some(letter) = letters.next() {
        if letter != b'\\' {
            bytes.push(letter);
            continue;
        }
        bytes.push(match letters.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'x') => {
                let digits = [letters.next(), letters.next()].map(|digit| digit.unwrap_or(b'0') as char);
                u8::from_str_radix(&String::from_iter(digits), 16).unwrap_or_default()
            }
            other => other.unwrap_or(b'\\'),
        });
    }
    bytes
}

/// Writes an input to be kept; see [`decode`].
pub(crate) fn encode(bytes: &[u8]) -> String {
    let escaped =
        bytes.escape_ascii().to_string().replace("\\n", "\\n\n").replace("\\'", "'").replace("\\\"", "\"");
    let lines = escaped.lines().map(|line| match line.strip_suffix(' ') {
        Some(rest) => format!("{rest}\\x20\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// All kept inputs of a target, in the order of their names.
pub(crate) fn kept(target: &Target) -> Vec<Vec<u8>> {
    let folder = format!("{}/corpus/{}", target.home, target.name);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).map(|text| decode(&text)).collect()
}

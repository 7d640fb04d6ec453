//! What somebody has set for an action: one mode, or rules that choose a mode by the arguments. The examples of a setting
//! are checked whenever it is read, so one that contradicts them never decides.

use std::fmt;

use schemas::{Budget, OverBudget};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::condition::{Condition, count_patterns};
use crate::modes::Mode;

const MAX_BYTES: usize = 16 * 1024;
const MAX_DEPTH: usize = 24;
const MAX_RULES: usize = 20;
const MAX_EXAMPLES: usize = 50;
const MAX_PATTERNS: usize = 50;
/// How many steps the conditions of a setting may take for the arguments of a call, and for all examples together.
const STEPS: Budget = Budget(400_000);

/// The mode of an action as it was set: `allow`, `require_approval` or `deny`, or an object with the mode `else`, and
/// optionally `rules`, `examples` and `twoPerson`.
pub struct ModeSetting {
    otherwise: Mode,
    rules: Vec<(Condition, Mode)>,
    conditions: Option<Value>,
    two_person: bool,
    patterns: usize,
}

/// Which part of a setting with rules chose the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Branch {
    /// The first rule that matches, counted from 1.
    Rule(usize),
    Else,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModeSettingError {
    /// With the letters of the unknown word.
    #[error("a mode is allow, require_approval or deny, or an object with `else`, `rules` and `examples`")]
    Unknown(String),
    #[error("the mode is not of the expected shape: {0}")]
    Shape(String),
    #[error(
        "a mode has at most {MAX_RULES} rules, {MAX_EXAMPLES} examples, {MAX_BYTES} bytes as JSON, {MAX_DEPTH} levels and \
         {MAX_PATTERNS} patterns"
    )]
    TooLarge,
    #[error("the condition of rule {rule}: {problem}")]
    Condition { rule: usize, problem: String },
    #[error("the examples take too long to check: make them shorter, or the conditions simpler")]
    Examples,
    #[error("example {example} says {}, but {branch} makes it {}: correct one of them", .expected.as_str(), .actual.as_str())]
    Example { example: usize, expected: Mode, branch: Branch, actual: Mode },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Fields {
    #[serde(rename = "else")]
    otherwise: Mode,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    examples: Vec<Example>,
    #[serde(default)]
    two_person: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    when: Value,
    mode: Mode,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    args: Value,
    mode: Mode,
}

impl ModeSetting {
    pub fn parse(value: &Value) -> Result<Self, ModeSettingError> {
        if !value.is_object() {
            return Self::parse_word(value);
        }
        let text = value.to_string();
        if is_deeper(value, MAX_DEPTH) || text.len() > MAX_BYTES {
            return Err(ModeSettingError::TooLarge);
        }
        // PostgreSQL cannot store it.
        if text.contains("\\u0000") {
            return Err(ModeSettingError::Shape("a text contains the character U+0000".to_owned()));
        }
        let fields =
            Fields::deserialize(value).map_err(|error| ModeSettingError::Shape(error.to_string()))?;
        let patterns = fields.rules.iter().map(|rule| count_patterns(&rule.when)).sum();
        if fields.rules.len() > MAX_RULES || fields.examples.len() > MAX_EXAMPLES || patterns > MAX_PATTERNS {
            return Err(ModeSettingError::TooLarge);
        }
        let mut rules = Vec::with_capacity(fields.rules.len());
        for (rule, Rule { when, mode }) in (1..).zip(&fields.rules) {
            let problem = |problem| ModeSettingError::Condition { rule, problem };
            rules.push((Condition::compile(when).map_err(problem)?, *mode));
        }
        let has_conditions = !(fields.rules.is_empty() && fields.examples.is_empty());
        let conditions =
            has_conditions.then(|| json!({ "rules": fields.rules, "examples": fields.examples }));
        let Fields { otherwise, two_person, examples, .. } = fields;
        let setting = Self { otherwise, rules, conditions, two_person, patterns };
        setting.check(&examples)?;
        Ok(setting)
    }

    fn parse_word(value: &Value) -> Result<Self, ModeSettingError> {
        let text = value.as_str().unwrap_or("not_a_text");
        let letters =
            || text.chars().take(40).filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>();
        let otherwise = Mode::parse(text).ok_or_else(|| ModeSettingError::Unknown(letters()))?;
        Ok(Self { otherwise, rules: Vec::new(), conditions: None, two_person: false, patterns: 0 })
    }

    fn check(&self, examples: &[Example]) -> Result<(), ModeSettingError> {
        let mut budget = STEPS;
        for (example, Example { args, mode: expected }) in (1..).zip(examples) {
            let chosen = self.choose_within(Some(args), &mut budget);
            let (actual, branch) = chosen.map_err(|OverBudget| ModeSettingError::Examples)?;
            if actual != *expected {
                let branch = branch.unwrap_or(Branch::Else);
                return Err(ModeSettingError::Example { example, expected: *expected, branch, actual });
            }
        }
        Ok(())
    }

    /// The mode for these arguments: that of the first rule that matches, or else the one for all other arguments, which
    /// is also the answer while there are none. If the arguments are too large for the conditions, the strictest of all
    /// decides.
    pub fn choose(&self, arguments: Option<&Value>) -> (Mode, Option<Branch>) {
        let mut budget = STEPS;
        self.choose_within(arguments, &mut budget).unwrap_or_else(|OverBudget| self.strictest())
    }

    fn choose_within(
        &self,
        arguments: Option<&Value>,
        budget: &mut Budget,
    ) -> Result<(Mode, Option<Branch>), OverBudget> {
        for (number, (condition, mode)) in (1..).zip(&self.rules) {
            if let Some(arguments) = arguments
                && condition.matches(arguments, budget)?
            {
                return Ok((*mode, Some(Branch::Rule(number))));
            }
        }
        Ok((self.otherwise, (!self.rules.is_empty()).then_some(Branch::Else)))
    }

    fn strictest(&self) -> (Mode, Option<Branch>) {
        let rules = (1..).zip(&self.rules).map(|(number, (_, mode))| (*mode, Branch::Rule(number)));
        let strictest = rules.filter(|(mode, _)| *mode > self.otherwise).max_by_key(|(mode, _)| *mode);
        let (mode, branch) = strictest.unwrap_or((self.otherwise, Branch::Else));
        (mode, Some(branch))
    }

    /// The mode of arguments that no rule matches.
    pub const fn otherwise(&self) -> Mode {
        self.otherwise
    }

    /// The rules and examples, if there are any.
    pub const fn conditions(&self) -> Option<&Value> {
        self.conditions.as_ref()
    }

    /// How many patterns the conditions have, which decides how much memory they take.
    pub(crate) const fn patterns(&self) -> usize {
        self.patterns
    }

    /// Whether two people must approve.
    pub const fn two_person(&self) -> bool {
        self.two_person
    }
}

fn is_deeper(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return true };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper(item, below)),
        Value::Object(fields) => fields.values().any(|field| is_deeper(field, below)),
        _ => false,
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(number) => write!(f, "rule {number}"),
            Self::Else => f.write_str("else"),
        }
    }
}

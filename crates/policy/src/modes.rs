//! The second decision, for actions: allow, ask a human, or deny. It comes from maps of modes or from the
//! tool's risk.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::compiled;
use crate::mode_setting::{Branch, ModeSetting, ModeSettingError};

/// The reason of a mode that is stricter because the definition is not the one that was reviewed.
pub(crate) const DEFINITION_DRIFT: &str = "definition_drift";

/// Whether an action may run, ordered from the loosest to the strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Allow,
    RequireApproval,
    Deny,
}

/// The risk of a tool, ordered from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    Read,
    Write,
    Danger,
}

/// Which map, or default, determined the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeSource {
    AutomationOverride,
    OrgDefault,
    InferredDefault,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModeDecision {
    pub mode: Mode,
    pub source: ModeSource,
    /// Why the mode is stricter than the map or the risk says: `unknown_mode:…` or `definition_drift`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Which rule chose the mode by the arguments, if it was set with rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    /// Whether two people must approve.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub two_person: bool,
}

/// The key of an action in a map of modes: `sourceId:actionId`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeKey(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an action key: expected `sourceId:actionId`, without a slash before the colon")]
pub struct ModeKeyError;

/// The claims of a connector about its own tool. They may be false, so they can only raise the risk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints {
    pub destructive: bool,
    pub read_only: bool,
}

impl Mode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::RequireApproval => "require_approval",
            Self::Deny => "deny",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Allow, Self::RequireApproval, Self::Deny].into_iter().find(|mode| mode.as_str() == text)
    }
}

impl Risk {
    pub(crate) const NAMES: [(&str, Self); 3] =
        [("read", Self::Read), ("write", Self::Write), ("danger", Self::Danger)];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Danger => "danger",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(word, _)| *word == text).map(|(_, risk)| *risk)
    }

    /// The mode of an action that no map contains.
    pub const fn default_mode(self) -> Mode {
        match self {
            Self::Read => Mode::Allow,
            Self::Write => Mode::RequireApproval,
            Self::Danger => Mode::Deny,
        }
    }
}

impl ModeSource {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AutomationOverride => "automation_override",
            Self::OrgDefault => "org_default",
            Self::InferredDefault => "inferred_default",
        }
    }
}

impl ModeDecision {
    pub const fn new(mode: Mode, source: ModeSource) -> Self {
        Self { mode, source, reason: None, branch: None, two_person: false }
    }

    pub const fn inferred(risk: Risk) -> Self {
        Self::new(risk.default_mode(), ModeSource::InferredDefault)
    }

    /// Where the mode comes from, for people.
    pub fn origin(&self) -> String {
        let source = self.source.as_str();
        self.branch.map_or_else(|| source.to_owned(), |branch| format!("{source}, {branch}"))
    }
}

impl ModeKey {
    /// The key of a tool from `tools.yaml`: `tools:` and its full name. It cannot fail, so every tool has a
    /// mode.
    pub(crate) fn of_tool(name: &str) -> Self {
        Self(format!("tools:{name}"))
    }

    pub fn new(source: &str, action: &str) -> Result<Self, ModeKeyError> {
        format!("{source}:{action}").parse()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The source and the action.
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once(':').unwrap_or((&self.0, ""))
    }
}

impl std::str::FromStr for ModeKey {
    type Err = ModeKeyError;
    fn from_str(text: &str) -> Result<Self, ModeKeyError> {
        let (source, action) = text.split_once(':').ok_or(ModeKeyError)?;
        let right = !source.is_empty() && !source.contains('/') && !action.is_empty() && text.len() <= 300;
        if right && !text.contains(char::is_control) { Ok(Self(text.to_owned())) } else { Err(ModeKeyError) }
    }
}

/// Resolves the mode for these arguments: the automation's, else the organization's, else the default for the risk. An
/// automation cannot loosen what the organization denies for the same arguments, and an unknown value denies. Without
/// arguments it is the mode of those that no rule matches.
pub fn resolve_mode(
    key: &ModeKey,
    automation: Option<&Map<String, Value>>,
    org: &Map<String, Value>,
    risk: Risk,
    arguments: Option<&Value>,
) -> ModeDecision {
    let decide = |modes, source| Some(decision(lookup_mode(key, modes)?, source, arguments));
    let org = decide(org, ModeSource::OrgDefault);
    let automation = automation.and_then(|modes| decide(modes, ModeSource::AutomationOverride));
    let two_person = [&org, &automation].into_iter().flatten().any(|decision| decision.two_person);
    let resolved = match (automation, org) {
        (_, Some(org)) if org.mode == Mode::Deny => org,
        (Some(automation), _) => automation,
        (None, Some(org)) => org,
        (None, None) => ModeDecision::inferred(risk),
    };
    ModeDecision { two_person, ..resolved }
}

/// The setting that decides an action, unless the organization denies: the automation's, else the organization's. `None`
/// if there is none, or if it is wrong and denies.
pub fn deciding_setting(
    key: &ModeKey,
    automation: Option<&Map<String, Value>>,
    org: &Map<String, Value>,
) -> Option<Arc<ModeSetting>> {
    automation.and_then(|modes| lookup_mode(key, modes)).or_else(|| lookup_mode(key, org))?.ok()
}

/// Requires approval if the tool's definition differs from the one that was reviewed, or was never reviewed.
pub fn apply_drift(decision: ModeDecision, reviewed: Option<&str>, current: &str) -> ModeDecision {
    match (decision.mode, reviewed) {
        (Mode::Allow, reviewed) if reviewed != Some(current) => ModeDecision {
            mode: Mode::RequireApproval,
            reason: Some(DEFINITION_DRIFT.to_owned()),
            ..decision
        },
        _ => decision,
    }
}

/// The risk of a connector's tool: what an admin set, else the connector's default, raised by the tool's own
/// hints.
pub fn derive_risk(set: Option<Risk>, hints: Hints, default: Option<Risk>) -> Risk {
    let default = default.unwrap_or(Risk::Write);
    // `read_only` never lowers the risk: alone it may be false, and together with `destructive` it is a
    // contradiction.
    let said = if hints.destructive { Risk::Danger } else { Risk::Read };
    set.unwrap_or_else(|| default.max(said))
}

/// Looks a key up in a map of modes. Older clients wrote the key with a slash instead of the colon by
/// mistake; such a key counts as an unknown value, which denies, rather than as absent.
fn lookup_mode(key: &ModeKey, modes: &Map<String, Value>) -> Option<Result<Arc<ModeSetting>, String>> {
    let parse = |value: &Value| {
        compiled::setting(value).map_err(|error| match error {
            ModeSettingError::Unknown(word) => word,
            _ => "wrong_conditions".to_owned(),
        })
    };
    let slashed = || modes.get(&key.0.replacen(':', "/", 1)).map(|_| Err("key_with_slash".to_owned()));
    modes.get(&key.0).map(parse).or_else(slashed)
}

fn decision(
    setting: Result<Arc<ModeSetting>, String>,
    source: ModeSource,
    arguments: Option<&Value>,
) -> ModeDecision {
    match setting {
        Ok(setting) => {
            let (mode, branch) = setting.choose(arguments);
            ModeDecision { branch, two_person: setting.two_person(), ..ModeDecision::new(mode, source) }
        }
        Err(unknown) => {
            let reason = Some(format!("unknown_mode:{unknown}"));
            ModeDecision { reason, ..ModeDecision::new(Mode::Deny, source) }
        }
    }
}

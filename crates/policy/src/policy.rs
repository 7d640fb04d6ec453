//! The complete policy: the three files, parsed, checked against each other, and pinned.

use std::collections::BTreeMap;

use crate::error::{Mistake, PolicyError};
use crate::lanes::{self, Lane, Prohibition};
use crate::pin::{Pin, Pins};
use crate::roles::{self, Role};
use crate::tools::{self, HttpTool};
use crate::yaml;

const LANES_FILE: &str = "lanes.yaml";
const ROLES_FILE: &str = "roles.yaml";
const TOOLS_FILE: &str = "tools.yaml";

/// The contents of the policy files; absent ones come from the built-in policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files<'a> {
    pub lanes: Option<&'a str>,
    pub roles: Option<&'a str>,
    pub tools: Option<&'a str>,
}

/// A consistent policy. It is immutable; another version is another value.
#[derive(Clone, Debug)]
pub struct Policy {
    lanes: BTreeMap<String, Lane>,
    prohibitions: Vec<Prohibition>,
    roles: BTreeMap<String, Role>,
    tools: BTreeMap<String, HttpTool>,
    pins: Pins,
}

impl Policy {
    /// The built-in files, which operators can use as a starting point.
    pub const BUILT_IN: Files<'static> = Files {
        lanes: Some(include_str!("../../../policy/lanes.yaml")),
        roles: Some(include_str!("../../../policy/roles.yaml")),
        tools: Some(include_str!("../../../policy/tools.yaml")),
    };

    /// Parses and checks the files; returns the first mistake.
    pub fn load(files: Files<'_>) -> Result<Self, PolicyError> {
        Self::check(files).map_err(|(first, _)| first)
    }

    /// Parses and checks the files. Lanes and roles must be given together. Returns the first mistake and all
    /// others: at most one per file that does not parse, or every inconsistency if all files parse.
    pub fn check(files: Files<'_>) -> Result<Self, (PolicyError, Vec<PolicyError>)> {
        let (lanes_text, roles_text) = match (files.lanes, files.roles) {
            (Some(lanes), Some(roles)) => (lanes, roles),
            (None, None) => (built_in(Self::BUILT_IN.lanes), built_in(Self::BUILT_IN.roles)),
            (Some(_), None) => return Err((missing(ROLES_FILE, LANES_FILE), Vec::new())),
            (None, Some(_)) => return Err((missing(LANES_FILE, ROLES_FILE), Vec::new())),
        };
        let tools_text = files.tools.unwrap_or_else(|| built_in(Self::BUILT_IN.tools));
        let lanes =
            yaml::read(lanes_text).and_then(lanes::read).map_err(|mistake| mistake.in_file(LANES_FILE));
        let roles =
            yaml::read(roles_text).and_then(roles::read).map_err(|mistake| mistake.in_file(ROLES_FILE));
        let tools =
            yaml::read(tools_text).and_then(tools::read).map_err(|mistake| mistake.in_file(TOOLS_FILE));
        let (file, roles, tools) = match (lanes, roles, tools) {
            (Ok(file), Ok(roles), Ok(tools)) => (file, roles, tools),
            (lanes, roles, tools) => {
                return split_first(lanes.err().into_iter().chain(roles.err()).chain(tools.err()).collect());
            }
        };
        let policy = Self {
            lanes: file.lanes.into_iter().map(|lane| (lane.id.clone(), lane)).collect(),
            prohibitions: file.prohibitions,
            roles: roles.into_iter().map(|role| (role.id.clone(), role)).collect(),
            tools: tools.into_iter().map(|tool| (tool.name.clone(), tool)).collect(),
            pins: Pins {
                lanes: Pin::from_content(lanes_text),
                roles: Pin::from_content(roles_text),
                tools: Pin::from_content(tools_text),
            },
        };
        let mistakes: Vec<_> = policy.disagreements().into_iter().chain(policy.failed_examples()).collect();
        if mistakes.is_empty() { Ok(policy) } else { split_first(mistakes) }
    }

    pub fn lane(&self, id: &str) -> Option<&Lane> {
        self.lanes.get(id)
    }

    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.values()
    }

    pub fn role(&self, id: &str) -> Option<&Role> {
        self.roles.get(id)
    }

    pub fn roles(&self) -> impl Iterator<Item = &Role> {
        self.roles.values()
    }

    pub fn tool(&self, name: &str) -> Option<&HttpTool> {
        self.tools.get(name)
    }

    pub fn tools(&self) -> impl Iterator<Item = &HttpTool> {
        self.tools.values()
    }

    pub fn prohibitions(&self) -> &[Prohibition] {
        &self.prohibitions
    }

    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// A lane must list a role exactly if the role lists the lane. This catches edits of one file that forget
    /// the other.
    fn disagreements(&self) -> Vec<PolicyError> {
        let mut found = Vec::new();
        for lane in self.lanes.values() {
            for (role, line) in &lane.role_lines {
                if !self.roles.get(role).is_some_and(|role| role.lanes.contains(&lane.id)) {
                    let message = format!(
                        "the lane `{}` lists the role `{role}`, but {ROLES_FILE} does not give it the lane",
                        lane.id
                    );
                    found.push(Mistake::new(*line, message).in_file(LANES_FILE));
                }
            }
        }
        for role in self.roles.values() {
            for (lane, line) in &role.lane_lines {
                if !self.lanes.get(lane).is_some_and(|lane| lane.roles.contains(&role.id)) {
                    let message = format!(
                        "the role `{}` lists the lane `{lane}`, but {LANES_FILE} does not open it to the role",
                        role.id
                    );
                    found.push(Mistake::new(*line, message).in_file(ROLES_FILE));
                }
            }
        }
        found
    }

    fn failed_examples(&self) -> Vec<PolicyError> {
        let of_lanes = self.lanes.values().flat_map(|lane| {
            lane.examples.iter().filter_map(move |example| example.check_lane(self, lane).err())
        });
        let of_rules = self.prohibitions.iter().flat_map(|rule| {
            rule.examples.iter().filter_map(move |example| example.check_prohibition(self, rule).err())
        });
        of_lanes.chain(of_rules).map(|mistake| mistake.in_file(LANES_FILE)).collect()
    }
}

/// `mistakes` must not be empty.
fn split_first(mut mistakes: Vec<PolicyError>) -> Result<Policy, (PolicyError, Vec<PolicyError>)> {
    let first = mistakes.remove(0);
    Err((first, mistakes))
}

fn built_in(text: Option<&'static str>) -> &'static str {
    text.unwrap_or_default()
}

fn missing(absent: &'static str, present: &str) -> PolicyError {
    Mistake::new(
        1,
        format!("the file is missing: {present} was given, and lanes and roles must be given together"),
    )
    .in_file(absent)
}

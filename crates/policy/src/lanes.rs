//! `lanes.yaml`: what may be done, by which roles, with which scope.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::Mistake;
use crate::examples::Example;
use crate::fields::{Fields, LocatedText, items, one_of};
use crate::modes::Risk;
use crate::pattern::Pattern;
use crate::request::Flag;
use crate::yaml::Node;

/// Flags that no lane may permit, because they would defeat the gate itself.
const NEVER_PERMITTED: [&str; 3] = ["bypass_audit", "silent_changes", "unaudited_delivery"];

/// One lane: the roles, tools, writes and scope of one kind of work.
#[derive(Clone, Debug)]
pub struct Lane {
    pub id: String,
    pub purpose: String,
    pub roles: BTreeSet<String>,
    pub tools: Vec<Pattern>,
    pub writes: Vec<TableWrite>,
    /// The risks of tools that the lane allows; empty means any.
    pub risks: BTreeSet<Risk>,
    /// The git refs that agents may push to.
    pub refs: Vec<Pattern>,
    pub requires: BTreeSet<String>,
    pub prohibits: BTreeSet<Flag>,
    /// The flags that the lane allows. A flag is prohibited unless it is listed here and not in `prohibits`.
    pub permits: BTreeSet<Flag>,
    /// The longest duration of a grant, for a break-glass lane.
    pub override_minutes: Option<u64>,
    pub audit_level: Option<String>,
    pub(crate) line: usize,
    pub(crate) role_lines: Vec<(String, usize)>,
    pub(crate) examples: Vec<Example>,
}

/// A table and the operation that is allowed on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableWrite {
    pub table: String,
    pub mode: WriteMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    Append,
    Upsert,
}

/// A rule that denies calls in every lane. Every non-empty list must match the call; an empty list matches
/// any call.
#[derive(Clone, Debug)]
pub struct Prohibition {
    pub id: String,
    pub reason: String,
    pub roles: Vec<Pattern>,
    pub lanes: Vec<Pattern>,
    pub tools: Vec<Pattern>,
    pub(crate) line: usize,
    pub(crate) examples: Vec<Example>,
}

pub(crate) struct LanesFile {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) prohibitions: Vec<Prohibition>,
}

pub(crate) fn read(node: Node) -> Result<LanesFile, Mistake> {
    let mut file = Fields::from_node(node, "the file")?;
    header(&mut file)?;
    let lanes =
        items(file.require("lanes")?, "lanes")?.into_iter().map(parse_lane).collect::<Result<Vec<_>, _>>()?;
    let prohibitions =
        file.list("prohibitions")?.into_iter().map(parse_prohibition).collect::<Result<Vec<_>, _>>()?;
    file.end()?;
    let ids = lanes.iter().map(|lane| (&lane.id, lane.line));
    check_unique(ids, "lane")?;
    check_unique(prohibitions.iter().map(|rule| (&rule.id, rule.line)), "prohibition")?;
    Ok(LanesFile { lanes, prohibitions })
}

/// Parses the header that all policy files share.
pub(crate) fn header(file: &mut Fields) -> Result<(), Mistake> {
    file.text("version", 40)?;
    one_of(&file.text("contract_version", 10)?, "contract_version", &[("v1", ())])?;
    file.optional_text("last_updated", 40)?;
    Ok(())
}

pub(crate) fn check_unique<'a>(
    ids: impl Iterator<Item = (&'a String, usize)>,
    what: &str,
) -> Result<(), Mistake> {
    let mut seen = BTreeSet::new();
    for (id, line) in ids {
        if !seen.insert(id) {
            return Err(Mistake::new(line, format!("the {what} `{id}` is defined twice")));
        }
    }
    Ok(())
}

fn parse_lane(node: Node) -> Result<Lane, Mistake> {
    let mut fields = Fields::from_node(node, "a lane")?;
    let line = fields.line;
    let id = fields.name("lane_id")?.text;
    let purpose = fields.optional_text("purpose", 500)?.map(|found| found.text).unwrap_or_default();
    let mut callers = fields.map("allowed_callers")?;
    let role_lines: Vec<_> = callers.names("roles")?.into_iter().map(|role| (role.text, role.line)).collect();
    callers.end()?;
    let mut allowed = fields.map("allowed_actions")?;
    let tools = patterns(&mut allowed, "tools")?;
    let writes = allowed.list("writes")?.into_iter().map(write).collect::<Result<Vec<_>, _>>()?;
    let risks = risks(&mut allowed)?;
    let refs = refs(&mut allowed)?;
    allowed.end()?;
    let mut scope = fields.map("scope")?;
    let requires = texts(&mut scope, "requires")?;
    let prohibits = texts(&mut scope, "prohibits")?.into_iter().map(Flag::new).collect();
    let permits = permits(&mut scope)?;
    scope.end()?;
    let override_minutes = override_minutes(&mut fields)?;
    let audit_level = audit(&mut fields)?;
    let examples = Example::read_all(&mut fields)?;
    fields.end()?;
    let roles = role_lines.iter().map(|(role, _)| role.clone()).collect();
    Ok(Lane {
        id,
        purpose,
        roles,
        tools,
        writes,
        risks,
        refs,
        requires,
        prohibits,
        permits,
        override_minutes,
        audit_level,
        line,
        role_lines,
        examples,
    })
}

fn parse_prohibition(node: Node) -> Result<Prohibition, Mistake> {
    let mut fields = Fields::from_node(node, "a prohibition")?;
    let line = fields.line;
    let id = fields.name("rule_id")?.text;
    let reason = fields.text("reason", 160)?.text;
    let (roles, lanes) = (patterns(&mut fields, "roles")?, patterns(&mut fields, "lanes")?);
    let tools = patterns(&mut fields, "tools")?;
    let examples = Example::read_all(&mut fields)?;
    fields.end()?;
    if roles.is_empty() && lanes.is_empty() && tools.is_empty() {
        return Err(Mistake::new(
            line,
            "a prohibition must name roles, lanes or tools; the safety lock stops everything",
        ));
    }
    Ok(Prohibition { id, reason, roles, lanes, tools, line, examples })
}

fn patterns(fields: &mut Fields, key: &str) -> Result<Vec<Pattern>, Mistake> {
    fields.names(key)?.iter().map(Pattern::new).collect()
}

fn texts(fields: &mut Fields, key: &str) -> Result<BTreeSet<String>, Mistake> {
    Ok(fields.names(key)?.into_iter().map(|name| name.text).collect())
}

pub(crate) fn write(node: Node) -> Result<TableWrite, Mistake> {
    let mut fields = Fields::from_node(node, "a write")?;
    let table = fields.name("table")?.text;
    let mode = one_of(
        &fields.text("mode", 10)?,
        "mode",
        &[("append", WriteMode::Append), ("upsert", WriteMode::Upsert)],
    )?;
    fields.end()?;
    Ok(TableWrite { table, mode })
}

impl WriteMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Upsert => "upsert",
        }
    }
}

fn risks(actions: &mut Fields) -> Result<BTreeSet<Risk>, Mistake> {
    actions.names("risks")?.iter().map(|risk| one_of(risk, "risks", &Risk::NAMES)).collect()
}

/// The refs of a lane. By default branches and tags, but not the refs that forges use for other purposes.
fn refs(actions: &mut Fields) -> Result<Vec<Pattern>, Mistake> {
    let found = patterns(actions, "refs")?;
    Ok(if found.is_empty() { Pattern::branches_and_tags() } else { found })
}

fn permits(scope: &mut Fields) -> Result<BTreeSet<Flag>, Mistake> {
    let permit = |found: LocatedText| {
        if NEVER_PERMITTED.contains(&found.text.as_str()) {
            return Err(Mistake::new(found.line, format!("no lane may permit `{}`", found.text)));
        }
        Ok(Flag::new(found.text))
    };
    scope.names("permits")?.into_iter().map(permit).collect()
}

fn override_minutes(fields: &mut Fields) -> Result<Option<u64>, Mistake> {
    let Some(node) = fields.take("override") else { return Ok(None) };
    let mut time_box = Fields::from_node(node, "`override`")?;
    let line = time_box.line;
    let minutes = time_box.number("max_minutes", 1, 24 * 60)?;
    time_box.end()?;
    minutes.map(Some).ok_or_else(|| Mistake::new(line, "an override lane needs `max_minutes`"))
}

fn audit(fields: &mut Fields) -> Result<Option<String>, Mistake> {
    let mut audit = fields.map("audit")?;
    let line = audit.line;
    if audit.boolean("required")? == Some(false) {
        return Err(Mistake::new(line, "audit cannot be switched off: no audit, no effect"));
    }
    let level = audit.optional_text("level", 40)?.map(|found| found.text);
    audit.end()?;
    Ok(level)
}

//! `roles.yaml`: the roles, and their lanes.

use std::collections::BTreeSet;

use crate::error::Mistake;
use crate::fields::{Fields, items, one_of};
use crate::lanes::{check_unique, header};
use crate::request::ActorClass;
use crate::yaml::Node;

#[derive(Clone, Debug)]
pub struct Role {
    pub id: String,
    pub description: String,
    pub class: ActorClass,
    pub lanes: BTreeSet<String>,
    pub(crate) lane_lines: Vec<(String, usize)>,
    pub(crate) line: usize,
}

const ACTOR_CLASSES: [(&str, ActorClass); 3] =
    [("system", ActorClass::System), ("agent", ActorClass::Agent), ("human", ActorClass::Human)];

pub(crate) fn read(node: Node) -> Result<Vec<Role>, Mistake> {
    let mut file = Fields::from_node(node, "the file")?;
    header(&mut file)?;
    let roles =
        items(file.require("roles")?, "roles")?.into_iter().map(parse_role).collect::<Result<Vec<_>, _>>()?;
    file.end()?;
    check_unique(roles.iter().map(|role| (&role.id, role.line)), "role")?;
    Ok(roles)
}

fn parse_role(node: Node) -> Result<Role, Mistake> {
    let mut fields = Fields::from_node(node, "a role")?;
    let line = fields.line;
    let id = fields.name("role_id")?.text;
    let description = fields.optional_text("description", 500)?.map(|found| found.text).unwrap_or_default();
    let class = one_of(&fields.text("class", 10)?, "class", &ACTOR_CLASSES)?;
    let mut privileges = fields.map("privileges")?;
    let lane_lines: Vec<_> =
        privileges.names("lanes")?.into_iter().map(|lane| (lane.text, lane.line)).collect();
    privileges.end()?;
    fields.end()?;
    let lanes = lane_lines.iter().map(|(lane, _)| lane.clone()).collect();
    Ok(Role { id, description, class, lanes, lane_lines, line })
}

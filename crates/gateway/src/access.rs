//! Access control: one table and one decision function. Routes and socket commands name an [`Act`]; nothing else
//! compares roles.
//!
//! `docs/access.md` is generated from this table, and a test tries every cell of it over HTTP.

use std::fmt::Write as _;

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    Yes,
    No,
    /// Allowed for objects that this caller created, or that belong to its own session.
    Own,
    /// Allowed for owners; used in the column of admins and owners.
    Owner,
}

/// The kind of caller. A [`CallerKind::Member`] who created the object of the act is in the creator column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerKind {
    Member,
    Admin,
    Owner,
    Service,
    Sandbox,
}

/// One row of the table, in the order of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub creator: Cell,
    pub member: Cell,
    pub admin: Cell,
    pub service: Cell,
    pub sandbox: Cell,
}

macro_rules! acts {
    ($($act:ident: $text:literal [$creator:ident $member:ident $admin:ident $service:ident $sandbox:ident])+) => {
        /// Every act that a caller can request, in the order of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Act {
            $(#[doc = $text] $act,)+
        }

        impl Act {
            pub const ALL: &[Self] = &[$(Self::$act),+];

            /// The description of the act.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$act => $text,)+ }
            }

            /// The row of the act.
            pub const fn row(self) -> Row {
                match self {
                    $(Self::$act => Row {
                        creator: Cell::$creator,
                        member: Cell::$member,
                        admin: Cell::$admin,
                        service: Cell::$service,
                        sandbox: Cell::$sandbox,
                    },)+
                }
            }
        }
    };
}

acts! {
    //                                                   creator, other member, admin or owner, service, sandbox
    Public: "health, readiness, metrics, login (also of a device by code), signed webhooks (no credential needed)" [Yes Yes Yes Yes Yes]
    Identify: "ask who one is, log out" [Yes Yes Yes Yes Yes]
    Watch: "list and watch sessions, open questions and the inbox, read the transcript, presence, git status" [Yes Yes Yes Yes No]
    ReadStatus: "read the status of a session" [Yes Yes Yes Yes Own]
    CreateSession: "create a session" [Yes Yes Yes Yes No]
    Prompt: "prompt a session, answer a question of its agent, change its model" [Yes Yes Yes Yes No]
    Steer: "cancel, heartbeat" [Yes Yes Yes Yes No]
    EagerStart: "eager start" [No No No Yes No]
    ChangeSession: "rename, stop, snapshot, git branch, commit, push and pull request, env values, proxies" [Yes No Yes No No]
    UseServices: "see and steer the services and the environment files of a session" [Yes No Yes No Own]
    EnterSandbox: "run commands, copy files, read differences and logs in the sandbox of a session" [Yes No Yes No No]
    DeleteSession: "delete a session" [Yes No Yes No No]
    MakeTicket: "make and revoke own tickets" [Yes Yes Yes No No]
    ReadActions: "list the actions of a session, their guides and invocations" [Yes Yes Yes Yes Own]
    InvokeAction: "invoke an action of the session" [No No No No Own]
    UseMcp: "list and call actions over MCP (also API keys with the scope `mcp`, which may do nothing else)" [No No No No Own]
    DecideInvocation: "approve and deny invocations" [No No Yes No No]
    CallPlatformTool: "call a platform tool of the session" [No No No No Own]
    UseGitProxy: "fetch and push with git through the gateway" [No No No No Own]
    AskModel: "ask the model (where it costs money: sandboxes only)" [Yes Yes Yes Yes Own]
    CallTool: "call a tool through `/v1/tool-calls` (lanes and roles decide)" [Yes Yes Yes Yes Own]
    StartAgentRun: "start runs of kind `agent`, `orchestrator`" [Yes Yes Yes Yes Own]
    StartToolRun: "start runs of kind `tool_gateway`, `write_broker`, `db_read`, `db_write`" [Yes Yes Yes Yes No]
    StartGateRun: "start runs of kind `override`, `export`, `policy_change`, `promotion`, `system` (only the gate makes them)" [No No No No No]
    FinishRun: "finish a run" [Yes No Yes Own Own]
    ReadRuns: "read runs and artifacts" [Yes Yes Yes Yes Own]
    ReadLedger: "read the ledger" [Yes Yes Yes Yes No]
    ReadWorkspaces: "read repositories and configurations" [Yes Yes Yes Yes No]
    MakeConfiguration: "make a configuration from existing repositories" [Yes Yes Yes No No]
    ChangeConfiguration: "change a configuration, start a setup session on it" [Yes No Yes No No]
    ReadOrganization: "list members, names of secrets, egress rules and records, modes, usage, automations and their runs" [Yes Yes Yes No No]
    ManageOrganization: "add or remove repositories, secrets, members, automations, connectors, databases; change egress rules and the address for notifications; remove configurations" [No No Yes No No]
    SetActionModes: "set and remove modes of actions, also of an automation" [No No Yes No No]
    RunAutomation: "run an automation; cancel, repeat, assign and settle its runs" [Yes Yes Yes No No]
    ManageRoles: "change roles, add or remove admins and owners" [No No Owner No No]
    ManageOwnKeys: "make, list and revoke own API keys, let a device log in" [Yes Yes Yes No No]
    ChangeOwnPreferences: "see and change own preferences" [Yes Yes Yes No No]
    ManageOthersKeys: "list and revoke other people's API keys" [No No Yes No No]
}

/// Decides whether a caller may do something. `owns` means that the caller created the object of the act, or that it
/// belongs to the caller's own session.
pub const fn may(act: Act, kind: CallerKind, owns: bool) -> bool {
    let row = act.row();
    let cell = match kind {
        CallerKind::Member if owns => row.creator,
        CallerKind::Member => row.member,
        CallerKind::Admin | CallerKind::Owner => row.admin,
        CallerKind::Service => row.service,
        CallerKind::Sandbox => row.sandbox,
    };
    match cell {
        Cell::Yes => true,
        Cell::No => false,
        Cell::Own => owns,
        Cell::Owner => matches!(kind, CallerKind::Owner),
    }
}

impl Act {
    /// The name under which the ledger has every attempt of a caller who may not do this, where no handler records it.
    pub const fn recorded_name(self) -> Option<&'static str> {
        match self {
            Self::SetActionModes => Some("actions.modes"),
            Self::UseMcp => Some("mcp"),
            _ => None,
        }
    }

    /// The message that tells a refused caller who may do this.
    pub fn refusal(self) -> String {
        // Old clients look for this text.
        if self == Self::DecideInvocation {
            return "Admin or owner role required for action approvals".to_owned();
        }
        let row = self.row();
        let people = match (row.creator, row.member, row.admin) {
            (Cell::No, _, Cell::No) => None,
            (Cell::No, _, Cell::Owner) => Some("owners"),
            (Cell::No, _, _) => Some("admins and owners"),
            (_, Cell::No, _) => Some("whoever made it, admins and owners"),
            _ => Some("members"),
        };
        let programs = match (row.service, row.sandbox) {
            (Cell::No, Cell::No) => None,
            (_, Cell::No) => Some("services"),
            (Cell::No, _) => Some("the session's own sandbox"),
            _ => Some("services and the session's own sandbox"),
        };
        match (people, programs) {
            (Some("members"), Some("services")) => "Sandboxes may not do this".to_owned(),
            (Some(people), Some(programs)) => format!("Only {people}, {programs} may do this"),
            (Some(only), None) | (None, Some(only)) => format!("Only {only} may do this"),
            (None, None) => "No caller may do this: only the gateway itself does".to_owned(),
        }
    }
}

/// Renders the page `docs/access.md`, with the routes of each act.
pub fn document(routes: &[(String, Act)]) -> String {
    let mut page = String::from(
        "# Who may do what\n\n\
         Generated from `crates/gateway/src/access.rs`; a test fails when this page differs, and says how to write it anew.\n\n\
         A session without a creator (made by a service) counts every member as its creator. \"own\" means: made by this \
         caller, or of the sandbox's own session. Services are bound to one organization, or name it. Commands over a \
         WebSocket obey the same rows; there a service listens only, because its connection names no user.\n\n\
         | act | creator | other member | admin, owner | service | sandbox |\n|---|---|---|---|---|---|\n",
    );
    for act in Act::ALL {
        let Row { creator, member, admin, service, sandbox } = act.row();
        let cells = [creator, member, admin, service, sandbox].map(word).join(" | ");
        let _ = writeln!(page, "| {} | {cells} |", act.text());
    }
    page.push_str("\n## Routes\n\n| route | act |\n|---|---|\n");
    for (route, act) in routes {
        let _ = writeln!(page, "| `{route}` | {} |", act.text());
    }
    page
}

const fn word(cell: Cell) -> &'static str {
    match cell {
        Cell::Yes => "yes",
        Cell::No => "no",
        Cell::Own => "own",
        Cell::Owner => "owner",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_role_may_do_everything_that_a_lower_one_may() {
        for act in Act::ALL {
            for owns in [false, true] {
                let [member, admin, owner] = [CallerKind::Member, CallerKind::Admin, CallerKind::Owner]
                    .map(|kind| may(*act, kind, owns));
                assert!(member <= admin && admin <= owner, "{act:?}");
            }
            assert!(may(*act, CallerKind::Member, false) <= may(*act, CallerKind::Member, true), "{act:?}");
        }
    }

    #[test]
    fn refusals_name_the_allowed_roles() {
        let cases = [
            (Act::Watch, "Sandboxes may not do this"),
            (Act::EagerStart, "Only services may do this"),
            (Act::ChangeSession, "Only whoever made it, admins and owners may do this"),
            (Act::ManageOrganization, "Only admins and owners may do this"),
            (Act::ManageRoles, "Only owners may do this"),
            (Act::ManageOwnKeys, "Only members may do this"),
            (Act::DecideInvocation, "Admin or owner role required for action approvals"),
            (Act::UseGitProxy, "Only the session's own sandbox may do this"),
            (Act::StartGateRun, "No caller may do this: only the gateway itself does"),
        ];
        for (act, text) in cases {
            assert_eq!(act.refusal(), text);
        }
    }
}

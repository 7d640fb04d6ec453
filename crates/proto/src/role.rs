//! Who may do what in an organisation.

use crate::words::words;

words! {
    /// What a member is in an organisation; a later role may do all that an earlier one may.
    Role as "role" {
        /// Works with sessions.
        Member = "member",
        /// Also decides what sessions may reach.
        Admin = "admin",
        /// Also decides about the organisation itself.
        Owner = "owner",
    }

    /// A thing that not everyone may do.
    Permission as "permission" {
        /// See what belongs to the organisation.
        View = "view",
        /// Start a session.
        CreateSession = "create_session",
        /// Add a repository.
        AddRepo = "add_repo",
        /// Connect and disconnect provider accounts.
        ManageConnections = "manage_connections",
        /// Invite people.
        InviteMembers = "invite_members",
        /// Add, change and review MCP connectors.
        ManageConnectors = "manage_connectors",
        /// Set what policy answers to an action.
        ManageActionModes = "manage_action_modes",
        /// Write secrets and secret files.
        ManageSecrets = "manage_secrets",
        /// Approve and deny waiting actions.
        ApproveActions = "approve_actions",
        /// Change what others are.
        ManageRoles = "manage_roles",
        /// Change which mail domains may join.
        ManageDomains = "manage_domains",
        /// Delete the organisation.
        DeleteOrg = "delete_org",
    }
}

impl Role {
    /// Whether this role has the permission.
    pub fn may(self, permission: Permission) -> bool {
        self >= permission.least_role()
    }
}

impl Permission {
    /// The lowest role that has this permission.
    pub const fn least_role(self) -> Role {
        match self {
            Self::View | Self::CreateSession => Role::Member,
            Self::AddRepo
            | Self::ManageConnections
            | Self::InviteMembers
            | Self::ManageConnectors
            | Self::ManageActionModes
            | Self::ManageSecrets
            | Self::ApproveActions => Role::Admin,
            Self::ManageRoles | Self::ManageDomains | Self::DeleteOrg => Role::Owner,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_outrank_admins_who_outrank_members() {
        assert!(Role::Owner > Role::Admin && Role::Admin > Role::Member);
    }

    #[test]
    fn each_role_has_exactly_its_permissions() {
        let of = |role: Role| -> Vec<&str> {
            Permission::ALL.iter().filter(|p| role.may(**p)).map(|p| p.as_str()).collect()
        };
        let member = ["view", "create_session"];
        let admin = [
            "add_repo",
            "manage_connections",
            "invite_members",
            "manage_connectors",
            "manage_action_modes",
            "manage_secrets",
            "approve_actions",
        ];
        let owner = ["manage_roles", "manage_domains", "delete_org"];
        assert_eq!(of(Role::Member), member);
        assert_eq!(of(Role::Admin), [&member[..], &admin].concat());
        assert_eq!(of(Role::Owner), [&member[..], &admin, &owner].concat());
    }
}

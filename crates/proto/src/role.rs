//! Roles of members of an organization. The gateway's access table defines what each role may do.

use crate::string_enums::string_enums;

string_enums! {
    /// The role of a member; each role includes the permissions of the ones before it.
    Role as "role" {
        /// Members work with sessions.
        Member = "member",
        /// Admins also decide what sessions may access.
        Admin = "admin",
        /// Owners also manage the organization itself.
        Owner = "owner",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_outrank_admins_who_outrank_members() {
        assert!(Role::Owner > Role::Admin && Role::Admin > Role::Member);
    }
}

//! What a member is in an organisation. What each role may do is in the gateway's table of access.

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_outrank_admins_who_outrank_members() {
        assert!(Role::Owner > Role::Admin && Role::Admin > Role::Member);
    }
}

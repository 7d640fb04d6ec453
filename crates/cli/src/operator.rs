//! Identifies the user who runs an operator command. Operators need only write access to the data dir and have no
//! login with us, so the ledger names the user of the host.

/// The host's user as the ledger names them: `host:alice`, or `host:1000` if `/etc/passwd` has no name for the user
/// id.
pub(crate) fn host_user() -> String {
    let id = rustix::process::getuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next()?, fields.nth(1)?);
        (uid.parse() == Ok(id)).then(|| name.to_owned())
    });
    format!("host:{}", name.unwrap_or_else(|| id.to_string()))
}

//! Who runs an operator command: whoever can write to the data dir has no login of ours, so the ledger names the host's user.

/// The host's user as the ledger names them: `host:alice`, or `host:1000` where the machine has no name for the id.
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

//! All SQL of the system, once, for SQLite and PostgreSQL.
//!
//! Nothing else knows a table's name. A query is one text that runs on both databases; a real difference of
//! dialect is an explicit `match`. Reads go to a pool; every write is one transaction, and on SQLite all writes
//! pass one writer that commits whatever waits together (`writer.rs`).

mod backup;
mod db;
mod dialect;
mod error;
mod existing;
mod migrate;
mod probe;
mod writer;

// Who there is.
mod key;
mod login;
mod login_session;
mod member;
mod org;
// What a session is and which credentials it gave out.
mod sandbox_token;
mod session;
mod ticket;
// What sandboxes may reach.
mod egress;
// What must stay secret.
mod secret;

pub use backup::{backup_sqlite, check_backup, restore};
pub use db::{Durability, Store, describe_url};
pub use egress::{EgressPolicy, EgressRecord, NewEgressRecord};
pub use error::StoreError;
pub use key::{ApiKey, NewApiKey};
pub use login::NewLoginCode;
pub use login_session::NewLoginSession;
pub use member::{Member, NewMember};
pub use migrate::Migration;
pub use org::{FirstOwner, NewOrg, Org};
pub use probe::{Schema, probe_postgres, probe_sqlite};
pub use sandbox_token::{NewSandboxToken, SandboxOwner};
pub use secret::{NewSecret, Scope, Sealed, SecretEntry};
pub use session::{NewSession, SessionRow};
pub use ticket::{NewTicket, TicketKind, TicketOwner};

/// SHA-256 of a credential: what is stored instead of it.
pub type TokenHash = [u8; 32];

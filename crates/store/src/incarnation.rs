//! The incarnation of the database: while it stays the same, no write was lost that did not wait for the disk.
//!
//! A SQLite file loses such writes only when the machine goes down, so its incarnation is the kernel's boot. PostgreSQL also
//! loses them when the server restarts, and when one of its processes crashes: then all processes start again behind the same
//! postmaster, and only the server's statistics, which are reset, show it.

use crate::Store;
use crate::db::Db;

const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

impl Store {
    /// A query that returns the incarnation, or NULL if it is unknown, and its one parameter. Run it in the transaction that
    /// relies on it, so that no incarnation can end in between.
    pub(crate) fn incarnation(&self) -> (&'static str, Option<String>) {
        match &self.db {
            Db::Sqlite(_) => {
                let boot = std::fs::read_to_string(BOOT_ID_FILE).ok();
                ("SELECT $1", boot.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()))
            }
            Db::Postgres(_) => (
                "SELECT extract(epoch FROM pg_postmaster_start_time())::text || ' ' ||
                extract(epoch FROM stats_reset)::text FROM pg_stat_bgwriter WHERE $1::text IS NULL",
                None,
            ),
        }
    }
}

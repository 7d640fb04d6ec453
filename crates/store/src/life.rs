//! The life of the database: while it is the same, nothing was lost of what did not wait for the disk.
//!
//! A SQLite file loses such writes only with the machine, so its life is that of the kernel. PostgreSQL loses them with
//! its server, and also when one of its processes crashes: then all start anew behind the same postmaster, and only its
//! statistics tell, which begin again.

use crate::Store;
use crate::db::Db;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";

impl Store {
    /// A query that tells the life, and its one parameter; no answer where it cannot be known. To be asked in the
    /// transaction that relies on it: then no life can end between.
    pub(crate) fn life(&self) -> (&'static str, Option<String>) {
        match &self.db {
            Db::Sqlite { .. } => {
                let boot = std::fs::read_to_string(BOOT).ok();
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

//! Reads the ledger: events for people, entries for exports, hashes for the tree; and stores its checkpoints.

use chrono::{DateTime, Utc};
use ledger::{Chain, Entry, Hash};
use proto::OrgId;

use crate::db::{read, write};
use crate::row::from_row;
use crate::{Store, StoreError};

/// A listed event: its sequence in the chain, and the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEvent {
    pub chain: String,
    pub sequence: i64,
    pub record: String,
}

/// Selects events of an organization's chain.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    pub run_id: Option<String>,
    pub case_id: Option<String>,
    /// Restricts the list to events after this sequence number.
    pub after: i64,
    pub limit: i64,
}

/// A signed checkpoint of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptCheckpoint {
    pub size: i64,
    pub root: String,
    pub key_id: String,
    /// The complete signed note.
    pub note: String,
    pub at: DateTime<Utc>,
}

from_row!(ListedEvent, row => ListedEvent {
    chain: row.try_get("chain")?,
    sequence: row.try_get("sequence")?,
    record: row.try_get("record")?,
});

from_row!(KeptCheckpoint, row => KeptCheckpoint {
    size: row.try_get("size")?,
    root: row.try_get("root")?,
    key_id: row.try_get("key_id")?,
    note: row.try_get("signature")?,
    at: row.try_get("created_at")?,
});

/// An entry, converted from a row.
struct EntryRow(Entry);

from_row!(EntryRow, row => EntryRow(Entry {
    chain: Chain::new(row.try_get::<String, _>("chain")?).map_err(|e| sqlx::Error::Decode(e.into()))?,
    sequence: non_negative(row.try_get("sequence")?)?,
    position: non_negative(row.try_get("position")?)?,
    prev_hash: hash(row.try_get("prev_hash")?)?,
    hash: hash(row.try_get("hash")?)?,
    record: row.try_get("record")?,
}));

pub(crate) const SELECT_CHECKPOINTS: &str =
    "SELECT size, root, key_id, signature, created_at FROM ledger_checkpoints ORDER BY size";

pub(crate) fn hash(text: &str) -> sqlx::Result<Hash> {
    text.parse().map_err(|error: ledger::HashError| sqlx::Error::Decode(error.into()))
}

pub(crate) fn non_negative(number: i64) -> sqlx::Result<u64> {
    u64::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}

impl Store {
    /// Events of an organization's chain, oldest first.
    pub async fn ledger_events(
        &self,
        org: OrgId,
        filter: &EventFilter,
    ) -> Result<Vec<ListedEvent>, StoreError> {
        // `|| ''` keeps the planner from using the index by chain: a run or a case has few events, a chain has all.
        const OF_RUN: &str = "SELECT chain, sequence, record FROM ledger_events WHERE position IN
            (SELECT position FROM events_of_runs WHERE org_id = $6 AND run_id = $4
            UNION ALL SELECT position FROM ledger_events WHERE run_id = $4 AND unattached)
            AND chain || '' = $1 AND sequence > $2 AND ($5 IS NULL OR case_id = $5) ORDER BY sequence LIMIT $3";
        const OF_CASE: &str = "SELECT chain, sequence, record FROM ledger_events WHERE position IN
            (SELECT position FROM events_of_runs WHERE org_id = $5 AND case_id = $4
            UNION ALL SELECT position FROM ledger_events WHERE case_id = $4 AND unattached)
            AND case_id || '' = $4 AND chain || '' = $1 AND sequence > $2 ORDER BY sequence LIMIT $3";
        const SELECT_EVENTS: &str =
            "SELECT chain, sequence, record FROM ledger_events WHERE chain = $1 AND sequence > $2
            ORDER BY sequence LIMIT $3";
        let (after, limit) = (filter.after, filter.limit);
        let (chain, org) = (org.uuid().to_string(), org.uuid());
        let chain = chain.as_str();
        let found = match (filter.run_id.as_deref(), filter.case_id.as_deref()) {
            (Some(run), case) => read!(self, pool => sqlx::query_as(OF_RUN).bind(chain).bind(after)
                .bind(limit).bind(run).bind(case).bind(org).fetch_all(pool).await),
            (None, Some(case)) => read!(self, pool => sqlx::query_as(OF_CASE)
                .bind(chain).bind(after).bind(limit).bind(case).bind(org).fetch_all(pool).await),
            (None, None) => read!(self, pool => sqlx::query_as(SELECT_EVENTS)
                .bind(chain).bind(after).bind(limit).fetch_all(pool).await),
        };
        Ok(found?)
    }

    /// Entries of all chains from a position on, ordered by position.
    pub async fn ledger_entries(&self, from: u64, limit: i64) -> Result<Vec<Entry>, StoreError> {
        const SQL: &str = "SELECT chain, sequence, position, prev_hash, hash, record FROM ledger_events
            WHERE position >= $1 ORDER BY position LIMIT $2";
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        let rows: Vec<EntryRow> =
            read!(self, pool => sqlx::query_as(SQL).bind(from).bind(limit).fetch_all(pool).await)?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }

    /// The last entries of one chain or of all, ordered by position.
    pub async fn last_ledger_entries(
        &self,
        chain: Option<&Chain>,
        limit: i64,
    ) -> Result<Vec<Entry>, StoreError> {
        const SQL: &str = "SELECT chain, sequence, position, prev_hash, hash, record FROM ledger_events
            WHERE $1 IS NULL OR chain = $1 ORDER BY position DESC LIMIT $2";
        let chain = chain.map(Chain::as_str);
        let rows: Vec<EntryRow> =
            read!(self, pool => sqlx::query_as(SQL).bind(chain).bind(limit).fetch_all(pool).await)?;
        Ok(rows.into_iter().rev().map(|row| row.0).collect())
    }

    /// The event with this id, or the events of the runs with this id, ordered by position.
    pub async fn ledger_entries_about(&self, id: &str, limit: i64) -> Result<Vec<Entry>, StoreError> {
        // The chain of a deleted organization still exists.
        const SQL: &str = "SELECT chain, sequence, position, prev_hash, hash, record FROM ledger_events
            WHERE position IN (SELECT position FROM ledger_events WHERE event_id = $1
            UNION ALL SELECT position FROM ledger_events WHERE run_id = $1 AND unattached
            UNION ALL SELECT position FROM events_of_runs
                WHERE org_id IN (SELECT org_id FROM ledger_heads) AND run_id = $1)
            ORDER BY position LIMIT $2";
        let rows: Vec<EntryRow> =
            read!(self, pool => sqlx::query_as(SQL).bind(id).bind(limit).fetch_all(pool).await)?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }

    /// Ids of events and runs that start with a prefix. Reads the whole ledger.
    pub async fn ledger_ids(&self, beginning: &str, limit: i64) -> Result<Vec<String>, StoreError> {
        const SQL: &str = "SELECT event_id AS id FROM ledger_events WHERE substr(event_id, 1, $2) = $1
            UNION SELECT run_id AS id FROM runs WHERE substr(run_id, 1, $2) = $1 ORDER BY id LIMIT $3";
        let length = i32::try_from(beginning.chars().count()).unwrap_or(i32::MAX);
        Ok(read!(self, pool =>
            sqlx::query_scalar(SQL).bind(beginning).bind(length).bind(limit).fetch_all(pool).await)?)
    }

    /// The record of the last change of the signing key.
    pub async fn last_key_change(&self) -> Result<Option<String>, StoreError> {
        const SQL: &str = "SELECT record FROM ledger_events WHERE chain = 'system' AND action_type = 'system'
            AND record LIKE '%\"name\":\"audit_signing_key\"%' ORDER BY sequence DESC LIMIT 1";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).fetch_optional(pool).await)?)
    }

    /// The hashes from a position on: the leaves of the tree. They come as one text, because reading them as rows would take
    /// a tenth of the time of the calls that wrote them.
    pub async fn ledger_hashes(&self, from: u64, limit: i64) -> Result<Vec<Hash>, StoreError> {
        const SQL: &str = "SELECT string_agg(hash, ' ' ORDER BY position) FROM (SELECT position, hash
            FROM ledger_events WHERE position >= $1 ORDER BY position LIMIT $2) AS leaves";
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        let all: Option<String> =
            read!(self, pool => sqlx::query_scalar(SQL).bind(from).bind(limit).fetch_one(pool).await)?;
        Ok(all.unwrap_or_default().split_whitespace().map(hash).collect::<sqlx::Result<_>>()?)
    }

    /// The number of events over all chains.
    pub async fn ledger_size(&self) -> Result<u64, StoreError> {
        const SQL: &str = "SELECT size FROM ledger_tree WHERE id = 1";
        let size: i64 = read!(self, pool => sqlx::query_scalar(SQL).fetch_one(pool).await)?;
        Ok(non_negative(size)?)
    }

    /// The record of the policy that was loaded last, on any instance. A change of the safety lock is also a policy change, but
    /// does not name files. Free text cannot match the pattern, because records escape quotes.
    pub async fn last_policy_change(&self) -> Result<Option<String>, StoreError> {
        const SQL: &str = "SELECT record FROM ledger_events WHERE chain = 'system'
            AND action_type = 'policy_change' AND record LIKE '%\"operation\":\"load\"%'
            ORDER BY sequence DESC LIMIT 1";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).fetch_optional(pool).await)?)
    }

    /// Stores a checkpoint, unless there is one of the same size.
    pub async fn keep_checkpoint(&self, checkpoint: KeptCheckpoint) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO ledger_checkpoints (size, root, key_id, signature, created_at)
            SELECT $1, $2, $3, $4, $5 WHERE NOT EXISTS (SELECT 1 FROM ledger_checkpoints WHERE size = $1)";
        let KeptCheckpoint { size, root, key_id, note, at } = checkpoint;
        write!(self, Disk, tx => {
            sqlx::query(SQL).bind(size).bind(root).bind(key_id).bind(note).bind(at).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// The time of the last checkpoint.
    pub async fn last_checkpoint(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        const SQL: &str = "SELECT created_at FROM ledger_checkpoints ORDER BY size DESC LIMIT 1";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).fetch_optional(pool).await)?)
    }

    /// All checkpoints, the smallest first.
    pub async fn checkpoints(&self) -> Result<Vec<KeptCheckpoint>, StoreError> {
        Ok(read!(self, pool => sqlx::query_as(SELECT_CHECKPOINTS).fetch_all(pool).await)?)
    }
}

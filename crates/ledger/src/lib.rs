//! The audit ledger's data formats and proofs: strict and canonical JSON, hashes, hash chains, the Merkle
//! tree, signed checkpoints.
//!
//! This crate has no SQL, HTTP, clock or file access, so that an auditor can link it on its own.

mod canonical;
mod checkpoint;
mod entry;
mod event;
mod hash;
mod key;
mod note;
mod number;
mod redact;
mod statement;
mod strict;
mod text;
mod tree;
mod truncate;
mod verify;

pub use canonical::{CanonicalError, canonical};
pub use checkpoint::{Checkpoint, CheckpointError, KeyChange};
pub use entry::{AppendError, Chain, ChainError, Entry, Head, MAX_LINE};
pub use event::{
    ActionType, Actor, ActorType, ArtifactRef, ArtifactScope, Artifacts, Authz, Confidentiality,
    ContractVersion, Decision, Event, EventError, HashSource, Lineage, MAX_ARTIFACTS, Outcome,
    PolicyVersions, Severity, Target, TargetType, Timestamp, TimestampError, TooManyArtifacts,
};
pub use hash::{Hash, HashError, VOLATILE_FIELDS, keyed_hash, payload_hash, sha256};
pub use key::{KeyError, KeyId, PublicKey, SigningKey};
pub use redact::{REDACTED, Redactor, RedactorError, credential_parts, is_sensitive_key};
pub use statement::{LostKey, Restore};
pub use strict::{StrictError, check, parse};
pub use text::{Text, TextError};
pub use tree::{Tree, prove_consistency, prove_inclusion, verify_consistency, verify_inclusion};
pub use truncate::truncate;
pub use verify::{Fault, RecordProblem, Report, Rollback, UnprovenClaim, Verifier};

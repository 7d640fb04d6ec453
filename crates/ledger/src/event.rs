//! The fields of an audit event, Contract v1. No field holds content: only names, hashes and references.
//!
//! The fields of every struct are declared in alphabetical order and absent ones are skipped, so that plain
//! serialization is already canonical; a test compares the two.

use serde::{Deserialize, Serialize};

use crate::hash::Hash;
use crate::text::Text;

/// More references than any call needs. The limit keeps a record short enough for the line length that
/// verifiers accept.
pub const MAX_ARTIFACTS: usize = 64;

/// One audit event. The ledger adds chain, sequence and position; see [`Entry`](crate::Entry).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    pub action_type: ActionType,
    pub actor: Actor,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authz: Option<Authz>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case_id: Option<Text<1, 120>>,
    pub contract_version: ContractVersion,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Text<0, 120>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<EventError>,
    pub event_id: Text<8, 120>,
    #[serde(default, skip_serializing_if = "Artifacts::is_empty")]
    pub input_artifacts: Artifacts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane_id: Option<Text<0, 120>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<Text<0, 1000>>,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome_reason: Option<Text<0, 200>>,
    #[serde(default, skip_serializing_if = "Artifacts::is_empty")]
    pub output_artifacts: Artifacts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<Text<1, 120>>,
    pub policy_versions: PolicyVersions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_hash_sha256: Option<Hash>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_hash_sha256: Option<Hash>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_id: Option<Text<0, 80>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<Text<1, 120>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    pub timestamp_utc: Timestamp,
}

impl Event {
    /// An event with the required fields; callers assign the optional ones.
    pub fn new(
        event_id: Text<8, 120>,
        timestamp_utc: Timestamp,
        action_type: ActionType,
        outcome: Outcome,
        actor: Actor,
        policy_versions: PolicyVersions,
    ) -> Self {
        Self {
            action_type,
            actor,
            authz: None,
            case_id: None,
            contract_version: ContractVersion::V1,
            correlation_id: None,
            error: None,
            event_id,
            input_artifacts: Artifacts::default(),
            lane_id: None,
            notes: None,
            outcome,
            outcome_reason: None,
            output_artifacts: Artifacts::default(),
            parent_run_id: None,
            policy_versions,
            request_hash_sha256: None,
            response_hash_sha256: None,
            role_id: None,
            run_id: None,
            severity: None,
            target: None,
            timestamp_utc,
        }
    }
}

/// Defines an enum whose variants have one spelling, on the wire and in the database alike.
macro_rules! string_enum {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $(#[serde(rename = $word)] $variant),+ }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    };
}

string_enum!(
    /// The kind of action that was attempted.
    ActionType {
        ToolCall = "tool_call",
        DbWrite = "db_write",
        DbRead = "db_read",
        PolicyChange = "policy_change",
        Promotion = "promotion",
        Export = "export",
        Override = "override",
        AuthzDecision = "authz_decision",
        System = "system",
    }
);
string_enum!(Outcome { Allow = "allow", Deny = "deny", Success = "success", Failure = "failure" });
string_enum!(Severity { Info = "info", Warn = "warn", Error = "error", Critical = "critical" });
string_enum!(ContractVersion { V1 = "v1" });
string_enum!(ActorType { Agent = "agent", Human = "human", System = "system" });
string_enum!(Decision { Allow = "allow", Deny = "deny" });
string_enum!(TargetType {
    Tool = "tool",
    Table = "table",
    Artifact = "artifact",
    Policy = "policy",
    ExportBundle = "export_bundle",
    System = "system",
});
string_enum!(ArtifactScope { Case = "case", Shared = "shared", System = "system" });
string_enum!(
    /// The bytes over which an artifact's hash was computed.
    HashSource { Bytes = "bytes", NormalizedText = "normalized_text", NormalizedJson = "normalized_json" }
);

/// The actor of an audit event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Actor {
    pub actor_id: Text<3, 120>,
    pub actor_type: ActorType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_name: Option<Text<0, 120>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_display: Option<Text<0, 120>>,
}

/// The decision of the policy, and the rule that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authz {
    pub decision: Decision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_ref: Option<Text<0, 300>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_id: Option<Text<0, 120>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventError {
    pub error_code: Text<0, 80>,
    pub message: Text<0, 2000>,
    pub retryable: bool,
}

/// The versions of the two policy files that were in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyVersions {
    pub lanes: Text<6, 120>,
    pub roles: Text<6, 120>,
}

/// The target of an audit event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_ref: Option<ArtifactRef>,
    pub name: Text<0, 200>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Text<0, 200>>,
    pub target_type: TargetType,
}

/// A reference to content that is stored elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactRef {
    pub artifact_id: Text<3, 120>,
    pub artifact_kind: Text<2, 80>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub byte_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case_id: Option<Text<4, 120>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidentiality: Option<Confidentiality>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<Text<0, 120>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at_utc: Option<Timestamp>,
    pub hash_sha256: Hash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_source: Option<HashSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ArtifactScope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_locator: Option<Text<0, 600>>,
}

/// The kinds of confidential data in an artifact. Informative only: nothing is enforced with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confidentiality {
    pub contains_phi: bool,
    pub contains_pii: bool,
    pub contains_privileged: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<Text<0, 300>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lineage {
    pub derived_from: Vec<Text<3, 120>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<Text<1, 120>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transformation: Option<Text<0, 120>>,
}

/// A list of at most [`MAX_ARTIFACTS`] artifact references.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<ArtifactRef>")]
pub struct Artifacts(Vec<ArtifactRef>);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event may refer to at most {MAX_ARTIFACTS} artifacts")]
pub struct TooManyArtifacts;

impl Artifacts {
    pub fn as_slice(&self) -> &[ArtifactRef] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<Vec<ArtifactRef>> for Artifacts {
    type Error = TooManyArtifacts;
    fn try_from(artifacts: Vec<ArtifactRef>) -> Result<Self, TooManyArtifacts> {
        if artifacts.len() <= MAX_ARTIFACTS { Ok(Self(artifacts)) } else { Err(TooManyArtifacts) }
    }
}

/// A UTC timestamp with milliseconds, in exactly this format: `2026-11-15T08:30:00.123Z`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Timestamp(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a UTC timestamp in the format 2026-11-15T08:30:00.123Z")]
pub struct TimestampError;

impl Timestamp {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Timestamp {
    type Error = TimestampError;
    fn try_from(text: String) -> Result<Self, TimestampError> {
        let shape = b"0000-00-00T00:00:00.000Z";
        let fits = |(byte, wanted): (u8, &u8)| match wanted {
            b'0' => byte.is_ascii_digit(),
            other => byte == *other,
        };
        let right = text.len() == shape.len() && text.bytes().zip(shape).all(fits);
        if right { Ok(Self(text)) } else { Err(TimestampError) }
    }
}

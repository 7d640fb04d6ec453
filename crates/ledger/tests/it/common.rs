//! Sample ledgers with several chains and every kind of event.

use ledger::{
    ActionType, Actor, ActorType, ArtifactRef, Authz, Chain, Checkpoint, Decision, Entry, Event, Head,
    KeyChange, Outcome, PolicyVersions, SigningKey, Target, TargetType, Text, Timestamp, Tree, sha256,
};

pub(crate) fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed("example/ledger", &[seed; 32]).unwrap()
}

pub(crate) fn event(number: u64) -> Event {
    let kinds = ActionType::ALL;
    let kind = kinds[usize::try_from(number).unwrap() % kinds.len()];
    let actor = Actor {
        actor_id: Text::new(format!("agent-{number}")).unwrap(),
        actor_type: ActorType::Agent,
        agent_name: None,
        user_display: number.is_multiple_of(3).then(|| Text::cut("Zoë \"the\\quoted\"\n")),
    };
    let pins = PolicyVersions {
        lanes: Text::new("1".repeat(40)).unwrap(),
        roles: Text::new("2".repeat(40)).unwrap(),
    };
    let timestamp = Timestamp::try_from(format!("2026-11-15T08:30:00.{:03}Z", number % 1000)).unwrap();
    let id = Text::new(format!("event-{number:06}")).unwrap();
    let mut event = Event::new(id, timestamp, kind, Outcome::Allow, actor, pins);
    event.lane_id = Some(Text::cut("platform.coding"));
    event.run_id = Some(Text::new(format!("run-{number}")).unwrap());
    event.request_hash_sha256 = Some(sha256(&number.to_be_bytes()));
    event.authz = Some(Authz {
        decision: Decision::Allow,
        policy_ref: None,
        rule_id: Some(Text::cut("lane:platform.coding")),
    });
    event.target = Some(Target {
        artifact_ref: None,
        name: Text::cut("save_snapshot"),
        operation: Some(Text::cut("save_snapshot.run")),
        target_type: TargetType::Tool,
    });
    if number.is_multiple_of(4) {
        event.output_artifacts = vec![artifact(number)].try_into().unwrap();
    }
    event
}

fn artifact(number: u64) -> ArtifactRef {
    ArtifactRef {
        artifact_id: Text::new(format!("artifact-{number}")).unwrap(),
        artifact_kind: Text::new("tool_output").unwrap(),
        byte_size: Some(number),
        case_id: Some(Text::new("case-1").unwrap()),
        confidentiality: None,
        content_type: None,
        created_at_utc: None,
        hash_sha256: sha256(b"content"),
        hash_source: None,
        lineage: None,
        scope: None,
        storage_locator: None,
    }
}

/// A ledger that grows as in the gateway.
#[derive(Default)]
pub(crate) struct Ledger {
    heads: [Option<Head>; 3],
    pub(crate) tree: Tree,
    pub(crate) entries: Vec<Entry>,
}

impl Ledger {
    pub(crate) fn with_records(count: u64) -> Self {
        let mut ledger = Self::default();
        (0..count).for_each(|number| ledger.append(&event(number)));
        ledger
    }

    pub(crate) fn append(&mut self, event: &Event) {
        let position = self.tree.size();
        let turn = usize::try_from(position * position % 3).unwrap();
        let chain = Chain::new(["system", "org-a", "org-b"][turn]).unwrap();
        let entry = Entry::append(&chain, self.heads[turn], position, event).unwrap();
        self.heads[turn] = Some(entry.head());
        self.tree.push(&entry.hash);
        self.entries.push(entry);
    }

    pub(crate) fn change_key(&mut self, old: &SigningKey, new: &SigningKey) {
        let (name, operation) = KeyChange::TARGET;
        self.append_key_change(&KeyChange::sign(old, new), name, operation);
    }

    pub(crate) fn append_key_change(&mut self, notes: &str, name: &str, operation: &str) {
        let mut event = event(self.tree.size());
        event.action_type = ActionType::System;
        event.target = Some(Target {
            artifact_ref: None,
            name: Text::cut(name),
            operation: Some(Text::cut(operation)),
            target_type: TargetType::System,
        });
        event.notes = Some(Text::new(notes).unwrap());
        self.append(&event);
    }

    pub(crate) fn lines(&self) -> Vec<Vec<u8>> {
        self.entries.iter().map(|entry| entry.to_line().into_bytes()).collect()
    }

    pub(crate) fn checkpoint(&self, key: &SigningKey) -> Checkpoint {
        Checkpoint::sign(key, &self.tree)
    }
}

//! A gateway whose tools count their effects, and helpers to call it.

use gate::Governance;
use proto::Role;
use serde_json::{Value, json};
use testkit::EffectRecorder;

use crate::call::Answer;
use crate::harness::{Setup, TestGateway};
use crate::people::{OrgOf3, service_token};

/// A gateway with tools that count their effects; two of the tools write to a table.
pub(crate) struct World {
    pub(crate) effects: EffectRecorder,
    pub(crate) gateway: TestGateway,
    pub(crate) team: OrgOf3,
    pub(crate) token: String,
}

/// A `tools.yaml` whose tools call the effect counter at this address.
pub(crate) fn tools(address: &str) -> String {
    format!(
        "- {{name: effect.write, method: POST, url: 'http://{address}/effects/write', timeout_ms: 2000, risk: write,\n   \
         schema: {{type: object, properties: {{note: {{type: string, maxLength: 20}}}}, additionalProperties: false}}}}\n\
         - {{name: effect.read, method: POST, url: 'http://{address}/effects/read', timeout_ms: 2000, risk: read}}\n\
         - {{name: effect.look, method: GET, url: 'http://{address}/effects', timeout_ms: 2000, risk: read}}\n\
         - {{name: effect.peek, method: GET, url: 'http://{address}/effects/peek', timeout_ms: 2000, risk: read}}\n\
         - {{name: effect.open, method: POST, url: 'http://{address}/effects/open', risk: write,\n   \
         schema: {{type: object, additionalProperties: {{type: string}}}}}}\n\
         - {{name: effect.drop, method: POST, url: 'http://{address}/effects/drop', timeout_ms: 2000, risk: danger}}\n\
         - {{name: effect.private, method: POST, url: 'http://127.0.0.1:1/', risk: read}}\n\
         - {{name: effect.note, method: POST, url: 'http://{address}/effects/note', risk: write, \
         writes: {{table: artifacts, mode: append}}}}\n\
         - {{name: effect.rows, method: POST, url: 'http://{address}/effects/rows', risk: write, \
         writes: {{table: members, mode: append}}}}\n"
    )
}

impl World {
    pub(crate) async fn on(setup: Setup) -> Self {
        let effects = EffectRecorder::start().await.unwrap();
        let address = effects.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
        let gateway = setup.with_tools(&tools(&address), &address).start().await;
        let team = OrgOf3::new(&gateway.app).await;
        let token = service_token(&gateway.app, Some(team.org));
        Self { effects, gateway, team, token }
    }

    /// Restarts the gateway with another version of the same policy.
    pub(crate) async fn with_next_policy(self) -> Self {
        self.with_policy("# the next version\n").await
    }

    async fn with_policy(self, more: &str) -> Self {
        let lanes = [include_str!("../../../../policy/lanes.yaml"), more].concat();
        self.with_files(&lanes, include_str!("../../../../policy/roles.yaml")).await
    }

    /// Restarts the gateway with other lanes and roles.
    pub(crate) async fn with_files(self, lanes: &str, roles: &str) -> Self {
        let Self { effects, gateway, team, token } = self;
        let setup = gateway.stop().await;
        for (name, text) in [("lanes.yaml", lanes), ("roles.yaml", roles)] {
            std::fs::write(setup.directory().join("policy").join(name), text).unwrap();
        }
        Self { effects, gateway: setup.start().await, team, token }
    }

    /// Restarts the gateway with one more prohibition.
    pub(crate) async fn with_prohibition(self, rule: &str) -> Self {
        self.with_policy(&format!("  - {rule}\n")).await
    }

    /// Restarts the gateway with the safety lock engaged or released.
    pub(crate) async fn locked(self, locked: bool) -> Self {
        let Self { effects, gateway, team, token } = self;
        let (app, config) = (&gateway.app, gateway.setup.config());
        let governance = Governance {
            settings: config.gate_settings(),
            store: &app.store,
            clock: &app.clock,
            rng: &app.rng,
            operator: "host:tester",
        };
        governance.lock(locked, "a test").await.unwrap();
        let gateway = gateway.stop().await.start().await;
        Self { effects, gateway, team, token }
    }

    /// Starts a parent run for calls.
    pub(crate) async fn start_run(&self, run: &Value) -> Value {
        let started = self.gateway.post("/v1/runs", run).bearer(&self.token).send().await;
        assert_eq!(started.status, 201, "{}", started.text());
        started.json()
    }

    pub(crate) async fn call(&self, body: &Value) -> Answer {
        self.gateway.post("/v1/tool-calls", body).bearer(&self.token).send().await
    }

    pub(crate) async fn events(&self, run: &str) -> Vec<Value> {
        let owner = self.team.token(Role::Owner);
        let path = format!("/v1/audit/events?run_id={run}");
        let answer = self.gateway.get(&path).bearer(owner).send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["events"].as_array().unwrap().clone()
    }

    pub(crate) async fn run(&self, run: &str) -> Value {
        let path = format!("/v1/runs/{run}");
        self.gateway.get(&path).bearer(self.team.token(Role::Owner)).send().await.json()
    }

    pub(crate) fn effects(&self) -> usize {
        self.effects.all().len()
    }
}

/// A call that is allowed and has an effect.
pub(crate) fn write_call(run: &str) -> Value {
    json!({
        "tool_name": "effect", "operation": "effect.write", "lane_id": "actions.write",
        "actor": {"actor_type": "system", "actor_id": "worker"}, "case_id": "case-1", "run_id": run,
        "parent_run_id": null, "correlation_id": "why-1", "parameters": {"note": "hello"},
    })
}

pub(crate) fn with(mut call: Value, field: &str, value: Value) -> Value {
    call[field] = value;
    call
}

/// The events of a call that policy denies.
pub(crate) const DENIED_EVENTS: [(&str, &str); 2] = [("authz_decision", "deny"), ("tool_call", "deny")];

pub(crate) fn outcomes<'a>(events: &'a [Value]) -> Vec<(&'a str, &'a str)> {
    let both =
        |event: &'a Value| (event["action_type"].as_str().unwrap(), event["outcome"].as_str().unwrap());
    events.iter().map(both).collect()
}

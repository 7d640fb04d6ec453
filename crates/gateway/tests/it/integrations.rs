//! Integrations: the exact requests that reach a vendor, who may use which integration, and where a token never appears.

use proto::{Role, SessionId};
use serde_json::{Value, json};
use testkit::{Vendor, VendorAnswer};

use crate::harness::{Setup, TestGateway};
use crate::people::{OrgOf3, sandbox_token, service_token};

const TOKEN: &str = "canary-4711-vendor-token";

struct World {
    vendor: Vendor,
    gateway: TestGateway,
    team: OrgOf3,
    service: String,
}

impl World {
    async fn on(setup: Setup) -> Self {
        let vendor = Vendor::start().await.unwrap();
        let url = vendor.url();
        let urls = format!("linear={url}/graphql,sentry={url}/api/0,slack={url}/api,github={url}/api/v3");
        let address = url.trim_start_matches("http://").to_owned();
        let setup = setup.set("INTEGRATION_URLS", &urls).set("CONNECTOR_ALLOWED_HOSTS", &address);
        let gateway = setup.start().await;
        let team = OrgOf3::new(&gateway.app).await;
        let service = service_token(&gateway.app, Some(team.org));
        let world = Self { vendor, gateway, team, service };
        let set = world.gateway.call("PUT", "/v1/secrets/VENDOR_TOKEN").json(&json!({"value": TOKEN}));
        assert_eq!(set.bearer(world.owner()).status().await, 201);
        world
    }

    async fn both() -> [Self; 2] {
        [Self::on(Setup::sqlite()).await, Self::on(Setup::postgres().await).await]
    }

    fn owner(&self) -> &str {
        self.team.token(Role::Owner)
    }

    async fn add(&self, provider: &str) -> String {
        let new = json!({"provider": provider, "secretKey": "VENDOR_TOKEN"});
        let answer = self.gateway.post("/v1/integrations", &new).bearer(self.owner()).send().await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// Creates a session over the API, with more fields in its request.
    async fn session(&self, more: &Value) -> (u16, Value) {
        let mut new = json!({"sessionType": "coding", "clientType": "web"});
        new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = self.gateway.post("/proliferate/sessions", &new).bearer(self.owner()).send().await;
        (answer.status, answer.json())
    }

    async fn session_id(&self, more: &Value) -> SessionId {
        let (status, body) = self.session(more).await;
        assert_eq!(status, 201, "{body}");
        body["sessionId"].as_str().unwrap().parse().unwrap()
    }

    /// The providers in the catalog of a session.
    async fn catalog(&self, session: SessionId) -> Vec<String> {
        let token = sandbox_token(&self.gateway.app, session).await;
        let path = format!("/proliferate/{session}/actions/available");
        let body = self.gateway.get(&path).bearer(&token).send().await.json();
        let sources = body["integrations"].as_array().unwrap().iter();
        sources.map(|source| source["integration"].as_str().unwrap().to_owned()).collect()
    }

    /// Calls an action as a service, which no mode stops.
    async fn call(&self, run: &str, action: &str, lane: &str, parameters: Value) -> (u16, Value) {
        let call = json!({
            "tool_name": action, "operation": action, "lane_id": lane, "case_id": "case-1", "run_id": run,
            "actor": {"actor_type": "system", "actor_id": "worker"}, "parent_run_id": null,
            "correlation_id": "why-1", "parameters": parameters,
        });
        let answer = self.gateway.post("/v1/tool-calls", &call).bearer(&self.service).send().await;
        assert!(!answer.text().contains("canary-4711"), "{}", answer.text());
        (answer.status, answer.json())
    }
}

#[tokio::test]
async fn each_vendor_gets_exactly_one_request_with_its_token() {
    for world in World::both().await {
        for provider in ["linear", "sentry", "slack", "github"] {
            world.add(provider).await;
        }
        world.vendor.answer([
            VendorAnswer::json(200, json!({"data": {"issueUpdate": {"success": true, "echo": TOKEN}}})),
            VendorAnswer::json(200, json!([])),
            VendorAnswer::json(200, json!({"ok": true, "ts": "1.2", "channel": "C1"})),
            VendorAnswer::json(201, json!({"id": 1, "body": TOKEN})),
        ]);
        let comment = json!({"owner": "o", "repo": "r", "issue_number": 7, "body": "done"});
        for (run, action, lane, parameters) in [
            (
                "run-vendor-1",
                "linear:update_issue",
                "actions.write",
                json!({"issueId": "ENG-1", "priority": 2}),
            ),
            (
                "run-vendor-2",
                "sentry:list_issues",
                "actions.read",
                json!({"organization_slug": "a/..", "project_slug": "b", "query": "is:unresolved"}),
            ),
            ("run-vendor-3", "slack:post_message", "actions.write", json!({"channel": "#dev", "text": "hi"})),
            ("run-vendor-4", "github:comment_on_issue", "actions.write", comment),
        ] {
            let (status, body) = world.call(run, action, lane, parameters).await;
            assert_eq!(status, 200, "{action}: {body}");
        }
        let arrived = world.vendor.take();
        let shapes: Vec<_> = arrived.iter().map(|it| (it.method.as_str(), it.path.as_str())).collect();
        let wanted = [
            ("POST", "/graphql"),
            ("GET", "/api/0/projects/a%2F../b/issues/?query=is%3Aunresolved"),
            ("POST", "/api/chat.postMessage"),
            ("POST", "/api/v3/repos/o/r/issues/7/comments"),
        ];
        assert_eq!(shapes, wanted);
        assert_eq!(arrived[0].body["variables"], json!({"id": "ENG-1", "input": {"priority": 2}}));
        assert_eq!(arrived[2].body, json!({"channel": "#dev", "text": "hi"}));
        assert_eq!(arrived[3].body, json!({"body": "done"}));
        for request in &arrived {
            let sent: Vec<_> = request.headers.get_all("authorization").iter().collect();
            assert_eq!(sent, [format!("Bearer {TOKEN}").as_str()], "{}", request.path);
        }
        assert_eq!(arrived[2].headers["content-type"], "application/json; charset=utf-8");
        assert_eq!(arrived[3].headers["x-github-api-version"], "2022-11-28");
        let events = world.gateway.get("/v1/audit/events?limit=1000").bearer(world.owner()).send().await;
        assert!(!events.text().contains("canary-4711"), "{}", events.text());
    }
}

#[tokio::test]
async fn invalid_parameters_are_refused_all_at_once_and_nothing_is_sent() {
    let world = World::on(Setup::sqlite()).await;
    world.add("linear").await;
    let wrong = json!({"first": 51, "teamId": 7, "more": true});
    let (status, body) = world.call("run-vendor-1", "linear:list_issues", "actions.read", wrong).await;
    assert_eq!(status, 400, "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    for part in ["first must be at most 50", "teamId must be a text", "must not have other fields (1 found)"]
    {
        assert!(message.contains(part), "{message}");
    }
    assert!(world.vendor.take().is_empty());
}

#[tokio::test]
async fn a_write_is_repeated_only_if_nothing_can_have_happened() {
    let world = World::on(Setup::sqlite()).await;
    world.add("slack").await;
    world.add("sentry").await;
    let limited =
        VendorAnswer { headers: vec![("retry-after", "0")], ..VendorAnswer::json(429, json!("slow down")) };
    let posted = VendorAnswer::json(200, json!({"ok": true, "ts": "1", "channel": "C"}));
    let broken = VendorAnswer { hang_up: true, ..VendorAnswer::json(200, json!({})) };
    let post =
        |run| world.call(run, "slack:post_message", "actions.write", json!({"channel": "c", "text": "t"}));
    world.vendor.answer([limited.clone(), posted.clone()]);
    assert_eq!(post("run-vendor-1").await.0, 200);
    assert_eq!(world.vendor.take().len(), 2, "a rate limit has no effect, so the request is sent again");
    world.vendor.answer([broken.clone()]);
    let (status, body) = post("run-vendor-2").await;
    assert_eq!((status, world.vendor.take().len()), (502, 1), "{body}");
    assert!(body.to_string().contains("whether it took effect is unknown"), "{body}");
    world.vendor.answer([VendorAnswer::json(503, json!("down"))]);
    assert_eq!((post("run-vendor-3").await.0, world.vendor.take().len()), (502, 1));
    let long = VendorAnswer { headers: vec![("retry-after", "3600")], ..limited };
    world.vendor.answer([long]);
    let (status, body) = post("run-vendor-4").await;
    assert_eq!((status, world.vendor.take().len()), (503, 1), "{body}");
    // A read is repeated after a failure too.
    world.vendor.answer([broken, VendorAnswer::json(200, json!({"id": "1"}))]);
    let read = world.call("run-vendor-5", "sentry:get_issue", "actions.read", json!({"issue_id": "1"})).await;
    assert_eq!((read.0, world.vendor.take().len()), (200, 2), "{}", read.1);
}

#[tokio::test]
async fn vendor_errors_are_truncated_and_redacted() {
    let world = World::on(Setup::sqlite()).await;
    world.add("sentry").await;
    world.add("slack").await;
    let long = format!("{}{TOKEN}{}", "x".repeat(150), "y".repeat(5000));
    world.vendor.answer([
        VendorAnswer::json(404, json!(long)),
        VendorAnswer::json(200, json!({"ok": false, "error": "channel_not_found"})),
    ]);
    let (status, body) =
        world.call("run-vendor-1", "sentry:get_issue", "actions.read", json!({"issue_id": "1"})).await;
    let message = body["error"]["message"].as_str().unwrap();
    assert!(status == 502 && message.contains("Sentry API 404: ") && message.len() < 300, "{status} {body}");
    let message = json!({"channel": "c", "text": "t"});
    let (_, body) = world.call("run-vendor-2", "slack:post_message", "actions.write", message).await;
    assert!(body.to_string().contains("Slack API error: channel_not_found"), "{body}");
}

#[tokio::test]
async fn a_session_uses_the_integrations_that_it_is_connected_to() {
    for world in World::both().await {
        let linear = world.add("linear").await;
        let slack = world.add("slack").await;
        let all = world.session_id(&json!({})).await;
        assert_eq!(world.catalog(all).await, ["linear", "slack"], "by default all active ones");
        let one = world.session_id(&json!({"integrationIds": [slack, slack]})).await;
        assert_eq!(world.catalog(one).await, ["slack"]);
        let none = world.session_id(&json!({"integrationIds": []})).await;
        assert!(world.catalog(none).await.is_empty());
        // An integration that is added later, or of another organization, is not connected.
        world.add("sentry").await;
        assert_eq!(world.catalog(all).await, ["linear", "slack"]);
        let unknown = crate::people::some_uuid().to_string();
        assert_eq!(world.session(&json!({"integrationIds": [unknown]})).await.0, 404);
        // What a session is not connected to does not exist for its agent, whatever the catalog says.
        let token = sandbox_token(&world.gateway.app, one).await;
        let call = json!({
            "tool_name": "linear:list_issues", "operation": "linear:list_issues", "lane_id": "actions.read",
            "actor": {"actor_type": "agent", "actor_id": one.to_string()}, "case_id": null, "run_id": "run-vendor-1",
            "parent_run_id": null, "correlation_id": "why-1", "parameters": {},
        });
        let refused = world.gateway.post("/v1/tool-calls", &call).bearer(&token).send().await;
        assert!(refused.status >= 400 && world.vendor.take().is_empty(), "{}", refused.text());
        // A disabled integration is nobody's, and an enabled one is its sessions' again.
        let path = format!("/v1/integrations/{linear}");
        for (status, left) in [("disabled", vec!["slack"]), ("active", vec!["linear", "slack"])] {
            let change = world.gateway.call("PATCH", &path).json(&json!({"status": status}));
            assert_eq!(change.bearer(world.owner()).status().await, 200);
            assert_eq!(world.catalog(all).await, left);
            world.vendor.answer([VendorAnswer::json(200, json!({"data": {}}))]);
            let token = sandbox_token(&world.gateway.app, all).await;
            let body = json!({"integration": "linear", "action": "list_issues"});
            let invoked = world.gateway.post(&format!("/proliferate/{all}/actions/invoke"), &body);
            let invoked = invoked.bearer(&token).send().await;
            let expected = if status == "active" { (200, 1) } else { (404, 0) };
            assert_eq!((invoked.status, world.vendor.take().len()), expected, "{}", invoked.text());
        }
        assert_eq!(world.gateway.call("DELETE", &path).bearer(world.owner()).status().await, 200);
        assert_eq!(world.catalog(all).await, ["slack"]);
    }
}

#[tokio::test]
async fn sessions_of_an_automation_inherit_its_integrations() {
    for world in World::both().await {
        world.add("linear").await;
        let slack = world.add("slack").await;
        let new = json!({"name": "triage", "instructions": "Look at new issues."});
        let automation =
            world.gateway.post("/v1/automations", &new).bearer(world.owner()).send().await.json();
        let automation = automation["id"].as_str().unwrap().to_owned();
        let of_automation = json!({"automationId": automation});
        let default = world.session_id(&of_automation).await;
        assert_eq!(world.catalog(default).await, ["linear", "slack"]);
        let path = format!("/v1/automations/{automation}/integrations");
        let choose = async |ids: Value| {
            let call = world.gateway.call("PUT", &path).json(&json!({"integrationIds": ids}));
            call.bearer(world.owner()).status().await
        };
        assert_eq!(choose(json!([slack])).await, 200);
        let chosen = world.gateway.get(&path).bearer(world.owner()).send().await.json();
        assert_eq!(chosen, json!({"integrationIds": [slack]}));
        let inherited = world.session_id(&of_automation).await;
        assert_eq!(world.catalog(inherited).await, ["slack"]);
        assert_eq!(choose(json!([])).await, 200);
        assert!(world.catalog(world.session_id(&of_automation).await).await.is_empty());
        assert_eq!(choose(Value::Null).await, 200);
        assert_eq!(world.catalog(world.session_id(&of_automation).await).await, ["linear", "slack"]);
        assert_eq!(choose(json!([crate::people::some_uuid().to_string()])).await, 404);
        assert_eq!(world.catalog(inherited).await, ["slack"], "a later choice does not change a session");
    }
}

#[tokio::test]
async fn an_integration_needs_a_secret_and_exists_once_per_provider() {
    for world in World::both().await {
        let add = async |who: Role, body: Value| {
            world.gateway.post("/v1/integrations", &body).bearer(world.team.token(who)).send().await
        };
        let linear = json!({"provider": "linear", "secretKey": "VENDOR_TOKEN", "displayName": "Our Linear"});
        assert_eq!(add(Role::Member, linear.clone()).await.status, 403);
        for wrong in [
            json!({"provider": "linear", "secretKey": "NOT_SET"}),
            json!({"provider": "jira", "secretKey": "VENDOR_TOKEN"}),
            json!({"provider": "linear", "secretKey": "VENDOR_TOKEN", "displayName": "a\nb"}),
        ] {
            assert_eq!(add(Role::Admin, wrong.clone()).await.status, 400, "{wrong}");
        }
        assert_eq!(add(Role::Admin, linear.clone()).await.status, 201);
        assert_eq!(add(Role::Admin, linear).await.status, 409);
        let list = world.gateway.get("/v1/integrations").bearer(world.team.token(Role::Member)).send().await;
        let entry = &list.json()["integrations"][0];
        assert_eq!((&entry["displayName"], &entry["status"]), (&json!("Our Linear"), &json!("active")));
        assert!(!list.text().contains("canary"), "{}", list.text());
        // Another organization has none.
        let elsewhere = OrgOf3::new(&world.gateway.app).await;
        let theirs = world.gateway.get("/v1/integrations").bearer(elsewhere.token(Role::Owner)).send().await;
        assert_eq!(theirs.json(), json!({"integrations": []}));
    }
}

#[tokio::test]
async fn an_invocation_names_its_integration_and_one_that_is_not_connected_says_so() {
    for world in World::both().await {
        let (linear, slack) = (world.add("linear").await, world.add("slack").await);
        let own = world.session_id(&json!({"integrationIds": [linear]})).await;
        let token = sandbox_token(&world.gateway.app, own).await;
        let invoke = async |integration: &str, action: &str| {
            let body = json!({"integration": integration, "action": action, "params": {"issueId": "ENG-1"}});
            let path = format!("/proliferate/{own}/actions/invoke");
            let answer = world.gateway.post(&path, &body).bearer(&token).send().await;
            (answer.status, answer.json())
        };
        world.vendor.answer([VendorAnswer::json(200, json!({"data": {"issue": {"id": "1"}}}))]);
        let (status, done) = invoke("linear", "get_issue").await;
        assert_eq!((status, &done["invocation"]["integrationId"]), (200, &json!(linear)), "{done}");
        for (integration, action, said) in [
            ("slack", "post_message", "Integration slack not connected to this session"),
            ("linear", "post_message", "Unknown action: linear/post_message"),
            ("jira", "get_issue", "Unknown integration: jira"),
        ] {
            let (status, refused) = invoke(integration, action).await;
            let said = format!("{said}; `proliferate actions list` shows what there is");
            assert_eq!((status, &refused["error"]), (404, &json!(said)));
        }
        for (id, shown) in [(slack, json!(linear)), (linear, Value::Null)] {
            let path = format!("/v1/integrations/{id}");
            assert_eq!(world.gateway.call("DELETE", &path).bearer(world.owner()).status().await, 200);
            let path = format!("/proliferate/{own}/actions/invocations");
            let listed = world.gateway.get(&path).bearer(&token).send().await.json();
            assert_eq!(listed["invocations"][0]["integrationId"], shown, "{listed}");
        }
    }
}

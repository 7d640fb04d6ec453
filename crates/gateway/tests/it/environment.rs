//! Which environment files and values a session gets, and for whom submitted values are stored. The tests of the binary
//! show the files in real sandboxes.

use proto::http::SecretPurpose;
use proto::{Role, SessionId};
use serde_json::{Value, json};
use store::Scope;

use crate::call::Answer;
use crate::harness::TestGateway;
use crate::people::{OrgOf3, sandbox_token, session};

struct World {
    gateway: TestGateway,
    team: OrgOf3,
    session: SessionId,
}

impl World {
    async fn both() -> Vec<Self> {
        let mut worlds = Vec::new();
        for gateway in TestGateway::both().await {
            let team = OrgOf3::new(&gateway.app).await;
            let session = session(&gateway.app, team.org).await;
            worlds.push(Self { gateway, team, session });
        }
        worlds
    }

    async fn submit(&self, token: &str, body: &Value) -> Answer {
        let path = format!("/proliferate/{}/env", self.session);
        self.gateway.post(&path, body).bearer(token).send().await
    }

    /// Whether this owner has a value of this name.
    async fn has(&self, scope: Scope, key: &str) -> bool {
        let found = self.gateway.app.store.sealed_secret(self.team.org, scope, SecretPurpose::Env, key).await;
        found.unwrap().is_some()
    }
}

#[tokio::test]
async fn admins_alone_store_a_submitted_value_for_all_sessions() {
    for world in World::both().await {
        let own = Scope::Session(world.session);
        let (member, admin) = (world.team.token(Role::Member), world.team.token(Role::Admin));
        let plain = json!({"secrets": [{"key": "API_KEY", "value": "canary-1"}], "envVars": [{"key": "PORT", "value": "1"}]});
        let answer = world.submit(member, &plain).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let entry = json!({"key": "API_KEY", "persisted": false, "alreadyExisted": false});
        assert_eq!((&answer.json()["results"][0], &answer.json()["applied"]), (&entry, &json!(false)));
        assert!(!answer.text().contains("canary"), "{}", answer.text());
        assert_eq!((world.has(own, "API_KEY").await, world.has(own, "PORT").await), (true, true));
        assert!(!world.has(Scope::Org, "API_KEY").await);

        for persistent in [
            json!({"secrets": [{"key": "SHARED", "value": "canary-2", "persist": true}]}),
            json!({"secrets": [{"key": "SHARED", "value": "canary-2"}], "saveToConfiguration": true}),
        ] {
            let refused = world.submit(member, &persistent).await;
            assert_eq!(refused.status, 403, "{}", refused.text());
            assert!(!refused.text().contains("canary"), "{}", refused.text());
        }
        assert_eq!((world.has(own, "SHARED").await, world.has(Scope::Org, "SHARED").await), (false, false));

        let persistent = json!({"secrets": [{"key": "SHARED", "value": "canary-2", "persist": true}]});
        let mut entry = json!({"key": "SHARED", "persisted": true, "alreadyExisted": false});
        assert_eq!(world.submit(admin, &persistent).await.json()["results"], json!([entry]));
        assert!(world.has(Scope::Org, "SHARED").await);
        (entry["persisted"], entry["alreadyExisted"]) = (json!(false), json!(true));
        assert_eq!(world.submit(admin, &persistent).await.json()["results"], json!([entry]), "it stays");

        let inside = sandbox_token(&world.gateway.app, world.session).await;
        assert_eq!(world.submit(&inside, &plain).await.status, 403, "an agent submits nothing");
    }
}

#[tokio::test]
async fn values_in_unknown_fields_are_refused_with_the_names_of_the_fields() {
    for world in World::both().await {
        let member = world.team.token(Role::Member);
        for (body, field) in [
            (json!({"values": {"API_KEY": "canary-1"}}), "values"),
            (
                json!({"secrets": [{"key": "API_KEY", "value": "canary-1", "persists": true}]}),
                "secrets[0].persists",
            ),
            (
                json!({"envVars": [{"key": "API_KEY", "value": "canary-1", "name": "canary-1"}]}),
                "envVars[0].name",
            ),
        ] {
            let refused = world.submit(member, &body).await;
            assert_eq!(refused.status, 400, "{body}: {}", refused.text());
            let problem = format!("{field} is an unknown field");
            assert!(
                refused.text().contains(&problem) && !refused.text().contains("canary"),
                "{}",
                refused.text()
            );
            assert!(!world.has(Scope::Session(world.session), "API_KEY").await, "{body}");
        }
    }
}

/// A variable, and the owner of its value.
type Source<'a> = (&'a str, Option<&'a str>);

/// The files of a session with the owner of each variable's value.
fn sources(shown: &Value) -> Vec<(&str, Vec<Source<'_>>)> {
    let mut files = Vec::new();
    for file in shown["files"].as_array().unwrap() {
        let keys = file["keys"].as_array().unwrap().iter();
        let keys = keys.map(|key| (key["key"].as_str().unwrap(), key["source"].as_str()));
        files.push((file["path"].as_str().unwrap(), keys.collect()));
    }
    files
}

/// Configuration and repository have a file at one place, and the configuration's counts.
#[tokio::test]
async fn files_are_of_configurations_and_repositories_and_the_nearest_owners_value_counts() {
    for world in World::both().await {
        let ask = async |method: &str, path: &str, body: Value| {
            let call = world.gateway.call(method, path).bearer(world.team.token(Role::Admin));
            let answer = if body.is_null() { call.send().await } else { call.json(&body).send().await };
            assert!((200..300).contains(&answer.status), "{method} {path}: {}", answer.text());
            answer.json()
        };
        let named = |names: &[&str]| names.iter().map(|name| json!({ "key": name })).collect::<Vec<_>>();
        let repo =
            ask("POST", "/v1/repos", json!({"url": "https://example.com/o/app.git"})).await["id"].clone();
        let places = json!([{"repoId": repo, "workspacePath": "app"}]);
        let body = json!({"name": "one", "repos": places});
        let configuration = ask("POST", "/v1/configurations", body).await["id"].clone();
        let of_repo = json!([{"path": ".env", "keys": named(&["A", "B", "C", "D", "E"])},
            {"path": ".env.shared", "keys": named(&["HIDDEN"])}]);
        let path = format!("/v1/repos/{}", repo.as_str().unwrap());
        ask("PATCH", &path, json!({ "envFiles": of_repo })).await;
        let own = json!([{"workspacePath": "app", "path": ".env.shared", "keys": named(&["D"])}]);
        let path = format!("/v1/configurations/{}", configuration.as_str().unwrap());
        ask("PATCH", &path, json!({ "envFiles": own })).await;
        let new = json!({"sessionType": "coding", "clientType": "web", "configurationId": configuration});
        let session = ask("POST", "/proliferate/sessions", new).await["sessionId"].clone();
        for (owner, keys) in [
            (json!({}), &["A", "B", "C", "D"][..]),
            (json!({ "repoId": repo }), &["A", "B", "C"]),
            (json!({ "configurationId": configuration }), &["A", "B"]),
        ] {
            for key in keys {
                let mut body = json!({"value": "x", "purpose": "env"});
                body.as_object_mut().unwrap().extend(owner.as_object().unwrap().clone());
                ask("PUT", &format!("/v1/secrets/{key}"), body).await;
            }
        }
        let path = format!("/proliferate/{}/env", session.as_str().unwrap());
        ask("POST", &path, json!({"envVars": [{"key": "A", "value": "x"}]})).await;
        let shown = ask("GET", &path, Value::Null).await;
        let of_repo = vec![
            ("A", Some("session")),
            ("B", Some("configuration")),
            ("C", Some("repo")),
            ("D", Some("org")),
            ("E", None),
        ];
        let expected = vec![("app/.env.shared", vec![("D", Some("org"))]), ("app/.env", of_repo)];
        assert_eq!(sources(&shown), expected, "{shown}");
    }
}

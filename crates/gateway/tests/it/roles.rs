//! Roles: the complete matrix of who may change what in an organization, and that nobody can raise their own role.

use proto::Role;
use serde_json::{Value, json};

use crate::harness::TestGateway;
use crate::people::{OrgOf3, api_key, org, person, service_token, some_uuid};

const ROLES: [Role; 3] = [Role::Member, Role::Admin, Role::Owner];

/// A route, and the statuses that a member, an admin and an owner get there.
type Row<'a> = (&'a str, String, Value, [u16; 3]);

async fn ask(gateway: &TestGateway, token: &str, (method, path, body, _): &Row<'_>) -> u16 {
    let call = gateway.call(method, path).bearer(token);
    if body.is_null() { call.status().await } else { call.json(body).status().await }
}

#[tokio::test]
async fn each_role_may_do_exactly_its_part() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        for (at, who) in ROLES.into_iter().enumerate() {
            let other = person(&gateway.app, team.org, Role::Member).await.id;
            let (email, nobody) = (format!("{}@new.example", some_uuid()), some_uuid());
            let rows: Vec<Row<'_>> = vec![
                ("GET", "/v1/members".into(), Value::Null, [200, 200, 200]),
                ("POST", "/v1/members".into(), json!({"email": email, "role": "member"}), [403, 201, 201]),
                ("POST", "/v1/members".into(), json!({"email": email, "role": "admin"}), [403, 403, 409]),
                ("PATCH", format!("/v1/members/{other}"), json!({"role": "member"}), [403, 403, 200]),
                ("PATCH", format!("/v1/members/{nobody}"), json!({"role": "admin"}), [403, 403, 404]),
                ("DELETE", format!("/v1/members/{other}"), Value::Null, [403, 200, 200]),
                ("DELETE", format!("/v1/members/{other}"), Value::Null, [403, 404, 404]),
                ("GET", "/v1/keys".into(), Value::Null, [200, 200, 200]),
                ("POST", "/v1/keys".into(), json!({"name": "k"}), [201, 201, 201]),
                ("GET", "/v1/secrets".into(), Value::Null, [200, 200, 200]),
                ("PUT", format!("/v1/secrets/S{at}"), json!({"value": "v"}), [403, 201, 201]),
                ("PUT", format!("/v1/secrets/S{at}"), json!({"value": "w"}), [403, 200, 200]),
                ("DELETE", format!("/v1/secrets/S{at}"), Value::Null, [403, 200, 200]),
                ("DELETE", format!("/v1/secrets/S{at}"), Value::Null, [403, 404, 404]),
            ];
            for row in &rows {
                let status = ask(&gateway, team.token(who), row).await;
                assert_eq!(status, row.3[at], "{who:?}: {} {}", row.0, row.1);
            }
        }
    }
}

#[tokio::test]
async fn services_and_sandboxes_are_not_members() {
    let gateway = TestGateway::sqlite().await;
    let team = OrgOf3::new(&gateway.app).await;
    let session = crate::people::session(&gateway.app, team.org).await;
    let sandbox = crate::people::sandbox_token(&gateway.app, session).await;
    for token in [service_token(&gateway.app, None), service_token(&gateway.app, Some(team.org)), sandbox] {
        for (method, path) in
            [("GET", "/v1/members"), ("GET", "/v1/keys"), ("GET", "/v1/secrets"), ("PUT", "/v1/secrets/A")]
        {
            assert_eq!(gateway.call(method, path).bearer(&token).status().await, 403, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn an_admin_can_neither_create_nor_change_owners() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let (admin, owner) = (team.token(Role::Admin), team.id(Role::Owner));
        let path = |id| format!("/v1/members/{id}");
        let as_admin = async |method: &str, path: String, body: Value| {
            gateway.call(method, &path).bearer(admin).json(&body).status().await
        };
        let new = json!({"email": "boss@new.example", "role": "owner"});
        assert_eq!(as_admin("POST", "/v1/members".into(), new).await, 403);
        assert_eq!(as_admin("PATCH", path(team.id(Role::Member)), json!({"role": "owner"})).await, 403);
        assert_eq!(
            as_admin("PATCH", path(team.id(Role::Admin)), json!({"role": "owner"})).await,
            403,
            "themselves"
        );
        assert_eq!(as_admin("PATCH", path(owner), json!({"role": "member"})).await, 403);
        assert_eq!(as_admin("DELETE", path(owner), Value::Null).await, 403);
        let kept = gateway.app.store.members(team.org).await.unwrap();
        assert_eq!(kept.iter().filter(|member| member.role == Role::Owner).count(), 1, "{kept:?}");
    }
}

#[tokio::test]
async fn the_last_owner_stays() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let path = format!("/v1/members/{}", team.id(Role::Owner));
        let owner = team.token(Role::Owner);
        let demote = || gateway.call("PATCH", &path).bearer(owner).json(&json!({"role": "admin"})).status();
        assert_eq!(demote().await, 409);
        assert_eq!(gateway.call("DELETE", &path).bearer(owner).status().await, 409);
        person(&gateway.app, team.org, Role::Owner).await;
        assert_eq!(demote().await, 200, "there is another now");
    }
}

#[tokio::test]
async fn other_organizations_are_out_of_reach() {
    for gateway in TestGateway::both().await {
        let (ours, theirs) = (OrgOf3::new(&gateway.app).await, OrgOf3::new(&gateway.app).await);
        let owner = ours.token(Role::Owner);
        let victim = person(&gateway.app, theirs.org, Role::Member).await;
        let (key, _) = api_key(&gateway.app, &victim).await;
        let member = format!("/v1/members/{}", victim.id);
        assert_eq!(gateway.call("DELETE", &member).bearer(owner).status().await, 404);
        assert_eq!(
            gateway.call("PATCH", &member).bearer(owner).json(&json!({"role": "admin"})).status().await,
            404
        );
        assert_eq!(gateway.call("DELETE", &format!("/v1/keys/{key}")).bearer(owner).status().await, 404);
        let set = gateway
            .call("PUT", "/v1/secrets/T")
            .bearer(theirs.token(Role::Owner))
            .json(&json!({"value": "v"}));
        assert_eq!(set.status().await, 201);
        assert_eq!(gateway.call("DELETE", "/v1/secrets/T").bearer(owner).status().await, 404);
        assert_eq!(gateway.get("/v1/secrets").bearer(owner).send().await.json(), json!({"secrets": []}));
        let seen = gateway.get("/v1/members").bearer(owner).send().await.text();
        assert!(!seen.contains(&victim.id.to_string()), "{seen}");
        for (scope, id) in [("repoId", some_uuid()), ("configurationId", some_uuid())] {
            let body = json!({"value": "v", scope: id});
            let set = gateway.call("PUT", "/v1/secrets/R").bearer(owner).json(&body);
            assert_eq!(set.status().await, 404, "{scope}");
        }
    }
}

#[tokio::test]
async fn a_member_sees_and_ends_only_own_keys() {
    for gateway in TestGateway::both().await {
        let org = org(&gateway.app).await;
        let (ada, bob) =
            (person(&gateway.app, org, Role::Member).await, person(&gateway.app, org, Role::Member).await);
        let admin = person(&gateway.app, org, Role::Admin).await;
        let (of_ada, of_bob) = (api_key(&gateway.app, &ada).await, api_key(&gateway.app, &bob).await);
        let list = async |token: &str| {
            let keys = gateway.get("/v1/keys").bearer(token).send().await;
            assert!(
                !keys.text().contains(&of_ada.1) && !keys.text().contains(&of_bob.1),
                "a key is shown again"
            );
            keys.json()["keys"].as_array().unwrap().len()
        };
        assert_eq!((list(&ada.token).await, list(&bob.token).await, list(&admin.token).await), (1, 1, 2));
        let end = |token: &str, id| gateway.call("DELETE", &format!("/v1/keys/{id}")).bearer(token).status();
        assert_eq!(end(&ada.token, of_bob.0).await, 404);
        assert_eq!(gateway.get("/v1/me").bearer(&of_bob.1).status().await, 200, "it still works");
        assert_eq!(end(&ada.token, of_ada.0).await, 200);
        assert_eq!(end(&ada.token, of_ada.0).await, 404, "it is over already");
        assert_eq!(end(&admin.token, of_bob.0).await, 200);
        assert_eq!(gateway.get("/v1/me").bearer(&of_bob.1).status().await, 401);
    }
}

#[tokio::test]
async fn a_new_key_is_shown_once_and_acts_as_its_maker() {
    let gateway = TestGateway::sqlite().await;
    let team = OrgOf3::new(&gateway.app).await;
    let made =
        gateway.post("/v1/keys", &json!({"name": " laptop "})).bearer(team.token(Role::Member)).send().await;
    let key = made.json()["key"].as_str().unwrap().to_owned();
    let me = gateway.get("/v1/me").bearer(&key).send().await.json();
    assert_eq!((&me["role"], &me["source"]), (&json!("member"), &json!("cli")));
    let listed = gateway.get("/v1/keys").bearer(&key).send().await.json();
    assert_eq!(listed["keys"][0]["name"], "laptop");
    assert!(key.starts_with(listed["keys"][0]["hint"].as_str().unwrap()));
}

#[tokio::test]
async fn each_organization_has_its_own_name_of_a_member() {
    for gateway in TestGateway::both().await {
        let (ours, theirs) = (OrgOf3::new(&gateway.app).await, OrgOf3::new(&gateway.app).await);
        let email = format!("{}@test.example", some_uuid());
        let add = |team: &OrgOf3, name: &str| {
            let body = json!({"email": email, "name": name, "role": "member"});
            gateway.post("/v1/members", &body).bearer(team.token(Role::Owner)).send()
        };
        let (one, other) = (add(&ours, "Ada Lovelace").await, add(&theirs, "that countess").await);
        assert_eq!((one.status, other.status), (201, 201), "{} {}", one.text(), other.text());
        assert_eq!(one.json()["userId"], other.json()["userId"], "one address, one user");
        assert_eq!(one.json()["name"], "Ada Lovelace");
        assert_eq!(other.json()["name"], "that countess");
        let listed = gateway.get("/v1/members").bearer(ours.token(Role::Owner)).send().await.text();
        assert!(listed.contains("Ada Lovelace") && !listed.contains("countess"), "{listed}");
    }
}

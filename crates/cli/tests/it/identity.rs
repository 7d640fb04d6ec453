//! Organizations, users, keys and tokens from the command line, next to a running gateway.

use std::io::Read as _;
use std::process::Stdio;

use serde_json::json;

use crate::deadline::Lines;
use crate::harness::Machine;

#[test]
fn serve_creates_an_owner_and_prints_how_to_get_a_login_link() {
    let machine = Machine::new();
    let server = machine.serve();
    assert!(server.said["loginLink"].is_null(), "what a service prints is kept in a log");
    let link = machine.json(&["login-link"])["link"].as_str().unwrap().to_owned();
    assert!(link.starts_with(&server.url("/login#code=pll_")), "{link}");
    assert_eq!(server.stop(), 0);
    let machine = Machine::new();
    let mut child = machine.command(&["serve", "--listen", "0.0.0.0:0"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = Lines::of(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("first start") {
        said += &out.next().unwrap_or_else(|| panic!("{said}"));
    }
    child.kill().unwrap();
    let mut logged = String::new();
    child.stderr.take().unwrap().read_to_string(&mut logged).unwrap();
    child.wait().unwrap();
    assert!(said.contains("proliferate login-link") && !said.contains("pll_"), "{said}");
    assert!(said.contains("listening on 0.0.0.0:"), "{said}");
    assert!(logged.contains("is plain HTTP") && !logged.contains("pll_"), "{logged}");
}

#[test]
fn a_user_token_is_that_of_the_first_owner_and_nothing_else_is_printed() {
    let machine = Machine::new();
    let server = machine.serve();
    let token = machine.run(&["token", "user"]).out;
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
    assert_eq!(token.lines().count(), 1);
    let (status, me) = server.get("/v1/me", token.trim());
    assert_eq!((status, me["role"].as_str(), me["source"].as_str()), (200, Some("owner"), Some("user")));
}

#[test]
fn organizations_and_users_created_on_the_command_line_are_seen_by_a_running_gateway() {
    let machine = Machine::new();
    let server = machine.serve();
    let org = machine.json(&["orgs", "create", "--name", "Acme"])["id"].as_str().unwrap().to_owned();
    let create = ["users", "create", "--email", "Ada@Example.com", "--org", &org, "--role", "admin"];
    let user = machine.json(&create)["id"].as_str().unwrap().to_owned();
    let token = machine.run(&["token", "user", "--user", &user, "--org", &org]).out;
    let (_, me) = server.get("/v1/me", token.trim());
    assert_eq!((me["userId"].as_str(), me["orgId"].as_str()), (Some(user.as_str()), Some(org.as_str())));
    assert_eq!(me["role"], "admin");

    let listed = machine.json(&["users", "ls", "--org", &org]);
    assert_eq!(listed[0]["email"], "ada@example.com");
    assert_eq!(machine.run(&["users", "rm", &user, "--org", &org]).code, 0);
    assert_eq!(server.get("/v1/me", token.trim()).0, 401, "the token of a removed member is dead");
    let text = machine.run(&["orgs", "ls"]).out;
    assert!(text.contains("Acme") && text.contains("NAME"), "{text}");
}

#[test]
fn a_key_works_until_it_is_revoked_and_is_never_listed() {
    let machine = Machine::new();
    let server = machine.serve();
    let made = machine.json(&["keys", "create", "--name", "ci"]);
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert_eq!(server.get("/v1/me", key).1["source"], "cli");
    let listed = machine.run(&["keys", "ls", "--json"]).out;
    assert!(listed.contains(id) && !listed.contains(key), "{listed}");
    assert_eq!(machine.run(&["keys", "revoke", id]).code, 0);
    let scoped = machine.json(&["keys", "create", "--name", "client", "--scope", "mcp"]);
    let listed = machine.json(&["keys", "ls"]);
    assert_eq!((&listed[0]["id"], &listed[0]["scope"]), (&scoped["id"], &json!("mcp")), "{listed}");
    assert_eq!(server.get("/v1/me", key).0, 401);
    assert_eq!(machine.run(&["keys", "revoke", id]).code, 1, "there is nothing left to revoke");
}

#[test]
fn service_and_sandbox_tokens() {
    let machine = Machine::new();
    let server = machine.serve();
    let service = machine.run(&["token", "service", "--name", "worker"]).out;
    let (_, me) = server.get("/v1/me", service.trim());
    assert_eq!((me["source"].as_str(), me["orgId"].is_null()), (Some("service"), true));
    let org = machine.json(&["orgs", "ls"])[0]["id"].as_str().unwrap().to_owned();
    let bound = machine.run(&["token", "service", "--name", "worker", "--org", &org]).out;
    assert_eq!(server.get("/v1/me", bound.trim()).1["orgId"], org.as_str());
    let nobody = machine.run(&["token", "sandbox", "--session", "00000000-0000-4000-8000-000000000001"]);
    assert_eq!((nobody.code, nobody.out.as_str()), (1, ""));
    assert!(nobody.err.contains("no live session"), "{}", nobody.err);
}

#[test]
fn the_last_owner_stays_and_wrong_ids_are_refused() {
    let machine = Machine::new();
    machine.serve().stop();
    let owner = machine.json(&["users", "ls"])[0]["id"].as_str().unwrap().to_owned();
    let removed = machine.run(&["users", "rm", &owner]);
    assert_eq!(removed.code, 1);
    assert!(removed.err.contains("last owner"), "{}", removed.err);
    let unknown = machine.run(&["users", "rm", "not-an-id"]);
    assert!(unknown.code == 1 && unknown.err.contains("there is no member"), "{}", unknown.err);
    assert_eq!(machine.run(&["users", "create", "--email", "x", "--role", "member"]).code, 2);
    assert_eq!(machine.run(&["users", "create", "--email", "a@b", "--role", "root"]).code, 2);
}

#[test]
fn before_the_first_start_a_token_says_what_to_do() {
    let ended = Machine::new().run(&["token", "user"]);
    assert_eq!(ended.code, 3);
    assert!(ended.err.contains("proliferate up"), "{}", ended.err);
}

#[test]
fn invalid_addresses_and_names_are_refused() {
    let machine = Machine::new();
    machine.serve().stop();
    for email in ["@", "a@", "a b@c", "a@b\n"] {
        assert_eq!(
            machine.run(&["users", "create", "--email", email, "--role", "member"]).code,
            2,
            "{email:?}"
        );
    }
    assert_eq!(machine.run(&["users", "create", "--email", "a@b", "--name", "", "--role", "member"]).code, 2);
    assert_eq!(machine.run(&["orgs", "create", "--name", " "]).code, 2);
    assert_eq!(machine.run(&["keys", "create", "--name", "a\nb"]).code, 2);
}

#[test]
fn limits_of_an_organization_are_set_shown_and_removed() {
    let machine = Machine::new().with("MODEL_PRICES", "*=3/15");
    let server = machine.serve();
    let (org, token) = (machine.first_org(), machine.run(&["token", "user"]).out.trim().to_owned());
    let limits = |more: &[&str]| machine.json(&[&["orgs", "limits", &org], more].concat());
    let none = serde_json::json!({"id": org, "budgetMicros": null, "spentMicros": 0, "sessionLimit": null});
    assert_eq!(limits(&[]), none);
    let set = limits(&["--budget", "2.5", "--sessions", "1"]);
    assert_eq!((&set["budgetMicros"], &set["sessionLimit"]), (&2_500_000.into(), &1.into()));
    let body = serde_json::json!({"sessionType": "coding", "clientType": "web"});
    let create = || server.post("/proliferate/sessions", &token, &body);
    assert_eq!(create().0, 201);
    let (status, refused) = create();
    assert_eq!((status, refused["details"]["billingCode"].as_str()), (402, Some("CONCURRENT_LIMIT")));
    // A limit that is not given stays unchanged.
    assert_eq!(limits(&["--sessions", "none"])["budgetMicros"], 2_500_000);
    assert_eq!(create().0, 201);
    limits(&["--budget", "0"]);
    let (status, refused) = create();
    assert_eq!((status, refused["details"]["billingCode"].as_str()), (402, Some("NO_CREDITS")));
    let shown = machine.run(&["orgs", "limits", &org]);
    assert_eq!(shown.out, "BUDGET  SPENT  SESSIONS\n0.00    0.00   none\n");
    assert_eq!(shown.err, "");
    assert_eq!(limits(&["--budget", "none"]), none);
}

#[test]
fn invalid_limits_are_refused_and_a_budget_without_prices_warns() {
    let machine = Machine::new();
    machine.serve().stop();
    let org = machine.first_org();
    for wrong in [["--budget", "-1"], ["--budget", "much"], ["--sessions", "-1"], ["--sessions", "1.5"]] {
        assert_eq!(machine.run(&[&["orgs", "limits", &org][..], &wrong].concat()).code, 2, "{wrong:?}");
    }
    let nobody = machine.run(&["orgs", "limits", "00000000-0000-4000-8000-000000000001", "--sessions", "1"]);
    assert_eq!((nobody.code, nobody.out.as_str()), (1, ""));
    assert!(nobody.err.contains("there is no organization"), "{}", nobody.err);
    let warned = machine.run(&["orgs", "limits", &org, "--budget", "1"]);
    let expected = "models without a price in MODEL_PRICES are refused";
    assert!(warned.code == 0 && warned.err.contains(expected), "{}", warned.err);
}

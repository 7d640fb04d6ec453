//! Session creation: what a session can start from, how sessions are listed, and what is counted.

use gateway::sessions::{
    self, ConfigurationSource, PromptDraft, RequestContext, Requester, SessionDraft, SessionError,
};
use proto::socket::MessageSource;
use proto::{AutomationId, ClientType, Role, SessionType};
use serde_json::{Value, json};

use crate::live::{Live, Midway, On, id, is_status, of_type, on_both};
use crate::people::{org, person, sandbox_token, service_token, some_uuid};

on_both! {
    a_session_starts_from_at_most_one_object_of_its_own_organization
    sessions_are_listed_by_what_they_are_page_by_page
    repositories_and_configurations_are_created_changed_and_deleted
    the_metrics_of_a_session_are_stored_and_its_outcome_is_set_at_its_end
    metrics_are_written_when_the_agent_fails
}

fn new(more: &Value) -> Value {
    let mut body = json!({"sessionType": "coding", "clientType": "web"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn create(live: &Live, token: &str, more: &Value) -> (u16, Value) {
    live.ask("POST", "/proliferate/sessions", Some(token), &new(more), None).await
}

async fn a_session_starts_from_at_most_one_object_of_its_own_organization(on: On) {
    let live = Live::start(on).await;
    let ada = live.ada.token.clone();
    let (status, scratch) = create(&live, &ada, &json!({})).await;
    assert_eq!(
        (status, &scratch["configurationId"], &scratch["status"]),
        (201, &Value::Null, &json!("pending"))
    );
    let place = live.post("/v1/configurations", &json!({"name": "app", "repos": []})).await["id"].clone();
    let setup = json!({"sessionType": "setup"});
    let (status, refused) = create(&live, &ada, &setup).await;
    assert_eq!((status, &refused["error"]), (400, &json!("A setup session needs a configuration")));
    let (status, made) =
        create(&live, &ada, &json!({"sessionType": "setup", "configurationId": place})).await;
    assert_eq!((status, &made["configurationId"]), (201, &place));

    let keys = json!({"sshOptions": {"publicKeys": ["ssh-ed25519 x"]}});
    let (status, refused) = create(&live, &ada, &keys).await;
    assert_eq!((status, &refused["error"]), (400, &json!("sshOptions: not supported by this provider")));
    let both = json!({"configurationId": place, "managedConfiguration": {}});
    assert_eq!(create(&live, &ada, &both).await.0, 400);
    let (status, refused) = create(&live, &ada, &json!({"managedConfiguration": {}})).await;
    assert_eq!((status, &refused["error"]), (422, &json!("No repos found for organization")));

    for (field, wrong) in [
        ("title", json!("")),
        ("title", json!("x".repeat(201))),
        ("title", json!("two\nlines")),
        ("cliConfiguration", json!({"localPathHash": ""})),
        ("cliConfiguration", json!({"localPathHash": "x".repeat(201)})),
        ("cliConfiguration", json!({"localPathHash": "h", "displayName": " "})),
        ("cliConfiguration", json!({"localPathHash": "h", "displayName": "x".repeat(101)})),
        ("cliConfiguration", json!({"localPathHash": "h", "displayName": "a\nb"})),
    ] {
        let (status, refused) = create(&live, &ada, &json!({field: wrong})).await;
        assert!(
            status == 400 && refused["error"].as_str().unwrap().contains("is one line of 1 to"),
            "{refused}"
        );
    }
    let (status, named) = create(&live, &ada, &json!({"title": format!(" {} ", "x".repeat(200))})).await;
    assert_eq!(status, 201, "{named}");

    // A user's local directory maps to one configuration, and requires a user.
    let directory =
        json!({"cliConfiguration": {"localPathHash": "h1", "displayName": "app"}, "clientType": "cli"});
    let (status, first) = create(&live, &ada, &directory).await;
    assert_eq!((status, &first["isNewConfiguration"]), (201, &json!(true)));
    let (_, again) = create(&live, &ada, &directory).await;
    assert_eq!(
        (&again["isNewConfiguration"], &again["configurationId"]),
        (&json!(false), &first["configurationId"])
    );
    let bound = service_token(&live.app, Some(live.ada.org));
    assert_eq!(create(&live, &bound, &directory).await.0, 400);

    // A missing configuration and one of another organization get the same answer.
    let stranger = person(&live.app, org(&live.app).await, Role::Owner).await.token;
    let theirs = create(&live, &stranger, &json!({"configurationId": place})).await;
    let absent = create(&live, &stranger, &json!({"configurationId": some_uuid()})).await;
    assert_eq!((theirs.0, &theirs), (404, &absent));
    assert_eq!(create(&live, &stranger, &json!({"configurationId": "x"})).await, absent);
    let sandbox = sandbox_token(&live.app, id(scratch["sessionId"].as_str().unwrap())).await;
    assert_eq!(create(&live, &sandbox, &json!({})).await.0, 403);
    assert_eq!(create(&live, &service_token(&live.app, None), &json!({})).await.0, 401);
    assert!(live.agent.asked("").is_empty(), "a session that nobody watches was started");
}

#[tokio::test]
async fn a_setup_is_not_finished_while_its_agent_works() {
    let live = Live::start(On::Sqlite).await;
    let place = live.post("/v1/configurations", &json!({"name": "app", "repos": []})).await["id"].clone();
    let setup = live.session_with(&json!({"sessionType": "setup", "configurationId": place})).await;
    let mut socket = live.running(&setup).await;
    live.prompt(&setup, "install").await;
    let turn = live.next_turn().await;
    let path = format!("/proliferate/{setup}/finish-setup");
    let finish = async || live.ask("POST", &path, Some(&live.ada.token), &json!({}), None).await;
    let (status, refused) = finish().await;
    assert!(
        status == 409 && refused.to_string().contains("the agent is still working"),
        "{status} {refused}"
    );
    turn.answer("done");
    socket.until_type("turn_complete").await;
    // Files of an attached sandbox cannot be saved, but that is another reason.
    let (status, refused) = finish().await;
    assert!(status == 409 && !refused.to_string().contains("still working"), "{status} {refused}");
}

async fn listed(live: &Live, token: &str, query: &str) -> Vec<String> {
    let (status, list) =
        live.ask("GET", &format!("/proliferate/sessions?{query}"), Some(token), &Value::Null, None).await;
    assert_eq!(status, 200, "{query}: {list}");
    list["sessions"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

async fn sessions_are_listed_by_what_they_are_page_by_page(on: On) {
    let live = Live::start(on).await;
    let ada = live.ada.token.clone();
    let bob = person(&live.app, live.ada.org, Role::Member).await;
    let repo = live.add_repo("https://example.com/app").await["id"].clone();
    let places = json!([{"repoId": repo, "workspacePath": "."}]);
    let place = live.post("/v1/configurations", &json!({"name": "app", "repos": places})).await["id"].clone();
    let made = async |token: &str, more: Value| {
        let (status, made) = create(&live, token, &more).await;
        assert_eq!(status, 201, "{made}");
        made["sessionId"].as_str().unwrap().to_owned()
    };
    let plain = made(&ada, json!({"title": "plain"})).await;
    let setup = made(&ada, json!({"sessionType": "setup", "configurationId": place})).await;
    let cli = made(&ada, json!({"sessionType": "cli", "clientType": "cli"})).await;
    let theirs = made(&bob.token, json!({})).await;
    live.post(&format!("/proliferate/{plain}/stop"), &json!({})).await;
    let sorted = async |query: &str| {
        let mut found = listed(&live, &ada, query).await;
        found.sort();
        found
    };
    let of = |mut ids: Vec<&String>| {
        ids.sort();
        ids.into_iter().cloned().collect::<Vec<_>>()
    };
    assert_eq!(sorted("").await, of(vec![&plain, &setup, &cli, &theirs]));
    assert_eq!(sorted("excludeSetup=1").await, of(vec![&plain, &cli, &theirs]));
    assert_eq!(sorted("excludeCli=true&excludeSetup=0").await, of(vec![&plain, &setup, &theirs]));
    assert_eq!(sorted("status=stopped").await, of(vec![&plain]));
    assert_eq!(sorted(&format!("createdBy={}", bob.id)).await, of(vec![&theirs]));
    assert_eq!(sorted(&format!("repoId={}", repo.as_str().unwrap())).await, of(vec![&setup]));
    assert_eq!(sorted(&format!("parentSessionId={plain}")).await, of(vec![]));
    let stranger = person(&live.app, org(&live.app).await, Role::Owner).await.token;
    assert_eq!(listed(&live, &stranger, "").await, Vec::<String>::new());

    let (mut seen, mut after) = (Vec::new(), String::new());
    for _ in 0..5 {
        let (_, page) = live
            .ask("GET", &format!("/proliferate/sessions?limit=1{after}"), Some(&ada), &Value::Null, None)
            .await;
        seen.extend(
            page["sessions"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen, listed(&live, &ada, "").await, "pages follow each other");
    for wrong in ["after=x", "status=odd", "limit=many", "createdBy=x"] {
        let path = format!("/proliferate/sessions?{wrong}");
        assert_eq!(live.ask("GET", &path, Some(&ada), &Value::Null, None).await.0, 400, "{wrong}");
    }
}

async fn repositories_and_configurations_are_created_changed_and_deleted(on: On) {
    let live = Live::start(on).await;
    let (ada, admin) = (live.ada.token.clone(), person(&live.app, live.ada.org, Role::Admin).await.token);
    let stranger = person(&live.app, org(&live.app).await, Role::Owner).await.token;
    let ask = async |method: &str, path: &str, token: &str, body: Value| {
        live.ask(method, path, Some(token), &body, None).await
    };
    let (status, repo) =
        ask("POST", "/v1/repos", &admin, json!({"url": "https://example.com/o/app.git"})).await;
    assert_eq!((status, &repo["name"], &repo["defaultBranch"]), (201, &json!("app"), &json!("main")));
    for wrong in ["", "x", "ssh://h/x", "https://u:p@h/x", "https://h", "file:///etc"] {
        assert_eq!(ask("POST", "/v1/repos", &admin, json!({"url": wrong})).await.0, 400, "{wrong}");
    }
    let places = json!([{"repoId": repo["id"], "workspacePath": "app"}]);
    let body = json!({"name": "one", "repos": places});
    let (status, made) = ask("POST", "/v1/configurations", &ada, body.clone()).await;
    assert_eq!((status, &made["repos"]), (201, &places));
    assert_eq!(ask("POST", "/v1/configurations", &stranger, body).await.0, 404, "another's repository");
    for path in ["../x", "/x", "a/b", "-x", ".git"] {
        let body = json!({"name": "one", "repos": [{"repoId": repo["id"], "workspacePath": path}]});
        assert_eq!(ask("POST", "/v1/configurations", &ada, body).await.0, 400, "{path}");
    }
    let path = format!("/v1/configurations/{}", made["id"].as_str().unwrap());
    let (status, changed) = ask("PATCH", &path, &ada, json!({"name": "two"})).await;
    assert_eq!((status, &changed["name"], &changed["repos"]), (200, &json!("two"), &places));
    assert_eq!(ask("GET", &path, &ada, Value::Null).await.1, changed);
    let list = ask("GET", "/v1/configurations", &ada, Value::Null).await.1;
    assert_eq!(
        (list["configurations"].as_array().unwrap().len(), &list["configurations"][0]["name"]),
        (1, &json!("two"))
    );
    for (method, body) in [("GET", Value::Null), ("PATCH", json!({"name": "x"})), ("DELETE", Value::Null)] {
        assert_eq!(ask(method, &path, &stranger, body).await.0, 404, "{method}");
    }
    assert_eq!(ask("DELETE", &path, &ada, Value::Null).await.0, 403, "a member removes nothing");
    assert_eq!(ask("DELETE", &path, &admin, Value::Null).await.0, 200);
    assert_eq!(ask("GET", &path, &ada, Value::Null).await.0, 404);
    let repo = format!("/v1/repos/{}", repo["id"].as_str().unwrap());
    assert_eq!(ask("DELETE", &repo, &stranger, Value::Null).await.0, 404);
    assert_eq!(ask("DELETE", &repo, &admin, Value::Null).await.0, 200);
    assert_eq!(ask("GET", "/v1/repos", &ada, Value::Null).await.1, json!({"repos": []}));
}

async fn the_metrics_of_a_session_are_stored_and_its_outcome_is_set_at_its_end(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let shown = async || live.get("/proliferate/sessions").await["sessions"][0].clone();
    let mut socket = live.running(&session).await;
    socket.prompt("go").await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.call("bash", &json!({"command": "ls"}), "out");
    turn.say("made https://github.com/ada/app/pull/7");
    turn.end();
    socket.until_type("turn_complete").await;
    let mut now = shown().await;
    for _ in 0..200 {
        if now["metrics"]["toolCalls"] == 1 && now["prUrls"] != json!([]) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        now = shown().await;
    }
    assert_eq!(now["metrics"]["toolCalls"], 1, "{now}");
    assert_eq!(now["metrics"]["messagesExchanged"], 2, "{now}");
    assert_eq!(now["prUrls"], json!(["https://github.com/ada/app/pull/7"]));
    assert_eq!(now["outcome"], Value::Null, "the end of a turn is no outcome");
    live.post(&format!("/proliferate/{session}/stop"), &json!({})).await;
    let ended = shown().await;
    assert_eq!((&ended["outcome"], &ended["latestTask"]), (&json!("completed"), &Value::Null), "{ended}");
    assert_eq!(ended["metrics"]["toolCalls"], 1, "nothing is counted twice");
    socket.prompt("again").await;
    live.next_turn().await.answer("yes");
    socket.until_type("turn_complete").await;
    assert_eq!(shown().await["outcome"], Value::Null, "a session that goes on has none");
}

async fn metrics_are_written_when_the_agent_fails(on: On) {
    let Midway { live, mut socket, turn, .. } = Midway::start(on, "one ").await;
    turn.call("bash", &json!({"command": "ls"}), "out");
    socket.until_type("tool_end").await;
    live.agent.behave(|manner| manner.drops_listeners = true);
    live.agent.cut();
    socket.until(|frame| is_status(frame, "error")).await;
    let shown = live.get("/proliferate/sessions").await["sessions"][0].clone();
    assert_eq!((&shown["metrics"]["toolCalls"], &shown["latestTask"]), (&json!(1), &Value::Null), "{shown}");
}

/// PostgreSQL only, because the automation is created with SQL.
#[tokio::test]
async fn an_automation_creates_and_prompts_its_session_once() {
    let live = Live::echoing(On::Postgres).await;
    let automation = AutomationId::from(some_uuid());
    let insert = format!(
        "INSERT INTO automations (id, org_id, name, instructions, enabled, action_modes, created_at, updated_at) \
         VALUES ('{automation}', '{}', 'nightly', '', true, '{{}}', now(), now())",
        live.ada.org
    );
    let live = live.restarted_after(&[&insert]).await;
    let services = &live.app.sessions;
    let context = |key: &str| RequestContext {
        org: live.ada.org,
        requester: Requester::Automation(automation),
        idempotency_key: Some(key.to_owned()),
    };
    let draft = SessionDraft {
        automation_id: Some(automation),
        initial_prompt: Some("begin".to_owned()),
        trigger_context: json!({"issue": 7}).as_object().cloned(),
        ..SessionDraft::new(SessionType::Coding, ClientType::Automation, ConfigurationSource::Scratch)
    };
    let create = async |draft: &SessionDraft| {
        sessions::create(services, context("run:1:session"), draft.clone()).await
    };
    let (one, two) = tokio::join!(create(&draft), create(&draft));
    let session = one.or(two).unwrap().id;
    assert_eq!(create(&draft).await.unwrap().id, session, "a retry created another session");
    let other = SessionDraft { initial_prompt: None, ..draft };
    assert!(matches!(create(&other).await, Err(SessionError::KeyMismatch)));

    let mut socket = live.watch(&session.to_string()).await;
    let first = socket.until_type("turn_complete").await;
    let prompt = &of_type(&first, "message")[0]["payload"];
    assert_eq!(
        (&prompt["content"], &prompt["senderId"]),
        (&json!("begin"), &json!("automation")),
        "{prompt}"
    );
    assert_eq!(prompt["source"], "automation");
    let more = PromptDraft {
        content: "go on".to_owned(),
        images: Vec::new(),
        sender: "automation".to_owned(),
        source: MessageSource::Automation,
    };
    let key = context("run:1:prompt");
    let sent = sessions::prompt(services, &key, session, more.clone()).await.unwrap();
    assert_eq!(sessions::prompt(services, &key, session, more).await.unwrap(), sent);
    socket.until_type("turn_complete").await;
    assert_eq!(live.agent.asked("/prompt_async").len(), 2);
    let stored = live.app.store.trigger_context(live.ada.org, session).await.unwrap();
    assert_eq!(stored, json!({"issue": 7}).as_object().cloned());
}

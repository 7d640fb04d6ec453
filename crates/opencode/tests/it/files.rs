//! The files and launch parameters of the agent, checked without starting it; `tests/real` starts it.

use agent::{AgentType as _, Browser, ChatModel, Entry, Launch, Setup, Tool, Urls};
use opencode::OpenCode;
use opencode::files::{VERSION, tool_module};
use serde_json::{Value, json};

const SETUP: Setup<'_> = Setup {
    home: "/home/agent",
    directory: "/home/agent/.proliferate",
    workspace: "/home/agent/workspace",
    urls: Urls { model: "http://gateway:1/llm/", mcp: "http://gateway:1/mcp" },
    model_key: "pls_key",
    session: Some("a-session"),
    model: "anthropic/claude-sonnet-4-6",
    chat_models: &[],
    instructions: "Do it well.",
    tools: &[],
    browser: None,
    port: 4096,
};

fn entries() -> Vec<Entry> {
    OpenCode.files(&SETUP)
}

fn launch() -> Launch {
    OpenCode.launch(&SETUP)
}

fn tool(name: &'static str, execute: Option<&'static str>) -> Tool {
    let schema = json!({"properties": {"a": {"type": "string"}}});
    Tool { name, version: 7, description: "Saves \"it\".", schema, execute }
}

fn contents(name: &str) -> String {
    let path = format!("{}/{name}", SETUP.directory);
    entries().into_iter().find(|entry| entry.path == path).unwrap().contents
}

#[test]
fn nothing_is_written_into_the_workspace() {
    for entry in entries() {
        assert!(entry.path.starts_with("/home/agent/."), "{}", entry.path);
    }
}

#[test]
fn the_key_is_only_in_secret_files() {
    for entry in entries() {
        assert_eq!(entry.contents.contains("pls_key"), entry.secret, "{}", entry.path);
    }
    assert_eq!(entries().iter().filter(|entry| entry.secret).count(), 2);
    let launch = launch();
    assert!(launch.environment.iter().all(|(_, value)| !value.contains("pls_key")));
}

#[test]
fn a_pooled_agent_lacks_only_the_session() {
    let waiting = Setup { session: None, ..SETUP };
    assert!(OpenCode.launch(&waiting) == launch(), "a pooled process must not need a restart");
    let named: Vec<_> = entries().into_iter().filter(|entry| entry.contents.contains("a-session")).collect();
    assert_eq!(named.len(), 1);
    assert_eq!(OpenCode.files(&waiting).len() + 1, entries().len());
    assert!(named[0].path == format!("{}/session.json", SETUP.directory) && named[0].secret);
}

#[test]
fn the_instructions_are_a_file_that_the_configuration_names() {
    assert_eq!(contents("instructions.md"), SETUP.instructions);
    let launch = launch();
    assert!(launch.environment.iter().any(|(_, value)| value.contains("/.proliferate/instructions.md")));
}

#[test]
fn a_tool_file_names_its_tool_and_version() {
    for tool in [tool("save_it", None), tool("save_it", Some("() => 1"))] {
        let module = tool_module(&tool);
        for line in
            ["const NAME = \"save_it\";", "const VERSION = 7;", r#"const DESCRIPTION = "Saves \"it\".";"#]
        {
            assert!(module.contains(line), "{line} is not in {module}");
        }
        assert!(!module.contains("\"@"), "{module}");
    }
}

#[test]
fn each_tool_adds_one_file() {
    let one = tool("one", None);
    let with = OpenCode.files(&Setup { tools: std::slice::from_ref(&one), ..SETUP });
    assert_eq!(with.len(), entries().len() + 1);
    let file = with.iter().find(|entry| entry.path == format!("{}/tool/one.js", SETUP.directory)).unwrap();
    assert_eq!(file.contents, tool_module(&one));
}

#[test]
fn the_launch_names_the_port_and_the_model() {
    let launch = launch();
    assert_eq!(launch.arguments, ["serve", "--hostname", "127.0.0.1", "--port", "4096"]);
    let config = launch.environment.iter().find(|(name, _)| *name == "OPENCODE_CONFIG_CONTENT").unwrap();
    let config: Value = serde_json::from_str(&config.1).unwrap();
    assert_eq!(config["provider"]["anthropic"]["options"]["baseURL"], "http://gateway:1/llm/v1");
    assert_eq!(config["model"], SETUP.model);
    assert!(VERSION.split('.').count() == 3 && !VERSION.contains('\n'), "{VERSION:?}");
}

#[test]
fn only_a_sandbox_with_a_browser_has_its_server_configured() {
    let mcp = |browser| {
        let launch = OpenCode.launch(&Setup { browser, ..SETUP });
        let config = launch.environment.iter().find(|(name, _)| *name == "OPENCODE_CONFIG_CONTENT").unwrap();
        serde_json::from_str::<Value>(&config.1).unwrap()["mcp"].clone()
    };
    assert_eq!(mcp(None), Value::Null);
    let [server, packages, program] =
        ["/opt/playwright-mcp/cli.js", "/opt", "/usr/bin/chromium"].map(str::to_owned);
    let found = mcp(Some(&Browser { server, packages, program }));
    let command = found["playwright"]["command"].to_string();
    for word in ["/opt/playwright-mcp/cli.js", "\"--executable-path\",\"/usr/bin/chromium\"", "--no-sandbox"]
    {
        assert!(command.contains(word), "{command}");
    }
    assert_eq!(found["playwright"]["environment"]["NODE_PATH"], "/opt");
}

#[test]
fn the_actions_of_a_session_are_a_server_whose_key_is_read_from_a_secret_file() {
    let config: Value = serde_json::from_str(&contents("opencode.json")).unwrap();
    let server = &config["mcp"]["proliferate"];
    assert_eq!((&server["url"], &server["oauth"]), (&json!("http://gateway:1/mcp"), &json!(false)));
    assert_eq!(server["headers"]["Authorization"], format!("Bearer {{file:{}/model-key}}", SETUP.directory));
    let pooled = OpenCode.files(&Setup { session: None, ..SETUP });
    let file =
        pooled.iter().find(|entry| entry.path == format!("{}/opencode.json", SETUP.directory)).unwrap();
    assert!(!file.contents.contains("mcp"), "a pooled agent has no session: {}", file.contents);
}

#[test]
fn the_list_of_models_is_a_file_that_can_be_written_alone() {
    let models = [ChatModel { name: "large".to_owned(), context: Some(8_000), output: None }];
    let entry = OpenCode.model_list(SETUP.directory, &models).unwrap();
    let files = OpenCode.files(&Setup { chat_models: &models, ..SETUP });
    assert!(files.iter().any(|file| file.path == entry.path && file.contents == entry.contents));
    let config: Value = serde_json::from_str(&entry.contents).unwrap();
    assert_eq!(
        config["provider"]["litellm"]["models"]["large"]["limit"],
        json!({"context": 8_000, "output": 2_000})
    );
}

#[test]
fn the_instructions_name_a_browser_only_where_there_is_one() {
    assert!(!contents("instructions.md").contains("playwright"));
    let browser = Browser { server: String::new(), packages: String::new(), program: String::new() };
    let setup = Setup { browser: Some(&browser), ..SETUP };
    let entry =
        OpenCode.files(&setup).into_iter().find(|entry| entry.path.ends_with("instructions.md")).unwrap();
    assert!(entry.contents.starts_with(SETUP.instructions) && entry.contents.contains("playwright_browser_"));
}

#[test]
fn every_proxied_model_is_in_the_catalogue() {
    let catalogue: Value = serde_json::from_str(&contents("models.json")).unwrap();
    let models = catalogue["anthropic"]["models"].as_object().unwrap();
    for model in proto::MODELS.iter().filter(|model| model.opencode_id.starts_with("anthropic/")) {
        let (_, id) = model.opencode_id.split_once('/').unwrap();
        assert_eq!(models[id]["id"], model.api_id);
    }
}

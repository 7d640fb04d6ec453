//! Commands from another machine: a home without a data dir, and a login to a gateway elsewhere.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::deadline::{Lines, finish, output_of, until};
use crate::harness::{BIN, Ended, Machine, ended, path};

/// Another machine: its own home, and no data dir.
pub(crate) struct Laptop {
    home: TempDir,
}

impl Laptop {
    pub(crate) fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn home(&self) -> &std::path::Path {
        self.home.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BIN);
        command.env_clear().env("PATH", path()).env("HOME", self.home.path()).current_dir(self.home.path());
        command.args(args);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        ended(&output_of(self.command(args).stdin(Stdio::null())))
    }

    pub(crate) fn feed(&self, args: &[&str], input: &str) -> Ended {
        crate::harness::feed(self.command(args), input)
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let ended = self.run(&[args, &["--json"]].concat());
        assert_eq!(ended.code, 0, "{args:?}: {}", ended.err);
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error} in {}", ended.out))
    }

    /// Logs in with an API key of the gateway's first owner, and returns the key.
    pub(crate) fn log_in(&self, machine: &Machine, url: &str) -> String {
        let key = machine.json(&["keys", "create", "--name", "laptop"])["key"].as_str().unwrap().to_owned();
        let ended = self.feed(&["login", url, "--name", "work"], &format!("{key}\n"));
        assert_eq!(ended.code, 0, "{}", ended.err);
        assert!(!format!("{}{}", ended.out, ended.err).contains(&key), "the key is never printed");
        key
    }

    fn contexts_file(&self) -> std::path::PathBuf {
        self.home.path().join(".config/proliferate/contexts.json")
    }
}

#[test]
fn what_listens_at_the_configured_address_is_sent_nothing_while_no_gateway_serves() {
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    stranger.set_nonblocking(true).unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let machine = Machine::new().with("PROLIFERATE_LISTEN", &address);
    machine.serve_with(&[("PROLIFERATE_LISTEN", "127.0.0.1:0")]).kill();
    std::fs::write(machine.data_dir().join("address"), format!("http://{address}/")).unwrap();
    let refused = machine.run(&["session", "ls"]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("no gateway serves the data dir"), "{}", refused.err);
    assert_eq!(stranger.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it was called");
}

#[test]
fn a_login_with_a_key_serves_later_commands_until_logout() {
    let machine = Machine::new();
    let server = machine.serve();
    let laptop = Laptop::new();
    let alone = laptop.run(&["session", "ls"]);
    assert_eq!(alone.code, 3, "{}", alone.err);
    assert!(alone.err.contains("proliferate login URL"), "{}", alone.err);

    let key = laptop.log_in(&machine, &server.url(""));
    assert_eq!(laptop.json(&["session", "ls"]), Value::Array(Vec::new()));
    let file = laptop.contexts_file();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let listed = laptop.json(&["context", "ls"]);
    assert_eq!((&listed[0]["name"], &listed[0]["email"]), (&"work".into(), &"owner@localhost".into()));
    assert!(!listed.to_string().contains(&key) && listed[0]["current"] == true, "{listed}");
    let text = laptop.run(&["context", "ls"]).out;
    assert!(text.contains("work") && !text.contains(&key), "{text}");

    let operators = laptop.run(&["users", "ls"]);
    assert!(operators.err.contains("not on the login \"work\""), "{}", operators.err);

    // Options and settings count before the login, and its key goes nowhere else.
    let elsewhere = laptop.run(&["session", "ls", "--url", "http://127.0.0.1:9"]);
    assert_eq!(elsewhere.code, 3, "{}", elsewhere.err);
    let wrong = laptop.run(&["session", "ls", "--token", "plk_wrong"]);
    assert!(wrong.code == 1 && wrong.err.contains("Invalid token"), "{}", wrong.err);
    assert_eq!(laptop.run(&["context", "use", "local"]).code, 0);
    assert_eq!(laptop.run(&["session", "ls"]).code, 3, "the data dir of this machine, which has none");
    assert_eq!(laptop.run(&["context", "use", "nowhere"]).code, 1);
    assert_eq!(laptop.run(&["context", "use", "work"]).code, 0);
    assert_eq!(laptop.run(&["session", "ls"]).code, 0);

    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = laptop.run(&["session", "ls"]);
    assert!(open.code == 3 && open.err.contains("chmod 600"), "{}", open.err);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();

    let bad = laptop.feed(&["login", &server.url(""), "--name", "bad"], "plk_wrong\n");
    assert_eq!(bad.code, 1, "{}", bad.out);
    assert_eq!(laptop.json(&["context", "ls"]).as_array().unwrap().len(), 1, "a refused key is not saved");
    let out = laptop.run(&["logout"]);
    assert_eq!(out.code, 0, "{}", out.err);
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&key));
    assert_eq!(laptop.run(&["session", "ls"]).code, 3);
}

#[test]
fn a_login_by_code_is_approved_elsewhere_and_its_key_revoked_at_logout() {
    let machine = Machine::new();
    let server = machine.serve();
    let laptop = Laptop::new();
    let mut login = laptop.command(&["login", &server.url(""), "--device", "--json"]);
    let mut child = login.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let shown = Lines::of(child.stderr.take().unwrap()).next().unwrap();
    let code = shown.trim().rsplit(' ').next().unwrap().to_owned();
    let approved = machine.json(&["approve-login", &code]);
    assert!(approved["clientName"].as_str().unwrap().starts_with("CLI "), "{approved}");
    let done = ended(&finish("the login", child));
    assert_eq!(done.code, 0, "{}", done.err);
    let done: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&done["email"], &done["url"]), (&"owner@localhost".into(), &server.url("/").into()));

    assert_eq!(laptop.json(&["repos", "ls"]), Value::Array(Vec::new()));
    let active =
        |keys: Value| keys.as_array().unwrap().iter().filter(|key| key["revokedAt"].is_null()).count();
    assert_eq!(active(machine.json(&["keys", "ls"])), 1);
    assert_eq!(laptop.json(&["logout"])["revoked"], true);
    assert_eq!(active(machine.json(&["keys", "ls"])), 0);
}

#[test]
fn repositories_configurations_and_usage_are_managed_from_another_machine() {
    let machine = Machine::new();
    let server = machine.serve();
    let laptop = Laptop::new();
    laptop.log_in(&machine, &server.url(""));
    let one = laptop.json(&["repos", "add", "https://example.com/team/one.git", "--branch", "trunk"]);
    assert_eq!((&one["name"], &one["defaultBranch"]), (&"one".into(), &"trunk".into()));
    laptop.json(&["repos", "add", "https://example.com/team/two", "--name", "second"]);
    let table = laptop.run(&["repos", "ls"]).out;
    assert!(table.contains("trunk") && table.contains("https://example.com/team/two"), "{table}");
    let bad = laptop.run(&["repos", "add", "no-such-directory"]);
    assert!(bad.code == 2 && bad.err.contains("neither"), "{}", bad.err);

    let made = laptop.json(&["configurations", "new", "both", "--repo", "one", "--repo", "second=lib"]);
    let places: Vec<_> =
        made["repos"].as_array().unwrap().iter().map(|place| &place["workspacePath"]).collect();
    assert_eq!(places, ["lib", "one"]);
    let shown = laptop.run(&["configurations", "show", "BOTH"]).out;
    assert!(shown.contains("lib") && shown.contains("second"), "{shown}");
    assert_eq!(laptop.run(&["configurations", "new", "Both"]).code, 2, "the name is taken");
    assert_eq!(laptop.json(&["configurations", "rename", "both", "pair"])["name"], "pair");
    let prefix = &made["id"].as_str().unwrap()[..13];
    assert_eq!(laptop.json(&["configurations", "rm", prefix])["removed"][0], made["id"]);
    assert_eq!(laptop.json(&["configurations", "ls"]), Value::Array(Vec::new()));
    assert_eq!(laptop.run(&["repos", "rm", "one", "https://example.com/team/two"]).code, 0);
    assert_eq!(laptop.json(&["repos", "ls"]), Value::Array(Vec::new()));

    let usage = laptop.json(&["usage", "--by", "model"]);
    assert_eq!((&usage["entries"], &usage["total"]["requests"]), (&Value::Array(Vec::new()), &0.into()));
    let usage = laptop.run(&["usage"]).out;
    assert!(usage.contains("COST") && usage.contains("no budget"), "{usage}");
    assert_eq!(laptop.run(&["usage", "--by", "week"]).code, 2);
}

#[test]
fn automations_and_runs_are_managed_from_another_machine() {
    let machine = Machine::new();
    let server = machine.serve();
    let laptop = Laptop::new();
    laptop.log_in(&machine, &server.url(""));
    let missing = laptop.run(&["automations", "new", "Nightly"]);
    assert!(missing.code == 2 && missing.err.contains("--instructions"), "{}", missing.err);
    let new = ["automations", "new", "Nightly", "--instructions", "Check the build", "--webhook", "generic"];
    let made = laptop.json(&new);
    assert!(made["webhook"]["secret"].is_string() && made["enabled"] == true, "{made}");
    let again = laptop.run(&["automations", "new", "nightly", "--instructions", "x"]);
    assert!(again.code == 2 && again.err.contains(made["id"].as_str().unwrap()), "{}", again.err);
    let never = laptop.run(&["automations", "set", "nightly", "--cron", "0 0 31 2 *"]);
    assert_eq!(never.code, 1, "{}", never.out);
    let cron = ["automations", "set", "nightly", "--cron", "0 3 * * *", "--time-zone", "Europe/Berlin"];
    assert_eq!(laptop.json(&cron)["cron"]["timeZone"], "Europe/Berlin");
    let shown = laptop.run(&["automations", "show", "Nightly"]);
    assert!(
        shown.out.contains("cron 0 3 * * * Europe/Berlin") && shown.out.contains("Check the build"),
        "{}",
        shown.out
    );
    assert_eq!(laptop.run(&["automations", "disable", "Nightly"]).code, 0);
    assert_eq!(laptop.json(&["automations", "ls"])[0]["enabled"], false);
    assert_eq!(laptop.run(&["automations", "enable", "Nightly"]).code, 0);

    let run = laptop.json(&["automations", "run", "Nightly", "--context", r#"{"a":1}"#]);
    let id = run["id"].as_str().unwrap();
    let wrong = laptop.run(&["automations", "run", "Nightly", "--context", "[1]"]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert_eq!(laptop.json(&["runs", "ls", "--automation", "Nightly"])[0]["id"], *id);
    assert_eq!(laptop.json(&["runs", "show", &id[..18]])["automationName"], "Nightly");
    let assigned = laptop.json(&["runs", "assign", id, "--to", "owner@localhost"]);
    assert!(assigned["assignedTo"].is_string(), "{assigned}");
    assert_eq!(laptop.json(&["runs", "assign", id, "--nobody"])["assignedTo"], Value::Null);
    assert_eq!(laptop.json(&["runs", "cancel", id])["status"], "cancelled");
    let again = laptop.json(&["runs", "rerun", id]);
    assert_eq!(again["rerunOf"], *id);
    assert_eq!(laptop.run(&["runs", "cancel", again["id"].as_str().unwrap()]).code, 0);
    // An automation is kept until the sessions of its cancelled runs have stopped.
    until("the automation is removed", || laptop.run(&["automations", "rm", "Nightly"]).code == 0);
    assert_eq!(laptop.json(&["automations", "ls"]), Value::Array(vec![]));
}

#[test]
fn integrations_are_connected_disabled_and_removed() {
    let machine = Machine::new();
    let server = machine.serve();
    let laptop = Laptop::new();
    laptop.log_in(&machine, &server.url(""));
    let add = ["integrations", "add", "linear", "--secret", "LINEAR_TOKEN", "--name", "Our Linear"];
    let early = laptop.run(&add);
    let remedy = "`proliferate secrets set LINEAR_TOKEN -`";
    assert!(
        early.code == 1 && early.err.contains("secretKey") && early.err.contains(remedy),
        "{}",
        early.err
    );
    assert_eq!(machine.feed(&["secrets", "set", "LINEAR_TOKEN", "-"], "lin_api_canary").code, 0);
    let added = laptop.json(&add);
    assert_eq!((&added["provider"], &added["status"]), (&"linear".into(), &"active".into()));
    let ignored = laptop.run(&["integrations", "ls", "--org", "Acme"]);
    assert!(ignored.code == 0 && ignored.err.contains("--org Acme has no effect"), "{}", ignored.err);
    assert_eq!(machine.run(&["orgs", "create", "--name", "Acme"]).code, 0);
    let acme = ["integrations", "ls", "--org", "Acme"];
    let ownerless = machine.run(&acme);
    let remedy = "users create --org Acme --role owner";
    assert!(ownerless.code == 1 && ownerless.err.contains(remedy), "{}", ownerless.err);
    let owner = ["users", "create", "--org", "Acme", "--role", "owner", "--email", "eve@example.com"];
    assert_eq!(machine.run(&owner).code, 0);
    assert_eq!(machine.json(&acme), Value::Array(Vec::new()), "it has none of the other organization");
    assert_eq!(laptop.run(&["integrations", "add", "jira", "--secret", "LINEAR_TOKEN"]).code, 2);
    let listed = laptop.run(&["integrations", "ls"]).out;
    assert!(listed.contains("Our Linear") && !listed.contains("canary"), "{listed}");
    for (command, status) in [("disable", "disabled"), ("enable", "active")] {
        assert_eq!(laptop.run(&["integrations", command, "linear"]).code, 0);
        assert_eq!(laptop.json(&["integrations", "ls"])[0]["status"], status);
    }
    assert_eq!(laptop.run(&["integrations", "rm", "Our Linear"]).code, 0);
    assert_eq!(laptop.json(&["integrations", "ls"]), Value::Array(Vec::new()));
}

#[test]
fn preferences_and_notifications_are_set_shown_and_removed() {
    let machine = Machine::new();
    let server = machine.serve();
    let laptop = Laptop::new();
    laptop.log_in(&machine, &server.url(""));
    assert_eq!(laptop.json(&["preferences", "ls"]), Value::Array(Vec::new()));
    assert_eq!(laptop.run(&["preferences", "disable", "linear", "create_issue"]).code, 0);
    assert_eq!(laptop.run(&["preferences", "disable", "slack"]).code, 0);
    let listed = laptop.run(&["preferences", "ls"]).out;
    assert!(listed.contains("create_issue") && listed.contains("(all)"), "{listed}");
    assert_eq!(laptop.run(&["preferences", "enable", "slack"]).code, 0);
    assert_eq!(laptop.json(&["preferences", "ls"])[0]["sourceId"], "linear");
    assert_eq!(laptop.run(&["preferences", "disable", "a/b"]).code, 1);

    assert_eq!(laptop.run(&["notifications", "show"]).code, 1);
    let private = laptop.run(&["notifications", "set", "https://10.0.0.1/canary"]);
    assert!(private.code == 1 && private.err.contains("CONNECTOR_ALLOWED_HOSTS"), "{}", private.err);
    let set = laptop.feed(&["notifications", "set", "-"], "https://hooks.example/canary\n");
    assert!(set.code == 0 && set.out.contains("requests are signed with"), "{}{}", set.out, set.err);
    let shown = laptop.run(&["notifications", "show"]).out;
    assert!(shown.contains("https://hooks.example") && !shown.contains("canary"), "{shown}");
    assert_eq!(laptop.run(&["notifications", "rm"]).code, 0);
    assert_eq!(laptop.run(&["notifications", "rm"]).code, 1);
}

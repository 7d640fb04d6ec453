//! Environment files, checked against recorded examples, with two fixes: quoting, and values that survive a scrub.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use sandboxd::client::ClientError;
use sandboxd::protocol::{Code, EnvFile};

use crate::common::{code, start};

fn spec(text: &str) -> Vec<EnvFile> {
    serde_json::from_str(text).unwrap()
}

fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

const TWO: &str = r#"[{"workspacePath":".","path":".env.local","format":"dotenv","mode":"secret",
    "keys":[{"key":"A_KEY","required":true},{"key":"B_KEY","required":false},{"key":"C_KEY","required":false}]}]"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_applied_scrubbed_and_reapplied() {
    let sandbox = start().await;
    let client = &sandbox.client;
    std::fs::create_dir_all(sandbox.workspace().join(".git/info")).unwrap();
    std::fs::write(sandbox.workspace().join(".git/info/exclude"), "# mine").unwrap();
    let given = values(&[("A_KEY", "plain"), ("B_KEY", "two\nlines and 'quotes'"), ("UNUSED", "x")]);
    for _ in 0..2 {
        let applied = client.env_apply(spec(TWO), given.clone()).await.unwrap();
        let applied = serde_json::to_string(&applied).unwrap();
        assert_eq!(applied, r#"{"applied":[{"path":".env.local","keyCount":2}]}"#);
        let file = sandbox.workspace().join(".env.local");
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "A_KEY=plain\nB_KEY=\"two\\nlines and 'quotes'\"\n");
        assert_eq!(proto::dotenv::parse(&text).unwrap()[1].1, given["B_KEY"]);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let excluded = std::fs::read_to_string(sandbox.workspace().join(".git/info/exclude")).unwrap();
        assert_eq!(excluded, "# mine\n.env.local\n");
        std::fs::write(sandbox.directory.path().join("store.json"), "{}").unwrap();
        for wanted in [r#"{"scrubbed":[".env.local"]}"#, r#"{"scrubbed":[]}"#] {
            let scrubbed = client.env_scrub(spec(TWO)).await.unwrap();
            assert_eq!(serde_json::to_string(&scrubbed).unwrap(), wanted);
        }
        assert!(!file.exists() && !sandbox.directory.path().join("store.json").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_recorded_and_excluded_before_they_are_written() {
    let sandbox = start().await;
    let (client, file) = (&sandbox.client, sandbox.workspace().join(".env.local"));
    // Nothing can be excluded from commits, then nothing can be recorded.
    let exclude = sandbox.workspace().join(".git/info/exclude");
    let record = sandbox.directory.path().join("home/.proliferate/env-files.json");
    for blocked in [exclude, record] {
        let _ = std::fs::remove_file(&blocked);
        std::fs::create_dir_all(&blocked).unwrap();
        client.env_apply(spec(TWO), values(&[("A_KEY", "canary")])).await.unwrap_err();
        assert!(!file.exists(), "{}", blocked.display());
        std::fs::remove_dir(&blocked).unwrap();
    }
    client.env_apply(spec(TWO), values(&[("A_KEY", "canary")])).await.unwrap();
    assert!(file.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_of_the_agent_are_kept_and_removed_values_are_deleted() {
    let sandbox = start().await;
    let client = &sandbox.client;
    let file = sandbox.workspace().join(".env.local");
    let read = || std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "# the agent's\nOWN=1\nB_KEY=by the agent\nA_KEY=old\n").unwrap();
    client.env_apply(spec(TWO), values(&[("A_KEY", "new"), ("C_KEY", "c")])).await.unwrap();
    assert_eq!(read(), "# the agent's\nOWN=1\nB_KEY=by the agent\nA_KEY=new\nC_KEY=c\n");
    client.env_apply(spec(TWO), values(&[("A_KEY", "newest")])).await.unwrap();
    assert_eq!(read(), "# the agent's\nOWN=1\nB_KEY=by the agent\nA_KEY=newest\n", "only C_KEY was ours");
    assert_eq!(client.env_scrub(spec(TWO)).await.unwrap().scrubbed, [".env.local"]);
    assert_eq!(read(), "# the agent's\nOWN=1\n", "the specification says that the others are secret");
    assert_eq!(client.env_scrub(spec(TWO)).await.unwrap().scrubbed, [""; 0]);
    let optional = spec(r#"[{"path":"other.env","keys":[{"key":"C_KEY"}]}]"#);
    assert!(client.env_apply(optional, values(&[])).await.unwrap().applied.is_empty());
    assert!(!sandbox.workspace().join("other.env").exists(), "no file without a value");
    std::fs::write(&file, b"OWN=\xff").unwrap();
    assert_eq!(code(client.env_apply(spec(TWO), values(&[("A_KEY", "x")])).await), Code::BadRequest);
    assert_eq!(std::fs::read(&file).unwrap(), b"OWN=\xff");
    assert_eq!(client.env_scrub(spec(TWO)).await.unwrap().scrubbed, [".env.local"]);
    assert!(!file.exists(), "what cannot be read is removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_a_scrubbed_file_is_the_agents_own() {
    let sandbox = start().await;
    let client = &sandbox.client;
    let file = sandbox.workspace().join(".env.local");
    client.env_apply(spec(TWO), values(&[("A_KEY", "a"), ("C_KEY", "c")])).await.unwrap();
    client.env_scrub(spec(TWO)).await.unwrap();
    std::fs::write(&file, "C_KEY=by the agent\n").unwrap();
    client.env_apply(spec(TWO), values(&[("A_KEY", "a")])).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "C_KEY=by the agent\nA_KEY=a\n");
    // No specification names a variable of the file any more.
    let removed = spec(r#"[{"path":".env.local","keys":[]}]"#);
    assert_eq!(client.env_scrub(removed.clone()).await.unwrap().scrubbed, [".env.local"]);
    assert_eq!(client.env_scrub(removed).await.unwrap().scrubbed, [""; 0]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "C_KEY=by the agent\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_missing_variables_are_named_before_any_write() {
    let sandbox = start().await;
    let many = spec(
        r#"[{"path":"one.env","keys":[{"key":"HERE","required":true}]},
            {"path":"two.env","keys":[{"key":"A_KEY","required":true},{"key":"OPTIONAL"}]},
            {"path":"three.env","keys":[{"key":"B_KEY","required":true},{"key":"A_KEY","required":true}]}]"#,
    );
    let error = sandbox.client.env_apply(many, values(&[("HERE", "1")])).await.unwrap_err();
    let ClientError::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.code, Code::Missing);
    assert_eq!(refusal.message, "Missing required environment variables: A_KEY, B_KEY");
    assert_eq!(refusal.missing, ["A_KEY", "B_KEY"]);
    assert_eq!(std::fs::read_dir(sandbox.workspace()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_paths_are_refused_before_any_write() {
    let sandbox = start().await;
    symlink(sandbox.directory.path(), sandbox.workspace().join("out")).unwrap();
    for bad in ["../x", "/etc/x", "a/../../x"] {
        let mut files = spec(r#"[{"path":"good.env","keys":[]},{"path":"bad","keys":[]}]"#);
        files[1].path = bad.to_owned();
        assert_eq!(code(sandbox.client.env_apply(files.clone(), values(&[])).await), Code::Escapes, "{bad}");
        files[1].path = "fine".to_owned();
        files[1].workspace_path = bad.to_owned();
        assert_eq!(code(sandbox.client.env_scrub(files).await), Code::Escapes, "{bad}");
    }
    assert!(!sandbox.workspace().join("good.env").exists());
    let through = spec(r#"[{"workspacePath":"out","path":"x.env","keys":[]}]"#);
    assert_eq!(code(sandbox.client.env_apply(through, values(&[])).await), Code::Escapes);
    assert!(!sandbox.directory.path().join("x.env").exists());
    let key = spec(r#"[{"path":"x.env","keys":[{"key":"A\nB"}]}]"#);
    assert_eq!(code(sandbox.client.env_apply(key, values(&[("A\nB", "1")])).await), Code::BadRequest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_file_is_one_newline_and_plain_files_survive_a_scrub() {
    let sandbox = start().await;
    let files = spec(r#"[{"workspacePath":"app/web","path":"conf/.env","mode":"plain","keys":[]}]"#);
    let applied = sandbox.client.env_apply(files.clone(), values(&[])).await.unwrap();
    assert_eq!((applied.applied[0].path.as_str(), applied.applied[0].key_count), ("app/web/conf/.env", 0));
    assert_eq!(std::fs::read(sandbox.workspace().join("app/web/conf/.env")).unwrap(), b"\n");
    assert_eq!(sandbox.client.env_scrub(files).await.unwrap().scrubbed, [""; 0]);
}

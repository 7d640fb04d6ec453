//! The vault from the command line: values can be written, and only names can be read.

use crate::harness::{Machine, files_with};

const CANARY: &str = "canary-7c1d9e42";

#[test]
fn a_value_is_stored_encrypted_and_never_shown_again() {
    let machine = Machine::new();
    machine.serve().stop();
    let set = machine.feed(&["secrets", "set", "API_TOKEN", "-"], &format!("{CANARY}\n"));
    assert_eq!((set.code, set.out.trim()), (0, "API_TOKEN stored"), "{}", set.err);
    assert_eq!(machine.run(&["secrets", "set", "API_TOKEN", CANARY]).out.trim(), "API_TOKEN replaced");
    for empty in ["", " \n"] {
        let refused = machine.feed(&["secrets", "set", "API_TOKEN", "-"], empty);
        assert!(refused.code == 2 && refused.err.contains("API_TOKEN is empty"), "{}", refused.err);
        assert_eq!(machine.feed(&["secrets", "set", "FLAG", "-", "--purpose", "env"], empty).code, 0);
    }
    assert_eq!(machine.run(&["secrets", "rm", "FLAG"]).code, 0);
    for args in [&["secrets", "ls"][..], &["secrets", "ls", "--json"]] {
        let listed = machine.run(args);
        assert!(listed.out.contains("API_TOKEN") && !listed.out.contains(CANARY), "{}", listed.out);
    }
    assert_eq!(files_with(&machine.data_dir(), CANARY.as_bytes()), Vec::<std::path::PathBuf>::new());
    assert_eq!(machine.run(&["secrets", "rm", "API_TOKEN"]).code, 0);
    assert_eq!(machine.run(&["secrets", "rm", "API_TOKEN"]).code, 1);
    assert_eq!(machine.json(&["secrets", "ls"]), serde_json::json!([]));
}

#[test]
fn an_env_file_is_imported_completely_or_refused_with_its_line() {
    let machine = Machine::new();
    machine.serve().stop();
    let text = "# comment\nexport A=1\nB=\"two words\" # note\nC='three'\n";
    let imported = machine.feed(&["secrets", "import", "-"], text);
    assert_eq!((imported.code, imported.out.trim()), (0, "3 stored, 0 replaced"), "{}", imported.err);
    let file = machine.file("more.env");
    std::fs::write(&file, format!("D=4\nnot a line {CANARY}\n")).unwrap();
    let refused = machine.run(&["secrets", "import", file.to_str().unwrap()]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("line 2") && !refused.err.contains(CANARY), "{}", refused.err);
    let names: Vec<_> =
        machine.json(&["secrets", "ls"]).as_array().unwrap().iter().map(|s| s["key"].clone()).collect();
    assert_eq!(names, ["A", "B", "C"], "nothing of the broken file was stored");
    let long = format!("E=5\nF={}\n", "x".repeat(70_000));
    assert_eq!(machine.feed(&["secrets", "import", "-"], &long).code, 2);
    assert_eq!(machine.json(&["secrets", "ls"]).as_array().unwrap().len(), 3, "all or none");
}

#[test]
fn a_rotation_reseals_everything_under_a_new_key() {
    let machine = Machine::new();
    machine.serve().stop();
    machine.feed(&["secrets", "import", "-"], "A=1\nB=2\n");
    let keys = || -> Vec<String> {
        let list = machine.json(&["secrets", "ls"]);
        list.as_array().unwrap().iter().map(|s| s["sealedBy"].as_str().unwrap().to_owned()).collect()
    };
    let before = keys();
    assert_eq!(machine.json(&["secrets", "rotate"])["rotated"], 2);
    let after = keys();
    assert!(after.iter().all(|key| !before.contains(key)), "{before:?} {after:?}");
    let kept = std::fs::read_to_string(machine.data_dir().join("keys.env")).unwrap();
    assert!(!kept.contains("_OLD="), "the replaced key is forgotten");
}

#[test]
fn ambiguous_names_are_refused() {
    let machine = Machine::new();
    machine.serve().stop();
    for name in ["../x", "A B", "A=B", "1A", "A\nB", "", "-A"] {
        assert_ne!(machine.run(&["secrets", "set", "--", name, "v"]).code, 0, "{name:?}");
    }
}

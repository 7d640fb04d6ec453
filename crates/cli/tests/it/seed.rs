//! One command creates everything that the load generator needs, and running it again changes nothing.

use serde_json::json;

use crate::harness::Machine;

const ORG: &str = "00000000-0000-4000-8000-0000000000aa";
const LAST_CONFIGURATION: &str = "00000000-0000-4000-8000-000000000040";

#[test]
fn a_seeded_database_has_what_the_load_generator_names() {
    let machine = Machine::new();
    let made = machine.json(&["db", "seed", "bench"]);
    assert_eq!((&made["created"], &made["orgId"]), (&json!(true), &json!(ORG)));
    assert_eq!(machine.json(&["db", "seed", "bench"])["created"], false);
    let owner = &machine.json(&["users", "ls"])[0];
    assert_eq!((&owner["id"], &owner["role"]), (&made["userId"], &json!("owner")));
    assert_eq!(machine.json(&["secrets", "ls"])[0]["key"], "BENCH_SECRET");
    let file = machine.data_dir().join("proliferate.db").display().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let configurations: i64 = runtime.block_on(async {
        let pool = sqlx::SqlitePool::connect(&format!("sqlite:{file}")).await.unwrap();
        let repos = "SELECT count(DISTINCT repo_id) FROM configuration_repos";
        sqlx::query_scalar(repos).fetch_one(&pool).await.unwrap()
    });
    assert_eq!(configurations, 64);

    let server = machine.serve();
    assert_eq!(server.said["loginLink"], json!(null), "it has its owner");
    let url = server.url("");
    let made = machine.json(&["session", "new", "--url", &url, "--configuration", LAST_CONFIGURATION]);
    assert_eq!(made["configurationId"], LAST_CONFIGURATION);
    let connector = &machine.json(&["connectors", "ls", "--url", &url])[0];
    assert_eq!(connector["id"], "00000000-0000-4000-8000-0000000000cc", "{connector}");
}

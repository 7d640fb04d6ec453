//! A policy that changed while no gateway ran is recorded before the first decision under it.

use serde_json::Value;

use crate::harness::Setup;
use crate::world::World;

/// The id of the event that records the active policy.
async fn last_change_event(world: &World) -> Value {
    let record = world.gateway.app.store.last_policy_change().await.unwrap().unwrap();
    serde_json::from_str::<Value>(&record).unwrap()["event_id"].clone()
}

async fn restarted(world: World, tools: Option<&str>) -> World {
    let World { effects, gateway, team, token } = world;
    let setup = gateway.stop().await;
    if let Some(more) = tools {
        let file = setup.directory().join("policy").join("tools.yaml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text + more).unwrap();
    }
    World { effects, gateway: setup.start().await, team, token }
}

#[tokio::test]
async fn tools_changed_while_the_gateway_was_stopped_are_recorded() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = World::on(setup).await;
        let first = last_change_event(&world).await;
        let world = restarted(world, None).await;
        assert_eq!(last_change_event(&world).await, first, "nothing has changed");
        // Changing the safety lock is a policy change, but its event does not describe files.
        let world = world.locked(true).await.locked(false).await;
        assert_eq!(last_change_event(&world).await, first, "the files have not changed");
        let world = restarted(world, Some("# another version\n")).await;
        let second = last_change_event(&world).await;
        assert_ne!(second, first, "the tools have changed");
        assert_eq!(last_change_event(&restarted(world, None).await).await, second);
    }
}

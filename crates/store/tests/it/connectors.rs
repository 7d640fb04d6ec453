//! Connectors and the tools that were reviewed with them, on both databases.

use proto::{OrgId, Risk};
use sqlx::types::JsonValue;
use store::{NewConnector, ReviewedTool, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org};

on_both! {
    a_connector_comes_with_its_reviewed_tools_or_not_at_all
}

fn connector(org_id: OrgId, number: u8, hash: &str) -> NewConnector {
    NewConnector {
        id: id(number),
        org_id,
        name: format!("tools {number}"),
        url: "https://mcp.example/".to_owned(),
        auth: JsonValue::Object([("type".to_owned(), JsonValue::from("none"))].into_iter().collect()),
        default_risk: Risk::Read,
        tools: vec![ReviewedTool {
            tool: "write_thing".to_owned(),
            definition_hash: hash.to_owned(),
            risk: Some(Risk::Write),
        }],
        created_by: None,
        at: at(number.into()),
    }
}

async fn a_connector_comes_with_its_reviewed_tools_or_not_at_all(b: &Backend) {
    let (one, hash) = (org(&b.store, 1).await, "a".repeat(64));
    b.store.create_connector(connector(one, 5, &hash)).await.unwrap();
    let twice = b.store.create_connector(connector(one, 5, &hash)).await;
    assert!(matches!(twice, Err(StoreError::Taken(_))), "{twice:?}");
    // A tool that is refused takes its connector with it: the id is free afterwards.
    assert!(b.store.create_connector(connector(one, 6, "short")).await.is_err());
    b.store.create_connector(connector(one, 6, &hash)).await.unwrap();
    let nobody = b.store.create_connector(connector(id(9), 7, &hash)).await;
    assert!(matches!(nobody, Err(StoreError::Missing(_))), "{nobody:?}");
}

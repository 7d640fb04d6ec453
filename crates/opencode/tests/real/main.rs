//! Tests with the real OpenCode, started with our files and used through our client and translator. Only the
//! model is scripted. One process serves all scenarios, because starting it is slow.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]
#![expect(clippy::panic, reason = "test helpers may panic like tests")]

mod agent;
mod scenarios;
mod watcher;

use self::agent::Agent;

#[tokio::test]
async fn drives_the_real_agent() {
    let mut agent = Agent::start().await;
    scenarios::plain_text(&agent).await;
    scenarios::instructions_key_and_model_reach_the_model(&agent).await;
    scenarios::bash(&agent).await;
    scenarios::custom_tool(&agent).await;
    scenarios::cancel(&agent).await;
    scenarios::model_error(&agent).await;
    scenarios::retry(&agent).await;
    scenarios::duplicate_prompt(&agent).await;
    scenarios::sub_agent(&agent).await;
    scenarios::lost_stream(&agent).await;
    scenarios::long_history(&agent).await;
    scenarios::images(&agent).await;
    scenarios::new_key(&agent).await;
    scenarios::killed_agent(&mut agent).await;
    scenarios::repository_stays_unchanged(&agent);
}

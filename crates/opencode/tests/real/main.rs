//! The real OpenCode, started from our own files, asked through our own client, its events told by our own
//! translator; only the model behind it follows a script. One process serves all scenarios, because starting one
//! is the slow part.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod agent;
mod scenarios;
mod watcher;

use agent::Agent;

#[tokio::test]
async fn the_real_agent_is_driven_from_outside() {
    let mut agent = Agent::start().await;
    scenarios::plain_text(&agent).await;
    scenarios::instructions_key_and_model_reach_the_model(&agent).await;
    scenarios::bash(&agent).await;
    scenarios::tool_of_ours(&agent).await;
    scenarios::cancel(&agent).await;
    scenarios::model_error(&agent).await;
    scenarios::retry(&agent).await;
    scenarios::the_same_prompt_twice(&agent).await;
    scenarios::sub_agent(&agent).await;
    scenarios::lost_stream(&agent).await;
    scenarios::long_history(&agent).await;
    scenarios::images(&agent).await;
    scenarios::new_key(&agent).await;
    scenarios::killed_agent(&mut agent).await;
    scenarios::the_repository_is_untouched(&agent);
}

//! Integration tests that attack the gateway from outside: every credential, every route, hostile sockets and failing
//! dependencies.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod actions;
mod call;
mod chat_budget;
mod chat_proxy;
mod hanging;
mod harness;
mod live;
mod people;
mod pgwire;
mod policy_files;
mod raw;
mod world;

// Authentication and authorization.
mod access;
mod access_actions;
mod administration;
mod agent_tools;
mod attach;
mod automations;
mod bearer;
mod changes;
mod connector_calls;
mod connector_setup;
mod connectors;
mod databases;
mod identity;
mod inbox;
mod integrations;
mod invocations;
mod junk;
mod layers;
mod left_behind;
mod live_credentials;
mod login;
mod notifications;
mod preferences;
mod roles;
mod sessions;
mod snapshots;
mod tickets;
mod waiting_runs;
// Validation and policy.
mod attacks;
mod bad_calls;
mod contract;
mod device_login;
mod document;
mod egress;
mod export;
mod garbage;
mod gate;
mod manners;
mod mcp;
// Secrets.
mod environment;
mod logs;
mod redaction;
mod rotation;
mod vault;
// The model proxy, the git proxy and tool modes.
mod approvals;
mod conditional_modes;
mod git_proxy;
mod model_proxy;
mod models;
mod modes;
// Live sessions.
mod live_acp;
mod live_agent;
mod live_approvals;
mod live_automations;
mod live_budget;
mod live_callback;
mod live_crash;
mod live_create;
mod live_eviction;
mod live_expiry;
mod live_files_lost;
mod live_http;
mod live_join;
mod live_keys;
mod live_questions;
mod live_slow;
mod live_stream;
mod live_titles;
mod live_turns;
// The process and its dependencies.
mod hostile;
mod ready;
mod shares;
mod silent;
mod start;
mod stopping;
mod upgrades;
mod usage;

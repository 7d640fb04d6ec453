//! The gateway attacked from outside: every credential, every route, hostile sockets and broken neighbours.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod call;
mod hanging;
mod harness;
mod live;
mod people;
mod pgwire;
mod policy_files;
mod raw;
mod world;

// Who is asking.
mod access;
mod administration;
mod attach;
mod bearer;
mod identity;
mod junk;
mod layers;
mod left_behind;
mod live_credentials;
mod login;
mod roles;
mod sessions;
mod snapshots;
mod tickets;
// What may be said.
mod attacks;
mod bad_calls;
mod contract;
mod document;
mod egress;
mod export;
mod garbage;
mod gate;
mod manners;
// What must stay secret.
mod logs;
mod rotation;
mod vault;
// The agent's model.
mod git_proxy;
mod model_proxy;
mod modes;
// The live session.
mod live_agent;
mod live_budget;
mod live_callback;
mod live_crash;
mod live_create;
mod live_expiry;
mod live_http;
mod live_join;
mod live_keys;
mod live_rest;
mod live_slow;
mod live_stream;
mod live_turns;
// The process and its neighbours.
mod hostile;
mod ready;
mod shares;
mod silent;
mod start;
mod stopping;
mod upgrades;

//! Tests of the binary as its users run it: started, queried, given invalid input, stopped and killed.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod administration;
mod attach;
mod audit;
mod bad_starts;
mod browser;
mod connectors;
mod database;
mod databases;
mod deadline;
mod disk_full;
mod gate;
mod harness;
mod help;
mod identity;
mod lifecycle;
mod live;
mod live_actions;
mod live_automations;
mod live_broken;
mod live_browser;
mod live_callbacks;
mod live_crash;
mod live_disk;
mod live_environment;
mod live_expiry;
mod live_forge;
mod live_guide;
mod live_mcp;
mod live_models;
mod live_modes;
mod live_pool;
mod live_push;
mod live_push_attacks;
mod live_questions;
mod live_setup;
mod live_stop;
mod live_work;
mod live_workspace;
mod one_gateway;
mod policy;
mod postgres;
mod remote;
mod sandbox;
mod secrets;
mod seed;
mod session;
mod tamper;
mod terminal;
mod tool_module;

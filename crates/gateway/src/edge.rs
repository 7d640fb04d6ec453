//! The edge: the HTTP and WebSocket interface of the gateway. It turns results of the other modules into responses.

// The table of routes, and the OpenAPI document.
mod document;
mod router;
// Authentication and authorization, recorded administrative changes, and recorded refusals.
mod administer;
mod attempts;
pub mod auth;
// Extractors of URL parameters and bodies, and error responses.
mod body;
mod error;
mod params;
mod questions;
// Middleware.
mod cors;
mod observe;
// The handlers.
mod action_modes;
mod actions;
mod automation_modes;
mod automation_runs;
mod automations;
mod changes;
mod connectors;
mod contract;
mod create;
mod databases;
mod device_login;
mod egress;
mod environment;
mod exec;
mod files;
mod gauges;
mod git;
mod health;
mod hooks;
mod inbox;
mod inspect;
mod integrations;
mod invocations;
mod keys;
mod login;
mod mcp;
mod me;
mod members;
mod messages;
mod model_proxy;
mod notifications;
mod preferences;
mod sandbox;
mod secret_files;
mod secrets;
mod services;
mod sessions;
mod setup;
mod socket;
mod steer;
mod tickets;
mod tool_calls;
mod tools;
#[cfg(feature = "ui")]
mod ui;
mod usage;
mod verification_media;
mod workspaces;

pub(crate) use auth::keep_checking;
pub use body::{Body, OptionalBody};
pub use error::ApiError;
pub use login::cookie_name;
pub(crate) use router::router_inside;
pub use router::{api_document, route_acts, router};

//! The edge: what clients can say to the gateway. Only here are status codes known.

// The table of contents.
mod document;
mod router;
// Who is asking, and for which organization and session.
mod administer;
pub mod auth;
// What a URL and a body may be, and what a refusal looks like.
mod body;
mod error;
mod params;
// What happens around every request.
mod cors;
mod idempotent;
mod observe;
// The routes, in the order of the table of contents.
mod action_modes;
mod contract;
mod create;
mod egress;
mod gauges;
mod git;
mod health;
mod keys;
mod login;
mod me;
mod members;
mod messages;
mod model_proxy;
mod secrets;
mod sessions;
mod socket;
mod steer;
mod tickets;
mod tool_calls;
mod tools;
#[cfg(feature = "ui")]
mod ui;
mod workspaces;

pub(crate) use auth::keep_checking;
pub use body::Body;
pub use error::ApiError;
pub use login::cookie_name;
pub(crate) use router::router_inside;
pub use router::{api_document, route_acts, router};

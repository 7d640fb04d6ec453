//! Pure decisions: who may use which tool in which lane, and why. No clock, no files, no network, no waiting.
//!
//! Nothing is allowed unless a lane says so, and whatever says no wins. [`Policy::load`] reads the files,
//! [`decide`] answers one request, [`explain`] shows every check, [`diff`] and [`replay`] say what a new version
//! would change. [`resolve_mode`] is the second decision, for actions: allow, ask, or deny.

mod compare;
mod decide;
mod error;
mod examples;
mod fields;
mod lanes;
mod modes;
mod pattern;
mod pin;
mod policy;
mod request;
mod roles;
mod tools;
mod yaml;

pub use compare::{Change, Effect, Flip, KnownTool, Recorded, Replayed, diff, replay};
pub use decide::{Check, Explanation, Outcome, Step, Verdict, decide, explain};
pub use error::PolicyError;
pub use lanes::{Lane, Prohibition, Write, WriteMode};
pub use modes::{
    Hints, Mode, ModeDecision, ModeKey, ModeKeyError, ModeSource, Risk, after_drift, derive_risk,
    resolve_mode,
};
pub use pattern::Pattern;
pub use pin::{Pin, Pins, Versions};
pub use policy::{Files, Policy};
pub use request::{Action, ActorClass, Claim, Flag, Grant, Request, RunState, cross_case, full_name};
pub use roles::Role;
pub use tools::{Auth, HttpTool, Method};

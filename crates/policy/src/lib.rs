//! Pure policy decisions: who may use which tool in which lane, and why. No clock, no files, no network, no
//! async.
//!
//! Nothing is allowed unless a lane allows it, and a denial always wins. [`Policy::load`] parses the files,
//! [`decide`] decides one request, [`explain`] reports every check, [`diff`] and [`replay`] show what a new
//! version would change. [`resolve_mode`] makes the second decision, for actions: allow, ask for approval, or
//! deny.

mod compare;
mod compiled;
mod condition;
mod decide;
mod error;
mod examples;
mod fields;
mod lanes;
mod mode_setting;
mod modes;
mod pattern;
mod pin;
mod policy;
mod request;
mod roles;
mod tools;
mod yaml;

pub use compare::{Change, ChangedVerdict, Effect, PastDecision, Replay, ToolFacts, diff, replay};
pub use decide::{Check, Explanation, Outcome, Step, Verdict, decide, explain};
pub use error::PolicyError;
pub use lanes::{Lane, Prohibition, TableWrite, WriteMode};
pub use mode_setting::{Branch, ModeSetting, ModeSettingError};
pub use modes::{
    Hints, Mode, ModeDecision, ModeKey, ModeKeyError, ModeSource, Risk, apply_drift, deciding_setting,
    derive_risk, resolve_mode,
};
pub use pattern::Pattern;
pub use pin::{Pin, Pins, Versions};
pub use policy::{Files, Policy};
pub use request::{Action, ActorClass, Claim, Flag, Grant, Request, RunState, full_name};
pub use roles::Role;
pub use tools::{Auth, HttpTool, Method};
pub use yaml::parse_yaml;

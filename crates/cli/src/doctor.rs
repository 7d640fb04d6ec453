//! `doctor`: checks the machine for everything that the gateway needs, and says how to fix each problem.

mod isolation;
mod machine;
mod services;
mod settings;

use gateway::config::Config;
use serde_json::{Value, json};

use crate::clean::clean;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{BOLD, DIM, GREEN, RED, YELLOW, json_line, line};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Good,
    /// It works, but with reduced capability.
    Weak,
    /// Something will not work.
    Bad,
}

/// The outcome of one check.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    state: State,
    pub(crate) detail: String,
    /// How to fix the problem; empty if there is none.
    pub(crate) remedy: &'static str,
}

impl Finding {
    pub(crate) fn good(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: State::Good, detail: detail.into(), remedy: "" }
    }

    pub(crate) fn weak(name: &'static str, detail: impl Into<String>, remedy: &'static str) -> Self {
        Self { name, state: State::Weak, detail: detail.into(), remedy }
    }

    pub(crate) fn bad(name: &'static str, detail: impl Into<String>, remedy: &'static str) -> Self {
        Self { name, state: State::Bad, detail: detail.into(), remedy }
    }

    fn json(&self) -> Value {
        let state = match self.state {
            State::Good => "ok",
            State::Weak => "warning",
            State::Bad => "failed",
        };
        json!({ "name": self.name, "state": state, "detail": self.detail, "remedy": self.remedy })
    }

    fn print(&self) {
        let (style, mark) = match self.state {
            State::Good => (GREEN, "✓"),
            State::Weak => (YELLOW, "!"),
            State::Bad => (RED, "✗"),
        };
        line(&format!("{style}{mark}{style:#} {BOLD}{:16}{BOLD:#} {}", self.name, clean(&self.detail)));
        if !self.remedy.is_empty() {
            line(&format!("  {:16} {DIM}→ {}{DIM:#}", "", self.remedy));
        }
    }
}

pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let spinner = context.out.spinner("looking at this machine");
    let config = &context.config;
    let (origin, sandboxes, opencode, database, models, secrets, port, policy, script) = tokio::join!(
        // Boxed, or the future of every command would be large.
        Box::pin(settings::origin(config)),
        isolation::check(context),
        machine::opencode(config),
        services::database(config),
        services::models(config),
        settings::secrets(config),
        services::port(config),
        settings::policy(config),
        settings::script(config),
    );
    let mut findings = vec![origin, machine::data_dir(config), machine::disk(config), database, secrets];
    findings.extend([policy, settings::checkpoints(config), script]);
    findings.extend(models);
    findings.extend([services::prices(config), services::shares(config), port]);
    findings.extend(sandboxes);
    findings.extend([machine::btrfs(config), opencode, machine::browser(config)]);
    findings.extend(["git", "rg"].map(|name| machine::program(config, name)));
    spinner.finish_and_clear();
    report(context, &findings)
}

/// The problems that a service logs at startup. Runs only the checks that are fast.
pub(crate) async fn startup_problems(config: &Config) -> Vec<Finding> {
    let programs = ["opencode", "git", "rg"].map(|name| machine::program(config, name));
    let others = [machine::disk(config), machine::btrfs(config), services::prices(config)];
    let all = programs.into_iter().chain(others).chain([settings::policy(config).await]);
    all.filter(|finding| finding.state != State::Good).collect()
}

fn report(context: &Context, findings: &[Finding]) -> Result<(), Failure> {
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    let (weak, bad) = (count(State::Weak), count(State::Bad));
    if context.out.is_json() {
        let values: Vec<Value> = findings.iter().map(Finding::json).collect();
        json_line(&json!({ "ok": bad == 0, "checks": values }));
    } else {
        findings.iter().for_each(Finding::print);
        line(&format!("\n{} checks, {weak} warnings, {bad} failures", findings.len()));
    }
    if bad == 0 { Ok(()) } else { Err(Failure::failed(format!("{bad} of {} checks failed", findings.len()))) }
}

//! `proliferate`: the server and all operator commands.

mod actions;
mod approvals;
mod args;
mod automations;
mod clean;
mod complete;
mod configurations;
mod connectors;
mod context;
mod databases;
mod doctor;
mod failure;
mod gateway_client;
mod json_file;
mod login;
mod login_contexts;
mod lookup;
mod memory;
mod output;

mod audit;
mod db;
mod egress;
mod hidden;
mod inbox;
mod inside;
mod integrations;
mod keys;
mod notifications;
mod operator;
mod orgs;
mod policy;
mod preferences;
mod questions;
mod repos;
mod runs;
mod sandbox;
mod secrets;
mod serve;
mod session;
mod token;
mod usage;
mod users;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use args::{Cli, Command};
use context::Context;
use failure::Failure;
use login_contexts::LoginContexts;

fn main() -> ExitCode {
    if let Some(code) = hidden::run() {
        return code;
    }
    if let Some(code) = inside::run() {
        return code;
    }
    // Enables the crash points that tests use; a no-op in every other build.
    let _crash_points = fail::FailScenario::setup();
    no_core_dumps();
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::missing(format!("cannot start threads: {error}")).report(cli.json),
    };
    let json = cli.json;
    let done = runtime.block_on(run(cli));
    // Do not wait for threads: one may be blocked on standard input for ever.
    runtime.shutdown_background();
    done.unwrap_or_else(|failure| failure.report(json))
}

async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    if let Command::Completions { shell } = cli.command {
        return completions(shell);
    }
    let context = Context::new(&cli)?;
    let done = match cli.command {
        Command::Sandbox(command) => sandbox::run(&context, command).await,
        Command::Session(args) => session::run(&context, args).await,
        command => dispatch(&context, command).await.map(|()| ExitCode::SUCCESS),
    };
    context.close().await;
    done
}

/// Prints the script that makes a shell ask this program for completions.
fn completions(shell: clap_complete::Shell) -> Result<ExitCode, Failure> {
    let shells = clap_complete::env::Shells::builtins();
    let shell = shells.completer(&shell.to_string());
    let shell = shell.ok_or_else(|| Failure::usage("there are no completions for this shell"))?;
    let mut script = Vec::new();
    shell
        .write_registration("COMPLETE", "proliferate", "proliferate", "proliferate", &mut script)
        .map_err(|error| Failure::failed(error.to_string()))?;
    output::line(String::from_utf8_lossy(&script).trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Disables core dumps, which would write every key in memory to disk. The limit is one byte rather than zero: when
/// `core_pattern` pipes cores to a program, the kernel ignores a limit of zero but treats a limit of one as a ban.
fn no_core_dumps() {
    let limit = getrlimit(Resource::Core);
    let one = limit.maximum.map_or(1, |most| most.min(1));
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(one), maximum: Some(one) });
}

/// Says what a command of the operator acts on, if a login leads other commands elsewhere.
fn note_login(context: &Context, command: &Command) {
    let is_operators = matches!(
        command,
        Command::Policy(_)
            | Command::Secrets(_)
            | Command::Keys(_)
            | Command::Users(_)
            | Command::Orgs(_)
            | Command::Egress(_)
            | Command::Actions(_)
            | Command::Audit(_)
            | Command::Token(_)
            | Command::LoginLink { .. }
            | Command::Db(_)
    );
    if !is_operators || context.data_dir_option.is_some() {
        return;
    }
    let saved = LoginContexts::load().unwrap_or_default();
    if let Some(login) = saved.current() {
        let dir = context.config.data_dir.display();
        output::note(&format!(
            "this acts on the data dir {dir} of this machine, not on the login {:?} ({})",
            login.name, login.url
        ));
    }
}

async fn dispatch(context: &Context, command: Command) -> Result<(), Failure> {
    note_login(context, &command);
    match command {
        Command::Up(up) => serve::up(context, up.stop_agents).await,
        Command::Serve(_) => serve::serve(context).await,
        Command::Doctor => doctor::run(context).await,
        Command::Repos(args) => repos::run(context, args).await,
        Command::Connectors(command) => connectors::run(context, command).await,
        Command::Databases(command) => databases::run(context, command).await,
        Command::Integrations(args) => integrations::run(context, args).await,
        Command::Notifications(args) => notifications::run(context, args).await,
        Command::Preferences(args) => preferences::run(context, args).await,
        Command::Configurations(args) => configurations::run(context, args).await,
        Command::Automations(args) => automations::run(context, args).await,
        Command::Runs(args) => runs::run(context, args).await,
        Command::Usage(args) => usage::run(context, args).await,
        Command::Login(args) => login::login(context, args).await,
        Command::Logout { name } => login::logout(context, name).await,
        Command::ApproveLogin(args) => login::approve(context, args).await,
        Command::Context(command) => login::context(context, command),
        Command::LoginLink { member } => users::link(context, member).await,
        Command::Orgs(command) => orgs::run(context, command).await,
        Command::Users(command) => users::run(context, command).await,
        Command::Keys(command) => keys::run(context, command).await,
        Command::Token(command) => token::run(context, command).await,
        Command::Secrets(command) => secrets::run(context, command).await,
        Command::Actions(command) => actions::run(context, command).await,
        Command::Policy(command) => policy::run(context, command).await,
        Command::Inbox(args) => inbox::run(context, args).await,
        Command::Approvals(args) => approvals::run(context, args).await,
        Command::Questions(args) => questions::run(context, args).await,
        Command::Audit(command) => audit::run(context, command).await,
        Command::Db(command) => db::run(context, command).await,
        Command::Egress(command) => egress::run(context, command).await,
        Command::Sandbox(_) | Command::Session(_) | Command::Completions { .. } => Ok(()),
    }
}

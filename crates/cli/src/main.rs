//! `proliferate`: the server, and everything an operator does beside it.

mod actions;
mod args;
mod context;
mod doctor;
mod failure;
mod memory;
mod output;

mod audit;
mod db;
mod egress;
mod hidden;
mod keys;
mod orgs;
mod policy;
mod sandbox;
mod secrets;
mod serve;
mod session;
mod token;
mod users;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command};
use context::Context;
use failure::Failure;

fn main() -> ExitCode {
    if let Some(code) = hidden::run() {
        return code;
    }
    // Where tests let the process die; nothing in any other build.
    let _crash_points = fail::FailScenario::setup();
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::missing(format!("cannot start threads: {error}")).report(cli.json),
    };
    let json = cli.json;
    let done = runtime.block_on(run(cli));
    // A thread may wait for standard input, which may never come.
    runtime.shutdown_background();
    done.unwrap_or_else(|failure| failure.report(json))
}

async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    if let Command::Completions { shell } = cli.command {
        clap_complete::generate(shell, &mut Cli::command(), "proliferate", &mut std::io::stdout());
        return Ok(ExitCode::SUCCESS);
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

async fn dispatch(context: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(up) => serve::up(context, up.stop_agents).await,
        Command::Serve(_) => serve::serve(context).await,
        Command::Doctor => doctor::run(context).await,
        Command::LoginLink { member } => users::link(context, member).await,
        Command::Orgs(command) => orgs::run(context, command).await,
        Command::Users(command) => users::run(context, command).await,
        Command::Keys(command) => keys::run(context, command).await,
        Command::Token(command) => token::run(context, command).await,
        Command::Secrets(command) => secrets::run(context, command).await,
        Command::Actions(command) => actions::run(context, command).await,
        Command::Policy(command) => policy::run(context, command).await,
        Command::Audit(command) => audit::run(context, command).await,
        Command::Db(command) => db::run(context, command).await,
        Command::Egress(command) => egress::run(context, command).await,
        Command::Sandbox(_) | Command::Session(_) | Command::Completions { .. } => Ok(()),
    }
}

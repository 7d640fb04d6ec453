//! Measures how long a decision takes: `cargo run --release -p policy --example decide_speed`.
#![expect(clippy::print_stdout, reason = "printing the result is the purpose of this program")]

use std::error::Error;
use std::hint::black_box;

use clock::Clock;
use policy::{Action, ActorClass, Claim, Files, Policy, Request, Risk, RunState, decide, explain};

const DECISIONS: u32 = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let policy = Policy::load(Files::default())?;
    let versions = policy.pins().versions();
    let allowed = Request {
        actor: Claim {
            actor_type: ActorClass::Agent,
            actor_id: "0198a7c2-3f60-7d11-9a55-6f1f3c9e2b10".to_owned(),
        },
        claimed: None,
        role: "CODING_AGENT".to_owned(),
        lane: "actions.write".to_owned(),
        action: Action::Tool {
            tool_name: "connector:0198a7c2-3f60-7d11-9a55-6f1f3c9e2b10:create_issue".to_owned(),
            operation: "create_issue".to_owned(),
            risk: Risk::Write,
            registered: true,
            writes: None,
        },
        scope: ["case_id", "run_id"].map(String::from).into(),
        refs: Vec::new(),
        flags: [].into(),
        run: RunState::Active(versions.clone()),
        demanded: Some(versions),
        mode: None,
        locked: false,
        grant: None,
    };
    let denied = Request { role: "NOBODY".to_owned(), ..allowed.clone() };
    for (name, request) in [("allowed", &allowed), ("denied", &denied)] {
        println!("{name}: {:?}", decide(&policy, request).outcome);
        report(&format!("{name}, decided"), || drop(black_box(decide(black_box(&policy), request))));
        report(&format!("{name}, explained"), || drop(black_box(explain(black_box(&policy), request))));
    }
    Ok(())
}

fn report(name: &str, work: impl Fn()) {
    let clock = Clock::system();
    (0..DECISIONS).for_each(|_| work());
    println!("{name}: {:.2} µs", clock.elapsed().as_secs_f64() * 1e6 / f64::from(DECISIONS));
}

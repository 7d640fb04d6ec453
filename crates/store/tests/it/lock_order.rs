//! Transactions that change the same session lock its rows in one order: the ledger, the automation's run, the session, its
//! requests. Otherwise PostgreSQL would end one of two that wait for each other.

use chrono::TimeDelta;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use proto::{CompletionOutcome, RunStatus};
use store::{
    Effect, GateWrite, JsonText, NewOrg, NewRun, OpenTranscript, RunAdvance, RunCompletion, RunStep,
    RunVerdict, StoreError,
};
use uuid::Uuid;

use crate::automations::{automation, event as trigger, said, settings};
use crate::backend::{Backend, on_both};
use crate::decisions::{decision, over, start, wait_for};
use crate::gate::{begin, ended, event, org, run};
use crate::world::{ending, id, own, session};

on_both! { decisions_reports_and_stops_of_a_session_do_not_wait_for_each_other }

const ROUNDS: u8 = 30;

async fn decisions_reports_and_stops_of_a_session_do_not_wait_for_each_other(backend: &Backend) {
    let store = &backend.store;
    let created = run("run-0000").created_at;
    store.create_org(NewOrg { id: org(), name: "org".to_owned(), at: created }).await.unwrap();
    let triage = automation(store, org(), 250, settings()).await;
    for round in 0..ROUNDS {
        let session = session(store, org(), 100 + round).await;
        let (event_number, run_number) = (2 * round + 1, 2 * round + 2);
        store.fire(trigger(org(), triage, event_number)).await.unwrap();
        let advance = |step, outbox: u128| RunAdvance {
            org_id: org(),
            run_id: id(run_number),
            step,
            session_id: (step == RunStep::SessionCreated).then_some(session),
            reason: None,
            actor: "tester".to_owned(),
            outbox_id: Uuid::from_u128(outbox + u128::from(round)),
            at: created,
        };
        for (step, outbox) in [(RunStep::SessionCreated, 20_000), (RunStep::PromptSent, 30_000)] {
            store.advance_run(advance(step, outbox)).await.unwrap();
        }
        let waiting = [0, 1].map(|which| format!("run-1{round:02}{which}"));
        let mut at = created;
        for (which, name) in (0_u128..).zip(&waiting) {
            let new = NewRun { session_id: Some(session), ..run(name) };
            let number = 1000 + u128::from(round) * 2 + which;
            at = wait_for(store, new, number).await - TimeDelta::minutes(1);
        }
        let owner = own(store, session).await;
        let deny = RunVerdict::Deny(over(RunStatus::Cancelled));
        let [first, second] = &waiting;
        let (approval, denial) = (decision(first, at, start()), decision(second, at, deny));
        let call = format!("run-2{round:02}0");
        let mut claim = NewRun { session_id: Some(session), ..run(&call) };
        claim.end = Some(*ended("done"));
        let completion = RunCompletion {
            org: org(),
            run: id(run_number),
            trigger_event: id(event_number),
            session,
            outcome: CompletionOutcome::Succeeded,
            completion_id: "c1".to_owned(),
            completion: JsonText::of(&serde_json::json!({})),
            summary: None,
            transcript: OpenTranscript { seq: 7, messages: vec![said("m1", "I report.")] },
            at,
        };
        let report = GateWrite {
            effect: Some(Effect::CompleteRun(Box::new(completion))),
            ..begin(claim, vec![event(&format!("said-of-{call}"), &call)])
        };
        let cancel = advance(RunStep::Cancelled, 40_000);
        let mut works: Vec<BoxFuture<'static, Result<(), StoreError>>> = Vec::new();
        for write in [approval, report, denial] {
            let store = store.clone();
            works.push(async move { store.gate_write(write).await.map(drop) }.boxed());
        }
        let others = store.clone();
        works.push(async move { others.end_session(&owner, ending(at)).await }.boxed());
        let others = store.clone();
        works.push(async move { others.save_messages(&owner, 5, vec![said("m2", "Mine.")]).await }.boxed());
        let others = store.clone();
        works.push(async move { others.advance_run(cancel).await.map(drop) }.boxed());
        works.rotate_left(usize::from(round) % 6);
        for done in join_all(works.into_iter().map(tokio::spawn)).await {
            done.unwrap().unwrap();
        }
    }
}

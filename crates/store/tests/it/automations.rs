//! Automations: settings, events that start runs, the state machine in the database, and the outbox.

use chrono::{DateTime, TimeDelta, Utc};
use proto::socket::{MessageRole, ToolStatus};
use proto::{
    AutomationId, AutomationRunId, AutomationRunStatus, CompletionOutcome, OrgId, Outcome, Resolution, Role,
    RunEventKind, SessionId, TriggerEventStatus, TriggerKind, WebhookScheme,
};
use store::{
    Advanced, AutomationRunFilter, AutomationSettings, CronFiring, CronTrigger, Effect, FiringOutcome,
    GateWrite, JsonText, MAX_OPEN_RUNS, NewAutomation, NewOrg, NewTriggerEvent, OpenTranscript, OutboxStep,
    Owner, PartBody, RunAdvance, RunCompletion, RunStep, Store, StoreError, StoredMessage, StoredPart,
    StoredTool, WebhookTrigger, Written, next_status,
};
use uuid::Uuid;

use crate::backend::{Backend, on_both};
use crate::gate;
use crate::world::{at, ending, hash, id, member, org, own, session};

on_both! {
    settings_are_replaced_unless_somebody_else_changed_them
    an_event_starts_a_run_with_its_log_and_its_work
    a_delivery_starts_one_run
    a_firing_runs_once_and_skips_while_the_last_one_runs
    a_disabled_or_full_automation_starts_nothing
    the_database_takes_exactly_the_steps_of_the_machine
    concurrent_steps_end_a_run_once
    a_report_settles_everything_at_once_and_only_once
    the_deadline_stands_still_while_a_run_waits
    runs_whose_session_is_gone_are_found
    an_automation_is_deleted_only_without_open_runs
    nothing_is_visible_to_another_organization
}

pub(crate) fn settings() -> AutomationSettings {
    AutomationSettings {
        name: "triage".to_owned(),
        instructions: "Look.".to_owned(),
        model: None,
        configuration_id: None,
        system_prompt: None,
        enabled: true,
        webhook: None,
        cron: None,
    }
}

pub(crate) async fn automation(
    store: &Store,
    org: OrgId,
    number: u8,
    settings: AutomationSettings,
) -> AutomationId {
    let new = NewAutomation { id: id(number), org_id: org, settings, created_by: None, at: at(0) };
    store.create_automation(new).await.unwrap();
    id(number)
}

/// The event `number`, which starts the run `number + 1`.
pub(crate) fn event(org: OrgId, automation: AutomationId, number: u8) -> NewTriggerEvent {
    NewTriggerEvent {
        id: id(number),
        org_id: org,
        automation_id: automation,
        kind: TriggerKind::Manual,
        event_name: None,
        payload: Some(r#"{"a":"\u0000"}"#.to_owned()),
        firing: None,
        deliveries: Vec::new(),
        rerun_of: None,
        run_id: id(number + 1),
        outbox_id: Uuid::from_u128(10_000 + u128::from(number)),
        actor: "tester".to_owned(),
        at: at(number.into()),
        deadline_at: at(7200),
    }
}

fn step(org: OrgId, run: AutomationRunId, step: RunStep, now: DateTime<Utc>) -> RunAdvance {
    RunAdvance {
        org_id: org,
        run_id: run,
        step,
        session_id: (step == RunStep::SessionCreated).then(|| id(40)),
        reason: Some("because".to_owned()),
        actor: "tester".to_owned(),
        outbox_id: Uuid::from_u128(200),
        at: now,
    }
}

async fn status(store: &Store, org: OrgId, run: AutomationRunId) -> AutomationRunStatus {
    store.automation_run(org, run).await.unwrap().unwrap().status
}

async fn settings_are_replaced_unless_somebody_else_changed_them(b: &Backend) {
    let one = org(&b.store, 1).await;
    let ada = member(&b.store, one, 10, Role::Owner).await;
    let full = AutomationSettings {
        model: Some("claude-opus-4.6".to_owned()),
        system_prompt: Some("You are a librarian.".to_owned()),
        webhook: Some(WebhookTrigger { scheme: WebhookScheme::Github, secret: "S".to_owned() }),
        cron: Some(CronTrigger {
            schedule: "0 9 * * *".to_owned(),
            time_zone: "Europe/Berlin".to_owned(),
            next_at: Some(at(5)),
        }),
        ..settings()
    };
    let new =
        NewAutomation { id: id(80), org_id: one, settings: full.clone(), created_by: Some(ada), at: at(0) };
    b.store.create_automation(new).await.unwrap();
    let made = b.store.automation(one, id(80)).await.unwrap().unwrap();
    assert_eq!((&made.settings, made.created_by, made.updated_at), (&full, Some(ada), at(0)));
    assert_eq!(b.store.automation_any(id(80)).await.unwrap().as_ref(), Some(&made));
    assert_eq!(b.store.automations(one).await.unwrap(), std::slice::from_ref(&made));
    assert_eq!(b.store.due_automations(at(4), 9).await.unwrap(), []);
    assert_eq!(b.store.due_automations(at(5), 9).await.unwrap(), std::slice::from_ref(&made));

    b.store.update_automation(one, id(80), made.revision, settings(), at(9)).await.unwrap();
    let changed = b.store.automation(one, id(80)).await.unwrap().unwrap();
    assert_eq!((changed.settings, changed.updated_at), (settings(), at(9)));
    let late = b.store.update_automation(one, id(80), made.revision, full.clone(), at(10)).await;
    assert!(matches!(late, Err(StoreError::Refused(_))), "{late:?}");
    let unknown = b.store.update_automation(one, id(81), 0, full, at(10)).await;
    assert!(matches!(unknown, Err(StoreError::Missing(_))), "{unknown:?}");
}

async fn an_event_starts_a_run_with_its_log_and_its_work(b: &Backend) {
    let one = org(&b.store, 1).await;
    let triage = automation(&b.store, one, 80, settings()).await;
    assert_eq!(b.store.fire(event(one, triage, 90)).await.unwrap(), FiringOutcome::Started);
    let run = b.store.automation_run(one, id(91)).await.unwrap().unwrap();
    assert_eq!(
        (run.status, run.trigger, run.automation_name.as_str()),
        (AutomationRunStatus::Queued, TriggerKind::Manual, "triage")
    );
    assert_eq!((run.deadline_at, run.session_id, run.completed_at), (at(7200), None, None));
    let log = b.store.automation_run_events(one, id(91)).await.unwrap();
    assert_eq!(log.len(), 1);
    assert_eq!(
        (log[0].kind, log[0].to, log[0].actor.as_str()),
        (RunEventKind::Created, Some(AutomationRunStatus::Queued), "tester")
    );
    let work = b.store.due_outbox(at(90), 9).await.unwrap();
    assert_eq!(
        (work.len(), work[0].run_id, work[0].step, work[0].attempts),
        (1, id(91), OutboxStep::StartSession, 0)
    );
    assert!(b.store.due_outbox(at(89), 9).await.unwrap().is_empty());
    b.store.postpone_outbox(work[0].id, Some("no\0 sandbox"), at(100)).await.unwrap();
    assert!(b.store.due_outbox(at(99), 9).await.unwrap().is_empty());
    let work = b.store.due_outbox(at(100), 9).await.unwrap();
    assert_eq!(work[0].attempts, 1);
    b.store.finish_outbox(work[0].id).await.unwrap();
    assert!(b.store.due_outbox(at(100), 9).await.unwrap().is_empty());
    let stored = b.store.trigger_event(one, id(90)).await.unwrap().unwrap();
    assert_eq!((stored.status, stored.run_id), (TriggerEventStatus::Queued, Some(id(91))));
    assert_eq!(stored.payload.as_deref(), Some(r#"{"a":"\u0000"}"#));
}

async fn a_delivery_starts_one_run(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (triage, other) =
        (automation(&b.store, one, 80, settings()).await, automation(&b.store, one, 81, settings()).await);
    let with = |automation, number, keys: &[u8]| NewTriggerEvent {
        kind: TriggerKind::Webhook,
        deliveries: keys.iter().map(|key| hash(*key)).collect(),
        ..event(one, automation, number)
    };
    assert_eq!(b.store.fire(with(triage, 90, &[1, 2])).await.unwrap(), FiringOutcome::Started);
    for keys in [&[1, 3][..], &[3, 2], &[1, 2]] {
        let again = b.store.fire(with(triage, 92, keys)).await.unwrap();
        assert_eq!(again, FiringOutcome::Duplicate { event: id(90), run: Some(id(91)) });
    }
    assert_eq!(
        b.store.fire(with(other, 94, &[1, 2])).await.unwrap(),
        FiringOutcome::Started,
        "of another automation"
    );
    assert_eq!(b.store.trigger_events(one, triage, 9).await.unwrap().len(), 1);

    // Of several at once, one starts.
    let all = futures_util::future::join_all(
        (0..8_u8).map(|number| b.store.fire(with(triage, 100 + number * 2, &[7]))),
    );
    let started = all.await.into_iter().filter(|fired| matches!(fired, Ok(FiringOutcome::Started))).count();
    assert_eq!(started, 1);
}

async fn a_firing_runs_once_and_skips_while_the_last_one_runs(b: &Backend) {
    let one = org(&b.store, 1).await;
    let cron =
        CronTrigger { schedule: "* * * * *".to_owned(), time_zone: "UTC".to_owned(), next_at: Some(at(60)) };
    let triage = automation(&b.store, one, 80, AutomationSettings { cron: Some(cron), ..settings() }).await;
    let firing = |number, due: i64, next: i64, missed| NewTriggerEvent {
        kind: TriggerKind::Cron,
        firing: Some(CronFiring { due: at(due), next: Some(at(next)), missed }),
        ..event(one, triage, number)
    };
    assert_eq!(b.store.fire(firing(90, 60, 180, 1)).await.unwrap(), FiringOutcome::Started);
    assert_eq!(
        b.store.fire(firing(92, 60, 180, 1)).await.unwrap(),
        FiringOutcome::Stale,
        "it was handled already"
    );
    assert_eq!(
        b.store.fire(firing(92, 180, 240, 0)).await.unwrap(),
        FiringOutcome::Skipped,
        "the first still runs"
    );
    let events = b.store.trigger_events(one, triage, 9).await.unwrap();
    let shown: Vec<_> =
        events.iter().map(|event| (event.status, event.scheduled_for, event.missed, event.run_id)).collect();
    assert_eq!(
        shown,
        [
            (TriggerEventStatus::Skipped, Some(at(180)), 0, None),
            (TriggerEventStatus::Queued, Some(at(60)), 1, Some(id(91))),
        ]
    );
    assert!(events[0].skip_reason.as_deref().is_some_and(|reason| reason.contains("has not ended")));
    let log = b.store.automation_run_events(one, id(91)).await.unwrap();
    assert!(
        log[0].detail.as_deref().is_some_and(|detail| detail.contains("1 later firings were missed")),
        "{log:?}"
    );

    b.store.advance_run(step(one, id(91), RunStep::Cancelled, at(200))).await.unwrap();
    assert_eq!(b.store.fire(firing(94, 240, 300, 0)).await.unwrap(), FiringOutcome::Started);
}

async fn a_disabled_or_full_automation_starts_nothing(b: &Backend) {
    let one = org(&b.store, 1).await;
    let off = automation(&b.store, one, 80, AutomationSettings { enabled: false, ..settings() }).await;
    let by_hand = b.store.fire(event(one, off, 90)).await;
    assert!(matches!(by_hand, Err(StoreError::Refused(_))), "{by_hand:?}");
    let hook = NewTriggerEvent { kind: TriggerKind::Webhook, ..event(one, off, 90) };
    assert_eq!(b.store.fire(hook).await.unwrap(), FiringOutcome::Skipped);
    assert!(b.store.due_outbox(at(9999), 9).await.unwrap().is_empty());

    let busy = automation(&b.store, one, 81, settings()).await;
    for number in 0..MAX_OPEN_RUNS {
        let ids = 1000 + u128::try_from(number).unwrap() * 2;
        let event = NewTriggerEvent {
            id: Uuid::from_u128(ids).into(),
            run_id: Uuid::from_u128(ids + 1).into(),
            outbox_id: Uuid::from_u128(ids + 1),
            ..event(one, busy, 100)
        };
        assert_eq!(b.store.fire(event).await.unwrap(), FiringOutcome::Started);
    }
    assert_eq!(b.store.fire(event(one, busy, 102)).await.unwrap(), FiringOutcome::Full);
}

/// Every step from every state: the database agrees with the pure function, and a refused step changes nothing.
async fn the_database_takes_exactly_the_steps_of_the_machine(b: &Backend) {
    let one = org(&b.store, 1).await;
    let triage = automation(&b.store, one, 80, settings()).await;
    let (created, sent) = (RunStep::SessionCreated, RunStep::PromptSent);
    let ways: [&[RunStep]; 8] = [
        &[],
        &[created],
        &[created, sent],
        &[created, sent, RunStep::Completed(CompletionOutcome::Succeeded)],
        &[created, sent, RunStep::SessionLost],
        &[created, sent, RunStep::QuestionExpired],
        &[RunStep::TimedOut],
        &[RunStep::Cancelled],
    ];
    let steps = [
        created,
        sent,
        RunStep::CannotStart,
        RunStep::SessionLost,
        RunStep::QuestionExpired,
        RunStep::TimedOut,
        RunStep::Cancelled,
        RunStep::Completed(CompletionOutcome::Failed),
        RunStep::Resolved(Resolution::Succeeded),
    ];
    let mut next_id = 5000_u128;
    for way in ways {
        for last in steps {
            next_id += 10;
            let run: AutomationRunId = Uuid::from_u128(next_id).into();
            let new = NewTriggerEvent {
                id: Uuid::from_u128(next_id + 1).into(),
                run_id: run,
                outbox_id: Uuid::from_u128(next_id + 2),
                ..event(one, triage, 90)
            };
            let started = new.id;
            assert_eq!(b.store.fire(new).await.unwrap(), FiringOutcome::Started);
            let take = |what| RunAdvance {
                outbox_id: Uuid::from_u128(next_id + 3),
                ..step(one, run, what, at(500))
            };
            for before in way {
                let taken = b.store.advance_run(take(*before)).await.unwrap();
                assert!(matches!(taken, Advanced::To(_)), "{way:?}");
            }
            let from = status(&b.store, one, run).await;
            let logged = b.store.automation_run_events(one, run).await.unwrap().len();
            let taken = b.store.advance_run(take(last)).await.unwrap();
            let (expected, more) = match next_status(from, last) {
                Some(to) => (Advanced::To(to), 1),
                None => (Advanced::Refused(from), 0),
            };
            assert_eq!(taken, expected, "{from} {last:?}");
            let now = b.store.automation_run(one, run).await.unwrap().unwrap();
            assert_eq!(now.status, next_status(from, last).unwrap_or(from));
            assert_eq!(now.completed_at.is_some(), now.status.has_ended());
            let log = b.store.automation_run_events(one, run).await.unwrap();
            assert_eq!(log.len(), logged + more, "{from} {last:?}");
            let event = b.store.trigger_event(one, started).await.unwrap().unwrap();
            assert_eq!(
                event.status == TriggerEventStatus::Completed,
                now.status == AutomationRunStatus::Succeeded
            );
            let work: Vec<_> = b.store.due_outbox(at(999), 999).await.unwrap();
            let work: Vec<_> =
                work.iter().filter(|entry| entry.run_id == run).map(|entry| entry.step).collect();
            let expected = match (now.status.has_ended(), now.session_id) {
                (false, _) => vec![OutboxStep::StartSession],
                (true, Some(_)) => vec![OutboxStep::EndSession],
                (true, None) => vec![],
            };
            assert_eq!(work, expected, "{from} {last:?}");
            // Otherwise the automation is full soon.
            b.store.advance_run(take(RunStep::Cancelled)).await.unwrap();
        }
    }
}

async fn concurrent_steps_end_a_run_once(b: &Backend) {
    let one = org(&b.store, 1).await;
    let triage = automation(&b.store, one, 80, settings()).await;
    b.store.fire(event(one, triage, 90)).await.unwrap();
    let ends = (0..8).map(|number| {
        let end = if number % 2 == 0 { RunStep::Cancelled } else { RunStep::TimedOut };
        b.store.advance_run(step(one, id(91), end, at(500)))
    });
    let taken = futures_util::future::join_all(ends).await;
    let count = taken.iter().filter(|taken| matches!(taken, Ok(Advanced::To(_)))).count();
    assert_eq!(count, 1, "{taken:?}");
    assert_eq!(b.store.automation_run_events(one, id(91)).await.unwrap().len(), 2);
}

/// A message with a text and a tool call that the agent has not finished.
pub(crate) fn said(id: &str, text: &str) -> StoredMessage {
    let tool = StoredTool {
        call_id: format!("call-of-{id}"),
        tool: "automation_complete".to_owned(),
        args: serde_json::json!({"outcome": "needs_human"}),
        result: None,
        status: ToolStatus::Running,
        started_at: at(290),
        completed_at: None,
    };
    StoredMessage {
        id: id.to_owned(),
        role: MessageRole::Assistant,
        content: text.to_owned(),
        is_complete: false,
        interrupted: false,
        error: None,
        sender_id: None,
        source: None,
        created_at: at(280),
        parts: vec![
            StoredPart { id: "p1".to_owned(), body: PartBody::Text("some text".to_owned()) },
            StoredPart { id: "p2".to_owned(), body: PartBody::Tool(tool) },
        ],
    }
}

/// The write of a call that reports that the run 91 needs a person.
fn report_write(
    call: &str,
    completion_id: &str,
    session: SessionId,
    contents: &serde_json::Value,
    transcript: OpenTranscript,
) -> GateWrite {
    let mut claim = gate::run(call);
    claim.end = Some(*gate::ended("done"));
    let completion = RunCompletion {
        org: gate::org(),
        run: id(91),
        trigger_event: id(90),
        session,
        outcome: CompletionOutcome::NeedsHuman,
        completion_id: completion_id.to_owned(),
        completion: JsonText::of(contents),
        summary: Some("# Help".to_owned()),
        transcript,
        at: at(300),
    };
    let effect = Some(Effect::CompleteRun(Box::new(completion)));
    GateWrite { effect, ..gate::begin(claim, vec![gate::event(&format!("said-of-{call}"), call)]) }
}

/// Checks that the transcript has a message as its owner saved it, and one as it was when the agent reported.
async fn check_saved(b: &Backend, owner: &Owner, whole: StoredMessage, open: StoredMessage) {
    let session = owner.session();
    let saved = b.store.transcript(session, 65_536).await.unwrap();
    let stored = StoredMessage { content: "I report\u{fffd} it.".to_owned(), ..open };
    assert_eq!((saved.seq, saved.messages), (7, vec![whole, stored.clone()]));
    // The message is saved again when it ends.
    let end = StoredMessage { is_complete: true, ..stored };
    b.store.save_messages(owner, 9, vec![end.clone()]).await.unwrap();
    let saved = b.store.transcript(session, 65_536).await.unwrap();
    assert_eq!((saved.seq, saved.messages.last()), (9, Some(&end)));
}

async fn a_report_settles_everything_at_once_and_only_once(b: &Backend) {
    let one = gate::org();
    b.store.create_org(NewOrg { id: one, name: "org".to_owned(), at: at(0) }).await.unwrap();
    let triage = automation(&b.store, one, 80, settings()).await;
    b.store.fire(event(one, triage, 90)).await.unwrap();
    let session: SessionId = session(&b.store, one, 40).await;
    // One of the agent's two open messages ends while its report is on the way.
    let (finished, open) = (said("m1", "I am done."), said("m2", "I report\0 it."));
    let report_of = |call: &str, completion_id: &str, session: SessionId, contents: serde_json::Value| {
        let transcript = OpenTranscript { seq: 7, messages: vec![finished.clone(), open.clone()] };
        report_write(call, completion_id, session, &contents, transcript)
    };
    let contents = serde_json::json!({"outcome": "needs_human", "citations": []});
    let report = |call: &str, completion_id: &str, session: SessionId| {
        report_of(call, completion_id, session, contents.clone())
    };
    let write = async |write| b.store.gate_write(write).await.unwrap();
    let early = write(report("run-0001", "c1", session)).await;
    assert!(matches!(early, Written::Gone), "the run has no session yet: {early:?}");
    for next in [RunStep::SessionCreated, RunStep::PromptSent] {
        b.store.advance_run(step(one, id(91), next, at(100))).await.unwrap();
    }
    assert!(b.store.set_run_waiting((one, id(91)), Some(at(200)), at(7200), at(200)).await.unwrap());
    let foreign = write(report("run-0002", "c1", id(41))).await;
    assert!(matches!(foreign, Written::Gone), "of another session: {foreign:?}");
    let saved = b.store.transcript(session, 65_536).await.unwrap();
    assert!(saved.messages.is_empty(), "refused reports save nothing");
    let owner = own(&b.store, session).await;
    let whole =
        StoredMessage { is_complete: true, content: "I am done. All of it.".to_owned(), ..finished.clone() };
    b.store.save_messages(&owner, 5, vec![whole.clone()]).await.unwrap();
    assert!(matches!(write(report("run-0003", "c1", session)).await, Written::Done));
    check_saved(b, &owner, whole, open.clone()).await;

    let run = b.store.automation_run(one, id(91)).await.unwrap().unwrap();
    assert_eq!((run.status, run.completion_id.as_deref()), (AutomationRunStatus::NeedsHuman, Some("c1")));
    assert_eq!((run.completed_at, run.completion), (Some(at(300)), Some(contents.clone())));
    let started = b.store.trigger_event(one, id(90)).await.unwrap().unwrap();
    assert_eq!(started.status, TriggerEventStatus::Failed);
    let record = b.store.session(one, session).await.unwrap().unwrap();
    assert_eq!((record.outcome, record.summary.as_deref()), (Some(Outcome::NeedsHuman), Some("# Help")));
    let log = b.store.automation_run_events(one, id(91)).await.unwrap();
    let waits: Vec<_> = log[3..5].iter().map(|entry| (entry.kind, entry.detail.as_deref())).collect();
    let wait = RunEventKind::Waiting;
    assert_eq!(waits, [(wait, Some("question")), (wait, Some("answered"))], "its begin and its end");
    assert_eq!(run.waiting_since, None);
    assert_eq!(
        (log.len(), log[5].kind, log[5].to),
        (6, RunEventKind::Completion, Some(AutomationRunStatus::NeedsHuman))
    );
    let has_end = async |time| {
        let work = b.store.due_outbox(time, 9).await.unwrap();
        work.iter().any(|entry| entry.step == OutboxStep::EndSession)
    };
    assert!(!has_end(at(302)).await, "the agent gets the reply to its report first");
    assert!(has_end(at(303)).await);

    // The same report in another call changes nothing and succeeds; another report is refused.
    assert!(matches!(write(report("run-0004", "c1", session)).await, Written::Done));
    assert_eq!(b.store.automation_run_events(one, id(91)).await.unwrap().len(), 6);
    let other = write(report("run-0005", "c2", session)).await;
    assert!(matches!(other, Written::Gone), "{other:?}");
    // Two such reports at once have both been checked before either was written.
    let other = write(report_of("run-0006", "c1", session, serde_json::json!({"outcome": "failed"}))).await;
    assert!(matches!(other, Written::Gone), "the same id with other contents: {other:?}");
    // The outcome stays when the session ends.
    b.store.end_session(&owner, ending(at(400))).await.unwrap();
    let record = b.store.session(one, session).await.unwrap().unwrap();
    assert_eq!(record.outcome, Some(Outcome::NeedsHuman));
}

async fn the_deadline_stands_still_while_a_run_waits(b: &Backend) {
    let one = org(&b.store, 1).await;
    let triage = automation(&b.store, one, 80, settings()).await;
    b.store.fire(event(one, triage, 90)).await.unwrap();
    let run = id(91);
    for next in [RunStep::SessionCreated, RunStep::PromptSent] {
        b.store.advance_run(step(one, run, next, at(100))).await.unwrap();
    }
    assert!(b.store.overdue_runs(at(7199), 9).await.unwrap().is_empty());
    assert_eq!(b.store.overdue_runs(at(7200), 9).await.unwrap().len(), 1);
    assert!(b.store.set_run_waiting((one, run), Some(at(1000)), at(7200), at(1000)).await.unwrap());
    assert!(
        !b.store.set_run_waiting((one, run), Some(at(1001)), at(7200), at(1001)).await.unwrap(),
        "waits already"
    );
    assert!(b.store.overdue_runs(at(99_999), 9).await.unwrap().is_empty());
    let waiting = b.store.automation_run(one, run).await.unwrap().unwrap();
    assert_eq!((waiting.status, waiting.waiting_since), (AutomationRunStatus::Running, Some(at(1000))));
    let later = at(7200) + TimeDelta::seconds(500);
    assert!(b.store.set_run_waiting((one, run), None, later, at(1500)).await.unwrap());
    assert!(b.store.overdue_runs(at(7699), 9).await.unwrap().is_empty());
    assert_eq!(b.store.overdue_runs(at(7700), 9).await.unwrap().len(), 1);
}

async fn runs_whose_session_is_gone_are_found(b: &Backend) {
    let one = org(&b.store, 1).await;
    let triage = automation(&b.store, one, 80, settings()).await;
    b.store.fire(event(one, triage, 90)).await.unwrap();
    let lost = async || b.store.runs_without_session(9).await.unwrap().len();
    assert_eq!(lost().await, 0, "it has no session yet");
    let session: SessionId = session(&b.store, one, 40).await;
    b.store.advance_run(step(one, id(91), RunStep::SessionCreated, at(100))).await.unwrap();
    let run = b.store.automation_run(one, id(91)).await.unwrap().unwrap();
    assert_eq!(run.session_id, Some(session));
    assert_eq!(lost().await, 0);
    b.store.remove_session(one, session).await.unwrap();
    assert_eq!(lost().await, 1);
    b.store.advance_run(step(one, id(91), RunStep::SessionLost, at(300))).await.unwrap();
    assert_eq!(lost().await, 0);
}

async fn an_automation_is_deleted_only_without_open_runs(b: &Backend) {
    let one = org(&b.store, 1).await;
    let triage = automation(&b.store, one, 80, settings()).await;
    b.store.fire(event(one, triage, 90)).await.unwrap();
    session(&b.store, one, 40).await;
    b.raw().await.execute("UPDATE sessions SET automation_id = #80 WHERE id = #40").await.unwrap();
    let refused = b.store.delete_automation(one, triage).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    b.store.advance_run(step(one, id(91), RunStep::SessionCreated, at(100))).await.unwrap();
    b.store.advance_run(step(one, id(91), RunStep::Cancelled, at(100))).await.unwrap();
    let refused = b.store.delete_automation(one, triage).await;
    assert!(
        matches!(refused, Err(StoreError::Refused(_))),
        "its session has not been ended yet: {refused:?}"
    );
    b.store.finish_outbox(Uuid::from_u128(200)).await.unwrap();
    b.store.delete_automation(one, triage).await.unwrap();
    assert_eq!(b.store.automation_run(one, id(91)).await.unwrap(), None);
    assert!(matches!(b.store.delete_automation(one, triage).await, Err(StoreError::Missing(_))));
}

async fn nothing_is_visible_to_another_organization(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let triage = automation(&b.store, one, 80, settings()).await;
    b.store.fire(event(one, triage, 90)).await.unwrap();
    assert_eq!(b.store.automation(two, triage).await.unwrap(), None);
    assert!(b.store.automations(two).await.unwrap().is_empty());
    assert_eq!(b.store.automation_run(two, id(91)).await.unwrap(), None);
    assert_eq!(b.store.trigger_event(two, id(90)).await.unwrap(), None);
    assert!(b.store.automation_run_events(two, id(91)).await.unwrap().is_empty());
    assert!(
        b.store
            .automation_runs(two, AutomationRunFilter { limit: 9, ..Default::default() })
            .await
            .unwrap()
            .is_empty()
    );
    for refused in [
        b.store.advance_run(step(two, id(91), RunStep::Cancelled, at(100))).await.map(drop),
        b.store.assign_run((two, id(91)), None, "x".to_owned(), at(100)).await,
        b.store.fire(event(two, triage, 92)).await.map(drop),
        b.store.delete_automation(two, triage).await,
    ] {
        assert!(matches!(refused, Err(StoreError::Missing(_))), "{refused:?}");
    }
    let stranger = member(&b.store, two, 11, Role::Member).await;
    let refused = b.store.assign_run((one, id(91)), Some(stranger), "x".to_owned(), at(100)).await;
    assert!(matches!(refused, Err(StoreError::Missing("this member"))), "{refused:?}");
    let ada = member(&b.store, one, 10, Role::Member).await;
    b.store.assign_run((one, id(91)), Some(ada), "x".to_owned(), at(100)).await.unwrap();
    assert_eq!(b.store.automation_run(one, id(91)).await.unwrap().unwrap().assigned_to, Some(ada));
}

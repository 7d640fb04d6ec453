//! Checks the HTTP API against the Tool Gateway Contract. `docs/contract.md` lists every MUST with the name of its
//! check; each check runs on both databases. A row without a check, or a check without a row, fails.

mod calls;
mod events;
mod rules;
mod runs;
mod words;

use std::collections::BTreeMap;

use crate::gate;

/// Generates one test per check and database, and the list of all checks.
macro_rules! checks {
    ($($module:ident::$check:ident $(: $id:literal)*;)+) => {
        const CHECKS: &[(&str, &[&str])] = &[$((stringify!($check), &[$($id),*])),+];

        mod sqlite {
            use crate::world::World;
            use crate::harness::Setup;

            $(#[tokio::test]
            async fn $check() {
                super::$module::$check(World::on(Setup::sqlite()).await).await;
            })+
        }

        mod postgres {
            use crate::world::World;
            use crate::harness::Setup;

            $(#[tokio::test]
            async fn $check() {
                super::$module::$check(World::on(Setup::postgres().await).await).await;
            })+
        }
    };
}

checks! {
    calls::only_the_gate_executes: "0.1": "1.1";
    calls::a_call_names_a_lane: "1.2";
    calls::every_attempt_is_recorded: "1.3": "7.1": "9.4";
    gate::a_call_that_is_allowed_has_one_effect_two_events_and_a_run: "1.4": "1.5": "8.1": "9.5": "9.6";
    calls::equal_requests_have_equal_hashes: "4.2";
    calls::every_field_of_a_request_is_understood: "4.1";
    calls::every_field_of_an_answer_is_there: "5.1";
    calls::only_artifacts_contain_content: "1.6": "5.2": "7.3": "R.3": "L.6";
    gate::unparseable_calls_are_invalid_and_recorded;
    gate::failing_hanging_and_unreachable_tools_have_different_errors: "6.2";
    gate::the_same_id_is_the_same_call_and_other_content_is_refused;
    gate::duplicates_in_flight_wait_for_the_one_execution;
    gate::a_call_continues_when_its_caller_disconnects;
    gate::a_callback_is_executed_once_per_id_and_answers_200_for_every_result;
    gate::a_sandbox_may_act_only_for_its_own_session;

    rules::the_token_determines_the_caller: "3.1";
    rules::the_lane_is_open_to_the_role: "3.2";
    rules::the_lane_lists_the_tool: "3.3": "9.1";
    rules::the_scope_is_there: "3.4": "9.2";
    rules::prohibitions_hold: "3.5": "9.3";
    gate::calls_that_policy_does_not_allow_are_denied_recorded_and_not_executed: "3.6": "6.1";
    rules::the_first_failing_check_is_reported: "L.7";
    rules::a_write_needs_a_lane_that_lists_it: "8.2";
    gate::artifacts_of_another_case_and_missing_ones_are_refused_alike: "8.3";
    gate::a_service_of_no_organization_names_one_and_an_export_needs_its_lane: "8.4";
    gate::a_call_under_other_pins_is_denied: "9.8": "L.2": "L.9";
    rules::the_safety_lock_stops_everything: "L.10";
    rules::files_that_disagree_are_refused: "Y.1": "Y.2";

    runs::a_call_is_a_child_run: "2.1": "9.7";
    runs::a_run_ends_once_with_its_status: "2.2": "L.1": "L.8";
    gate::a_child_needs_an_active_parent_and_inherits_from_it: "L.3": "L.5";
    gate::a_retry_is_a_new_run_below_the_first: "L.4";
    runs::a_run_record_is_complete: "R.1";
    runs::every_kind_of_run_is_known: "R.2";

    events::an_event_has_actor_action_target_and_time: "7.2": "E.1";
    events::events_are_numbered_and_immutable: "E.2";
    events::an_artifact_reference_is_complete_and_parsed_strictly: "A.1";
    events::guessable_parameters_are_hashed_with_a_key;

    words::a_tool_has_the_one_name_that_policy_decides_about;
    words::a_case_in_the_scope_is_the_case;
    words::claims_of_a_caller_about_an_artifact_are_not_repeated;
    words::a_child_is_of_its_parents_case_and_pins;
    words::outcomes_of_runs_are_single_lines;
    words::a_break_glass_event_has_ticket_and_reason;
    words::a_sandbox_starts_and_reads_only_runs_of_its_own_case;
}

/// Whether a line is a contract row, `| id | what must hold | `check` |`, and not a row of the attack table.
fn is_row(line: &str) -> bool {
    line.starts_with("| ") && !line.starts_with("| T-") && line.ends_with("` |")
}

fn rows(document: &str) -> BTreeMap<&str, &str> {
    let mut rows = BTreeMap::new();
    for line in document.lines().filter(|line| is_row(line)) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [id, what, check] = cells[..] else { panic!("not three cells: {line}") };
        assert!(!what.is_empty(), "{id} does not say what must hold");
        assert_eq!(rows.insert(id, check.trim_matches('`')), None, "{id} is there twice");
    }
    rows
}

#[test]
fn every_must_has_its_check_and_every_check_its_must() {
    let listed = rows(include_str!("../../../../docs/contract.md"));
    assert!(listed.len() >= 30, "the list is not read any more");
    let checked: BTreeMap<_, _> =
        CHECKS.iter().flat_map(|(check, ids)| ids.iter().map(move |id| (*id, *check))).collect();
    assert_eq!(listed, checked, "docs/contract.md beside the checks");
    let ids = CHECKS.iter().map(|(_, ids)| ids.len()).sum::<usize>();
    assert_eq!(ids, checked.len(), "two checks claim one MUST");
}

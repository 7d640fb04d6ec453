//! Checks the other columns of an event's row against its record. Lists and searches use these columns, so they must match
//! the record.

use ledger::{Event, Text};
use store::EventRow;

use super::VerifyError;
use super::difference::Place;
use crate::audit_writer;

pub(super) fn check(row: &EventRow, event: &Event) -> Result<(), VerifyError> {
    let position = row.entry.position;
    let key = || format!("position={position}");
    let place = Place { table: "ledger_events", key: &key, record: Some(position) };
    let text = |text: Option<&str>| text.map(str::to_owned);
    let chain = row.entry.chain.as_str();
    place.compare("event_id", &row.event_id.as_str(), &event.event_id.as_str())?;
    let of_chain = if chain == "system" { None } else { chain.parse().ok() };
    place.compare("org_id", &row.org_id, &of_chain)?;
    place.compare("action_type", &row.action_type.as_str(), &event.action_type.as_str())?;
    place.compare("outcome", &row.outcome.as_str(), &event.outcome.as_str())?;
    place.compare("run_id", &row.run_id, &text(event.run_id.as_ref().map(Text::as_str)))?;
    place.compare("case_id", &row.case_id, &text(event.case_id.as_ref().map(Text::as_str)))?;
    place.compare("created_at", &row.created_at, &audit_writer::moment(event))
}

//! The translator behind the trait, which parses each event before it processes it.

use agent::{History, Output, PendingRequest, SecretFinder};
use bytes::Bytes;
use proto::socket::ServerMessage;

use crate::event::Event;
use crate::translate::Translator;

impl agent::Translator for Translator {
    fn set_secrets(&mut self, secrets: SecretFinder) {
        Self::set_secrets(self, secrets);
    }

    fn begin(&mut self, prompt: &str) {
        Self::begin(self, prompt);
    }

    fn observe(&mut self, events: &[Bytes], now: i64, out: &mut Output) {
        out.messages.reserve(events.len());
        for data in events {
            // The agent may send events that we do not know. They are ignored.
            if let Ok(event) = Event::parse(data) {
                self.observe_into(&event, now, out);
            }
        }
    }

    fn is_busy(&self) -> bool {
        Self::is_busy(self)
    }

    fn has_refused(&self) -> bool {
        Self::has_refused(self)
    }

    fn give_up(&mut self, reason: &str, now: i64) -> Output {
        Self::give_up(self, reason, now)
    }

    fn close(&mut self, now: i64) -> Output {
        Self::close(self, now)
    }

    fn cancel(&mut self, now: i64) -> Output {
        Self::cancel(self, now)
    }

    fn stream_lost(&mut self) {
        Self::stream_lost(self);
    }

    fn recall(&mut self, message: &ServerMessage) {
        Self::recall(self, message);
    }

    fn reconcile(&mut self, history: &History, now: i64) -> Output {
        Self::reconcile(self, history, now)
    }

    fn is_abandoned(&self, history: &History) -> bool {
        Self::is_abandoned(self, history)
    }

    fn pending(&mut self, requests: &[PendingRequest]) -> Output {
        Self::pending(self, requests)
    }
}

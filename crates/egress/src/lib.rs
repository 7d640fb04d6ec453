//! The only way out of a sandbox: a forward proxy for `CONNECT` and plain HTTP/1.1 that treats its clients as
//! hostile.
//!
//! It serves accepted byte streams, decides by [`Rules`] and by the addresses that names resolve to, and reports
//! every request to a [`Recorder`]. It knows nothing of sandboxes, sessions or databases.
//!
//! - The proxy does not follow redirects: the client sends a new request, which is checked like any other.
//! - Every request reads the current rules, also on a connection that is kept alive. When the rules change, open
//!   requests are checked again, and end if they are no longer allowed.
//! - `Upgrade` is removed from plain requests, so a WebSocket needs `wss:`, which uses `CONNECT`.

mod address;
mod body;
mod client;
mod connect;
mod dial;
mod error_response;
mod fields;
mod head;
mod host;
mod http;
mod limits;
mod meter;
mod proxy;
mod rate_limit;
mod record;
mod resolve;
mod response;
mod rules;

pub use address::{AddressClass, AddressPolicy, classify};
pub use fields::{Framing, HeadError};
pub use head::{Request, RequestHead};
pub use host::{Host, Target, TargetError};
pub use limits::Limits;
pub use proxy::{Config, Proxy};
pub use record::{
    Counters, Failure, Kind, Record, RecordItem, RecordQueue, Recorder, Records, Refusal, RequestEnd,
    Verdict, record_queue,
};
pub use resolve::{Lookup, Resolve, ScriptedResolver, SystemResolver};
pub use rules::{AllowReason, Denial, HostRule, Mode, RuleError, Rules};

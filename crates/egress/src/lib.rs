//! The only way out of a sandbox: a forward proxy for `CONNECT` and plain HTTP/1.1, whose client is hostile.
//!
//! It gets accepted byte streams, decides by [`Rules`] and by what names resolve to, and reports every request to
//! a [`Recorder`]. It knows nothing of sandboxes, sessions or databases.
//!
//! - A redirect is not followed here: the client asks again, and that request is checked like any other.
//! - Rules are read anew for each request, also on a connection that is kept alive. When they change, what is open is
//!   decided again, and ends if it is refused now.
//! - `Upgrade` is taken out of plain requests, so a WebSocket needs `wss:`, which goes through `CONNECT`.

mod address;
mod answer;
mod body;
mod client;
mod connect;
mod dial;
mod fields;
mod head;
mod host;
mod http;
mod limits;
mod meter;
mod pace;
mod proxy;
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
    Counters, Ended, Failure, Kind, News, Record, RecordQueue, Recorder, Records, Refusal, Verdict,
    record_queue,
};
pub use resolve::{Lookup, Resolve, ScriptedResolver, SystemResolver};
pub use rules::{Denial, Grounds, HostRule, Mode, RuleError, Rules};

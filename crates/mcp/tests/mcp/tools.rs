//! What every test needs to reach a server on this machine.

use std::time::Duration;

use mcp::{Auth, Limits, Listing, Reach};
use reqwest::Client;
use url::Url;

/// Reaches every address. The guard against private addresses is the gateway's.
pub(crate) struct Everywhere;

impl Reach for Everywhere {
    fn client(&self, _: &Url) -> Option<Client> {
        let builder = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        Some(builder.connect_timeout(Duration::from_secs(5)).build().unwrap())
    }
}

pub(crate) async fn list(url: &Url) -> Listing {
    mcp::list_tools(&Everywhere, url, &Auth::None, Limits::default()).await.unwrap()
}

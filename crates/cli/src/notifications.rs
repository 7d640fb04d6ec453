//! `notifications`: the webhook that an organization gets notifications at when something waits for a person.

use std::io::Read as _;

use proto::http::{Notifications, SetNotifications};
use serde_json::json;

use crate::args::{NotificationsArgs, NotificationsCommand};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;

/// The maximum length of an address.
const MAX_URL: u64 = 2000;

pub(crate) async fn run(context: &Context, args: NotificationsArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    match args.command {
        NotificationsCommand::Show => {
            let found = client.notifications().await?;
            let columns = ["TO", "SINCE", "PENDING", "FAILED", "LAST ERROR"];
            context.out.one(&json!(found), &columns, row(context, &found));
        }
        NotificationsCommand::Set { address } => {
            let url = if address == "-" { read_address()? } else { address };
            let set = client.set_notifications(&SetNotifications { url, secret: None }).await?;
            let secret = set.secret.as_ref().map(|secret| format!("; requests are signed with {secret}"));
            let sentence = format!("notifications go to {}{}", set.origin, secret.unwrap_or_default());
            context.out.result(&json!(set), &sentence);
        }
        NotificationsCommand::Rm => {
            client.remove_notifications().await?;
            context.out.result(&json!({ "removed": true }), "there are no notifications any more");
        }
        NotificationsCommand::Test => {
            let tested = client.test_notifications().await?;
            if let Some(error) = tested.error {
                return Err(Failure::failed(error));
            }
            context.out.result(&json!(tested), "the receiver accepted a test message");
        }
    }
    Ok(())
}

fn read_address() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(MAX_URL + 2).read_to_string(&mut text);
    read.map_err(|error| Failure::failed(format!("cannot read standard input: {error}")))?;
    Ok(text.trim_end().to_owned())
}

fn row(context: &Context, found: &Notifications) -> Vec<String> {
    vec![
        found.origin.clone(),
        context.ago(found.since),
        found.pending.to_string(),
        found.failed.to_string(),
        found.last_error.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

//! The first start: creates an owner, and prints a link on the terminal that logs in once.

use std::time::Duration;

use clock::{Clock, Rng};
use proto::{OrgId, UserId};
use secrecy::{ExposeSecret as _, SecretString};
use store::{FirstOwner, Member, NewLoginCode, NewOrg, Store, StoreError};
use url::Url;

use super::{Credential, CredentialKind};
use gate::first_start_event;

/// Long enough to find the terminal again, short enough that the link in an old scroll-back is
/// harmless.
pub const LOGIN_LINK_LIFETIME: Duration = Duration::from_mins(15);

/// Creates the first organization with its owner if the database is empty. `Some` if this call created
/// them.
pub async fn create_first_owner(
    store: &Store,
    clock: &Clock,
    rng: &Rng,
) -> Result<Option<Member>, StoreError> {
    let at = clock.now();
    let org = NewOrg { id: OrgId::from(rng.uuid(at)), name: "My organization".to_owned(), at };
    let store = store.recorded(first_start_event(clock, rng, org.id));
    let first = FirstOwner { org, user: UserId::from(rng.uuid(at)), email: "owner@localhost".to_owned() };
    if store.create_first_owner(first).await? { store.first_owner().await } else { Ok(None) }
}

/// Creates a link that logs `member` in, once, within [`LOGIN_LINK_LIFETIME`].
pub async fn login_link(
    store: &Store,
    member: &Member,
    public_url: &Url,
    clock: &Clock,
    rng: &Rng,
) -> Result<SecretString, StoreError> {
    let code = Credential::new(CredentialKind::Login, rng);
    let at = clock.now();
    store
        .create_login_code(NewLoginCode {
            code_hash: code.hash,
            org_id: member.org_id,
            user_id: member.user_id,
            at,
            expires_at: at + LOGIN_LINK_LIFETIME,
        })
        .await?;
    let base = public_url.as_str().trim_end_matches('/');
    Ok(format!("{base}/login#code={}", code.text.expose_secret()).into())
}

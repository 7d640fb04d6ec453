//! Credentials: how they are created, what they look like, and what a presented one claims.
//!
//! Nothing here decides what a caller may do. That is `edge::auth`, which asks the database whether the claim
//! still holds.

mod credential;
mod first;
mod jwt;

pub use credential::{Credential, CredentialKind, compat_sandbox_token, hash};
pub use first::{LOGIN_LINK_LIFETIME, create_first_owner, login_link};
pub use jwt::{Claim, Issuer, USER_TOKEN_LIFETIME};

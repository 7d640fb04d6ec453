//! Whose push it is. Every push leaves a sandbox with the sandbox's credential; one that a person asked for carries a
//! push grant besides. Everything in the sandbox can read the grant, so it is good for one update only: this ref of this
//! repository, from this commit, to this commit. Nothing else that carries it is the person's.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clock::Rng;
use proto::{RepoId, SessionId, UserId};

use super::{By, Operation};
use crate::runtime::{PushUpdate, PushWanted};

/// The grants that were issued and are not used yet, by their tokens.
#[derive(Default)]
pub struct PushGrants {
    open: Mutex<HashMap<String, Grant>>,
}

struct Grant {
    session: SessionId,
    repo: RepoId,
    user: UserId,
    /// The one update that the person asked for.
    update: PushUpdate,
}

/// A grant that counts until it is used, or this is dropped.
pub(crate) struct OpenGrant<'a> {
    grants: &'a PushGrants,
    pub(crate) token: String,
}

impl Drop for OpenGrant<'_> {
    fn drop(&mut self) {
        self.grants.open().remove(&self.token);
    }
}

impl PushGrants {
    pub(crate) fn issue(
        &self,
        rng: &Rng,
        (session, repo): (SessionId, RepoId),
        user: UserId,
        update: PushUpdate,
    ) -> OpenGrant<'_> {
        let token = hex::encode(rng.bytes::<32>());
        self.open().insert(token.clone(), Grant { session, repo, user, update });
        OpenGrant { grants: self, token }
    }

    /// Who pushes: the person, if this is exactly the update that their grant names and an ordinary one. Anything else is
    /// the agent's.
    pub(crate) fn redeem(
        &self,
        token: Option<&str>,
        (session, repo): (SessionId, RepoId),
        wanted: &PushWanted,
        operation: Operation,
    ) -> By {
        let ([update], Some(token), Operation::Push) = (wanted.updates.as_slice(), token, operation) else {
            return By::Agent;
        };
        let mut open = self.open();
        let granted =
            |grant: &&Grant| grant.session == session && grant.repo == repo && grant.update == *update;
        match open.get(token).filter(granted).map(|grant| grant.user) {
            Some(user) => {
                open.remove(token);
                By::Person(user)
            }
            None => By::Agent,
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Grant>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(name: &str, old: char, new: char) -> PushUpdate {
        let id = |digit: char| digit.to_string().repeat(40);
        PushUpdate { name: name.to_owned(), old: id(old), new: id(new) }
    }

    fn wanted(updates: &[PushUpdate]) -> PushWanted {
        PushWanted { updates: updates.to_vec(), ..PushWanted::default() }
    }

    #[test]
    fn a_grant_is_good_once_and_for_one_ref_from_one_commit_to_one_commit() {
        let (grants, rng) = (PushGrants::default(), Rng::seeded(1));
        let (session, user) =
            (SessionId::from(uuid::Uuid::from_u128(1)), UserId::from(uuid::Uuid::from_u128(2)));
        let main = "refs/heads/main";
        let right = update(main, '1', '2');
        let repo = RepoId::from(uuid::Uuid::from_u128(4));
        let here = (session, repo);
        let grant = grants.issue(&rng, here, user, right.clone());
        let token = Some(grant.token.as_str());
        let other = SessionId::from(uuid::Uuid::from_u128(3));
        let only = |update: &PushUpdate| wanted(std::slice::from_ref(update));
        let elsewhere = (session, RepoId::from(uuid::Uuid::from_u128(5)));
        for (token, place, wanted) in [
            (None, here, only(&right)),
            (Some("guessed"), here, only(&right)),
            (token, (other, repo), only(&right)),
            (token, elsewhere, only(&right)),
            (token, here, only(&update("refs/heads/x", '1', '2'))),
            (token, here, only(&update(main, '1', '0'))),
            (token, here, only(&update(main, '3', '2'))),
            (token, here, only(&update(main, '0', '2'))),
            (token, here, only(&update(main, '1', '3'))),
            (token, here, wanted(&[right.clone(), update("refs/heads/x", '1', '2')])),
            (token, here, PushWanted::default()),
        ] {
            assert_eq!(grants.redeem(token, place, &wanted, Operation::Push), By::Agent, "{wanted:?}");
        }
        for operation in [Operation::ForcePush, Operation::DeleteRef, Operation::PushTag] {
            assert_eq!(grants.redeem(token, here, &only(&right), operation), By::Agent);
        }
        let redeem = |token| grants.redeem(token, here, &only(&right), Operation::Push);
        assert_eq!(redeem(token), By::Person(user));
        assert_eq!(redeem(token), By::Agent, "used twice");
        let late = grants.issue(&rng, here, user, right.clone());
        let token = late.token.clone();
        drop(late);
        assert_eq!(redeem(Some(&token)), By::Agent, "used too late");
    }
}

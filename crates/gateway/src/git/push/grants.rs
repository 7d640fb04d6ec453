//! Push grants: which pushes are a person's. Every push leaves a sandbox with the sandbox's credential; one that a
//! person asked for carries a push grant as well. Every program in the sandbox can read the grant, so it covers one
//! update only: this ref of this repository, from this commit to this commit. Any other push that carries it is the
//! agent's.

use std::collections::HashMap;

use clock::Rng;
use parking_lot::{Mutex, MutexGuard};
use proto::{RepoId, SessionId, UserId};
use tokio::sync::oneshot;

use super::super::call::Initiator;
use super::Operation;
use super::outcome::PushResult;
use super::request::{PushRequest, RefUpdate};

/// The HTTP header that carries a push grant's token.
pub(super) const GRANT_HEADER: &str = "x-proliferate-push";

/// The grants that were issued and not used yet, by token.
#[derive(Default)]
pub(crate) struct PushGrants {
    open: Mutex<HashMap<String, Grant>>,
}

struct Grant {
    session: SessionId,
    repo: RepoId,
    user: UserId,
    /// The one update that the person asked for.
    update: RefUpdate,
    result: oneshot::Sender<PushResult>,
}

/// A grant that is valid until it is redeemed or this is dropped.
pub(super) struct OpenGrant<'a> {
    grants: &'a PushGrants,
    pub(super) token: String,
    result: oneshot::Receiver<PushResult>,
}

impl OpenGrant<'_> {
    /// The result of the push that redeemed the grant, if there was one and it has ended.
    pub(super) fn result(&mut self) -> Option<PushResult> {
        self.result.try_recv().ok()
    }
}

impl Drop for OpenGrant<'_> {
    fn drop(&mut self) {
        self.grants.open().remove(&self.token);
    }
}

/// The party that starts a push.
pub(super) enum Pusher {
    Agent,
    /// A person, who waits for the result.
    Person(UserId, oneshot::Sender<PushResult>),
}

impl Pusher {
    pub(super) fn initiator(&self) -> Initiator {
        match self {
            Self::Agent => Initiator::Agent,
            Self::Person(user, _) => Initiator::Person(*user),
        }
    }

    /// Sends the result to the person who waits, if any.
    pub(super) fn report(self, result: PushResult) {
        if let Self::Person(_, sender) = self {
            // The person's request may have timed out; the run has the outcome.
            let _ = sender.send(result);
        }
    }
}

impl PushGrants {
    pub(super) fn issue(
        &self,
        rng: &Rng,
        (session, repo): (SessionId, RepoId),
        user: UserId,
        update: RefUpdate,
    ) -> OpenGrant<'_> {
        let token = hex::encode(rng.bytes::<32>());
        let (sender, result) = oneshot::channel();
        let grant = Grant { session, repo, user, update, result: sender };
        self.open().insert(token.clone(), grant);
        OpenGrant { grants: self, token, result }
    }

    /// Decides who starts a push: the person, if it is exactly the update that the grant names and an ordinary one;
    /// otherwise the agent.
    pub(super) fn redeem(
        &self,
        token: Option<&str>,
        (session, repo): (SessionId, RepoId),
        request: &PushRequest,
        operation: Operation,
    ) -> Pusher {
        let ([update], Some(token), Operation::Push) = (request.updates.as_slice(), token, operation) else {
            return Pusher::Agent;
        };
        let mut open = self.open();
        let covers =
            |grant: &Grant| grant.session == session && grant.repo == repo && grant.update == *update;
        if !open.get(token).is_some_and(covers) {
            return Pusher::Agent;
        }
        open.remove(token).map_or(Pusher::Agent, |grant| Pusher::Person(grant.user, grant.result))
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Grant>> {
        self.open.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::PushOutcome;
    use super::*;

    fn update(name: &str, old: char, new: char) -> RefUpdate {
        let id = |digit: char| digit.to_string().repeat(40);
        RefUpdate { name: name.to_owned(), old: id(old), new: id(new) }
    }

    fn request(updates: &[RefUpdate]) -> PushRequest {
        PushRequest { updates: updates.to_vec(), ..PushRequest::default() }
    }

    #[test]
    fn a_grant_is_valid_once_and_for_one_ref_from_one_commit_to_one_commit() {
        let (grants, rng) = (PushGrants::default(), Rng::seeded(1));
        let (session, user) =
            (SessionId::from(uuid::Uuid::from_u128(1)), UserId::from(uuid::Uuid::from_u128(2)));
        let main = "refs/heads/main";
        let right = update(main, '1', '2');
        let repo = RepoId::from(uuid::Uuid::from_u128(4));
        let here = (session, repo);
        let mut grant = grants.issue(&rng, here, user, right.clone());
        let token = grant.token.clone();
        let token = Some(token.as_str());
        let other = SessionId::from(uuid::Uuid::from_u128(3));
        let only = |update: &RefUpdate| request(std::slice::from_ref(update));
        let elsewhere = (session, RepoId::from(uuid::Uuid::from_u128(5)));
        for (token, place, request) in [
            (None, here, only(&right)),
            (Some("guessed"), here, only(&right)),
            (token, (other, repo), only(&right)),
            (token, elsewhere, only(&right)),
            (token, here, only(&update("refs/heads/x", '1', '2'))),
            (token, here, only(&update(main, '1', '0'))),
            (token, here, only(&update(main, '3', '2'))),
            (token, here, only(&update(main, '0', '2'))),
            (token, here, only(&update(main, '1', '3'))),
            (token, here, request(&[right.clone(), update("refs/heads/x", '1', '2')])),
            (token, here, PushRequest::default()),
        ] {
            let redeemed = grants.redeem(token, place, &request, Operation::Push);
            assert_eq!(redeemed.initiator(), Initiator::Agent, "{request:?}");
        }
        for operation in [Operation::ForcePush, Operation::DeleteRef, Operation::PushTag] {
            let redeemed = grants.redeem(token, here, &only(&right), operation);
            assert_eq!(redeemed.initiator(), Initiator::Agent);
        }
        let redeem = |token| grants.redeem(token, here, &only(&right), Operation::Push);
        let redeemed = redeem(token);
        assert_eq!(redeemed.initiator(), Initiator::Person(user));
        assert_eq!(redeem(token).initiator(), Initiator::Agent, "used twice");
        assert!(grant.result().is_none(), "before the push has ended");
        let result = || PushResult { outcome: PushOutcome::Updated, message: "done".to_owned() };
        redeemed.report(result());
        assert_eq!(grant.result(), Some(result()));
        let late = grants.issue(&rng, here, user, right.clone());
        let token = late.token.clone();
        drop(late);
        assert_eq!(redeem(Some(&token)).initiator(), Initiator::Agent, "used too late");
        assert!(grants.open().is_empty());
    }
}

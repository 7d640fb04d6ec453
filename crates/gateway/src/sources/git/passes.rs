//! Whose push it is. Every push comes out of a sandbox with the sandbox's credential; one that a person asked for
//! carries a word besides, which is good for that push alone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clock::Rng;
use proto::{SessionId, UserId};

use super::By;
use crate::runtime::PushWanted;

/// The words that were given out and not used yet.
#[derive(Default)]
pub struct Passes {
    given: Mutex<HashMap<String, Pass>>,
}

struct Pass {
    session: SessionId,
    user: UserId,
    /// The refs that the person can have meant.
    refs: Vec<String>,
}

/// A word that counts until it is used, or this is dropped.
pub(crate) struct Given<'a> {
    passes: &'a Passes,
    pub(crate) word: String,
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        self.passes.given().remove(&self.word);
    }
}

impl Passes {
    pub(crate) fn give(&self, rng: &Rng, session: SessionId, user: UserId, refs: Vec<String>) -> Given<'_> {
        let word = hex::encode(rng.bytes::<32>());
        self.given().insert(word.clone(), Pass { session, user, refs });
        Given { passes: self, word }
    }

    /// Who pushes. The word is readable for everything in the sandbox: it makes a push the person's only if it sets
    /// one ref that the person can have meant. Anything else is the agent's.
    pub(crate) fn by(&self, word: Option<&str>, session: SessionId, wanted: &PushWanted) -> By {
        let [update] = wanted.updates.as_slice() else { return By::Agent };
        let Some(word) = word else { return By::Agent };
        let mut given = self.given();
        let fits =
            |pass: &&Pass| pass.session == session && pass.refs.contains(&update.name) && !update.deletes();
        match given.get(word).filter(fits).map(|pass| pass.user) {
            Some(user) => {
                given.remove(word);
                By::Person(user)
            }
            None => By::Agent,
        }
    }

    fn given(&self) -> MutexGuard<'_, HashMap<String, Pass>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::PushUpdate;

    fn wanted(name: &str, new: char) -> PushWanted {
        let id = |digit: char| digit.to_string().repeat(40);
        let update = PushUpdate { name: name.to_owned(), old: id('1'), new: id(new) };
        PushWanted { updates: vec![update], ..PushWanted::default() }
    }

    #[test]
    fn a_push_is_a_persons_once_and_only_for_what_they_can_have_meant() {
        let (passes, rng) = (Passes::default(), Rng::seeded(1));
        let (session, user) =
            (SessionId::from(uuid::Uuid::from_u128(1)), UserId::from(uuid::Uuid::from_u128(2)));
        let main = "refs/heads/main";
        let given = passes.give(&rng, session, user, vec![main.to_owned()]);
        let word = Some(given.word.as_str());
        let other = SessionId::from(uuid::Uuid::from_u128(3));
        let mut two = wanted(main, '2');
        two.updates.extend(wanted("refs/heads/x", '2').updates);
        for (word, session, wanted) in [
            (None, session, wanted(main, '2')),
            (Some("guessed"), session, wanted(main, '2')),
            (word, other, wanted(main, '2')),
            (word, session, wanted("refs/heads/x", '2')),
            (word, session, wanted(main, '0')),
            (word, session, two),
            (word, session, PushWanted::default()),
        ] {
            assert_eq!(passes.by(word, session, &wanted), By::Agent, "{wanted:?}");
        }
        assert_eq!(passes.by(word, session, &wanted(main, '2')), By::Person(user));
        assert_eq!(passes.by(word, session, &wanted(main, '2')), By::Agent, "used twice");
        let late = passes.give(&rng, session, user, vec![main.to_owned()]);
        let word = late.word.clone();
        drop(late);
        assert_eq!(passes.by(Some(&word), session, &wanted(main, '2')), By::Agent, "used too late");
    }
}

//! Resolves what people type to an id: a complete id, a prefix of an id, a name or an e-mail address. The text must
//! match exactly one candidate; if it matches several, the error lists them.

use std::collections::BTreeMap;
use std::fmt::Display;

use proto::{ApiKeyId, AutomationId, ConfigurationId, OrgId, RepoId, Role, SessionId, UserId};
use store::{Member, OverrideGrant, SessionCursor, SessionFilter, Store};
use uuid::Uuid;

use crate::args::WhichMember;
use crate::context::{Context, quote_for_shell};
use crate::failure::Failure;

/// The maximum number of sessions to search, and the page size.
const MOST_SESSIONS: usize = 5_000;
const ROWS_PER_REQUEST: u32 = 500;
/// The maximum number of candidates listed when a name is ambiguous.
const MAX_LISTED_CANDIDATES: usize = 10;
/// The minimum length of an id prefix.
const PREFIX: usize = 4;

/// A candidate for a lookup: its id and its other names.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<T> {
    pub(crate) id: T,
    pub(crate) names: Vec<String>,
}

impl<T> Candidate<T> {
    pub(crate) fn new(id: T, names: impl IntoIterator<Item = String>) -> Self {
        Self { id, names: names.into_iter().filter(|name| !name.is_empty()).collect() }
    }
}

impl<T: Display> Candidate<T> {
    fn has_id(&self, wanted: &str) -> bool {
        self.id.to_string().eq_ignore_ascii_case(wanted)
    }

    fn has_name(&self, wanted: &str) -> bool {
        self.names.iter().any(|name| name.eq_ignore_ascii_case(wanted))
    }

    fn begins_with(&self, wanted: &str) -> bool {
        wanted.len() >= PREFIX && self.id.to_string().starts_with(&wanted.to_ascii_lowercase())
    }

    fn matches(&self, wanted: &str) -> bool {
        self.has_id(wanted) || self.has_name(wanted) || self.begins_with(wanted)
    }
}

/// A kind of resource, and the command that lists all of its instances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind(pub(crate) &'static str, pub(crate) &'static str);

const ORG: Kind = Kind("organization", "proliferate orgs ls");
pub(crate) const USER: Kind = Kind("member", "proliferate users ls");
const KEY: Kind = Kind("key", "proliferate keys ls");
const GRANT: Kind = Kind("grant", "proliferate policy grants ls --all");
pub(crate) const INTEGRATION: Kind = Kind("integration", "proliferate integrations ls");
pub(crate) const REPO: Kind = Kind("repository", "proliferate repos ls");
pub(crate) const CONFIGURATION: Kind = Kind("configuration", "proliferate configurations ls");
pub(crate) const AUTOMATION: Kind = Kind("automation", "proliferate automations ls");
pub(crate) const RUN: Kind = Kind("run", "proliferate runs ls");
pub(crate) const SESSION: Kind = Kind("session", "proliferate session ls");

/// The one candidate that `wanted` matches: by id, otherwise by name, otherwise by id prefix.
pub(crate) fn pick<T: Copy + Display>(
    Kind(what, list): Kind,
    wanted: &str,
    all: &[Candidate<T>],
) -> Result<T, Failure> {
    let by_id = all.iter().filter(|one| one.has_id(wanted));
    let by_name = all.iter().filter(|one| one.has_name(wanted));
    let by_prefix = all.iter().filter(|one| one.begins_with(wanted));
    let found: [Vec<&Candidate<T>>; 3] = [by_id.collect(), by_name.collect(), by_prefix.collect()];
    match found.iter().find(|found| !found.is_empty()).map(Vec::as_slice) {
        Some([one]) => Ok(one.id),
        Some(many) => {
            Err(Failure::usage(format!("{wanted:?} can be any of these:{}", list_candidates(many))))
        }
        None => {
            let named = all.iter().any(|one| !one.names.is_empty());
            let name = if named { ", or its name" } else { "" };
            Err(Failure::failed(format!(
                "there is no {what} {wanted:?}: `{list}` shows them (its id, the first {PREFIX} characters of it or more{name})"
            )))
        }
    }
}

/// Refuses a new name that another one has already: names are accepted wherever an id is.
pub(crate) fn refuse_taken<T: Display + PartialEq>(
    Kind(what, _): Kind,
    name: &str,
    renamed: Option<&T>,
    all: &[Candidate<T>],
) -> Result<(), Failure> {
    let others = all.iter().filter(|one| Some(&one.id) != renamed);
    let taken: Vec<_> = others.filter(|one| one.has_name(name.trim()) || one.has_id(name.trim())).collect();
    if taken.is_empty() {
        return Ok(());
    }
    let ids = list_candidates(&taken);
    Err(Failure::usage(format!("the name is taken by this {what}, so choose another:{ids}")))
}

fn list_candidates<T: Display>(many: &[&Candidate<T>]) -> String {
    let line = |one: &&Candidate<T>| format!("\n  {}  {}", one.id, one.names.join(", "));
    let more = many.len().saturating_sub(MAX_LISTED_CANDIDATES);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    many.iter().take(MAX_LISTED_CANDIDATES).map(line).collect::<String>() + &more
}

pub(crate) async fn orgs(store: &Store) -> Result<Vec<Candidate<OrgId>>, Failure> {
    Ok(store.orgs().await?.into_iter().map(|org| Candidate::new(org.id, [org.name])).collect())
}

/// The members of one organization, or of all.
pub(crate) async fn users(store: &Store, org: Option<OrgId>) -> Result<Vec<Candidate<UserId>>, Failure> {
    let orgs = match org {
        Some(org) => vec![org],
        None => store.orgs().await?.into_iter().map(|org| org.id).collect(),
    };
    let mut found = BTreeMap::new();
    for org in orgs {
        for member in store.members(org).await? {
            found.insert(member.user_id, Candidate::new(member.user_id, [member.email, member.name]));
        }
    }
    Ok(found.into_values().collect())
}

pub(crate) async fn automations(store: &Store, org: OrgId) -> Result<Vec<Candidate<AutomationId>>, Failure> {
    let found = store.automations(org).await?;
    Ok(found.into_iter().map(|found| Candidate::new(found.id, [found.settings.name])).collect())
}

pub(crate) async fn keys(store: &Store, org: OrgId) -> Result<Vec<Candidate<ApiKeyId>>, Failure> {
    Ok(store.keys(org).await?.into_iter().map(|key| Candidate::new(key.id, [key.name])).collect())
}

pub(crate) async fn grants(store: &Store, all: Vec<OverrideGrant>) -> Result<Vec<Candidate<Uuid>>, Failure> {
    let emails = emails(store).await?;
    let names = |grant: &OverrideGrant| [grant.ticket.clone(), emails.name(&grant.user_id.to_string())];
    Ok(all.iter().map(|grant| Candidate::new(grant.id, names(grant))).collect())
}

/// The e-mail addresses of all members by user id, for output: people do not know each other's ids.
pub(crate) struct Emails(BTreeMap<String, String>);

pub(crate) async fn emails(store: &Store) -> Result<Emails, Failure> {
    let mut found = BTreeMap::new();
    for org in store.orgs().await? {
        for member in store.members(org.id).await? {
            found.insert(member.user_id.to_string(), member.email);
        }
    }
    Ok(Emails(found))
}

impl Emails {
    /// The e-mail address of a member; for anybody else, the id itself.
    pub(crate) fn name(&self, id: &str) -> String {
        self.0.get(id).map_or(id, String::as_str).to_owned()
    }
}

pub(crate) async fn repos(store: &Store, org: OrgId) -> Result<Vec<Candidate<RepoId>>, Failure> {
    let repos = store.repos(org).await?.into_iter();
    Ok(repos.map(|repo| Candidate::new(repo.id, [repo.name].into_iter().chain(repo.url))).collect())
}

pub(crate) async fn configurations(
    store: &Store,
    org: OrgId,
) -> Result<Vec<Candidate<ConfigurationId>>, Failure> {
    let all = store.configurations(org).await?.into_iter();
    Ok(all.map(|one| Candidate::new(one.id, [one.name])).collect())
}

pub(crate) async fn sessions(store: &Store) -> Result<Vec<Candidate<SessionId>>, Failure> {
    let mut found = Vec::new();
    for org in store.orgs().await? {
        let mut after = None;
        while found.len() < MOST_SESSIONS {
            let page = store.sessions(org.id, SessionFilter::default(), ROWS_PER_REQUEST, after).await?;
            let Some(last) = page.last() else { break };
            after = Some(SessionCursor::after(last));
            found.extend(page.into_iter().map(|session| Candidate::new(session.id, session.title)));
        }
    }
    Ok(found)
}

impl Context {
    /// The organization with this name or id, or the first organization if none is given.
    pub(crate) async fn org(&self, store: &Store, named: Option<&str>) -> Result<OrgId, Failure> {
        let all = orgs(store).await?;
        match named {
            Some(wanted) => pick(ORG, wanted, &all),
            None => all.first().map(|org| org.id).ok_or_else(|| {
                let way = "run `proliferate up` once, or `proliferate orgs create --name NAME`";
                Failure::failed(format!("there is no organization yet: {way}"))
            }),
        }
    }

    /// The member of an organization with this name or id.
    pub(crate) async fn user(&self, store: &Store, org: OrgId, named: &str) -> Result<UserId, Failure> {
        pick(USER, named, &users(store, Some(org)).await?)
    }

    /// The requested member, or the first owner if none is requested.
    pub(crate) async fn member(&self, store: &Store, which: &WhichMember) -> Result<Member, Failure> {
        let org = match which.org.as_deref() {
            Some(org) => Some(self.org(store, Some(org)).await?),
            None => None,
        };
        let user = match which.user.as_deref() {
            Some(user) => Some(pick(USER, user, &users(store, org).await?)?),
            None => None,
        };
        let found = match (user, org) {
            (None, None) => store.first_owner().await?,
            (None, Some(org)) => {
                store.members(org).await?.into_iter().find(|member| member.role == Role::Owner)
            }
            (Some(user), Some(org)) => store.member(org, user).await?,
            (Some(user), None) => store.memberships(user).await?.into_iter().next(),
        };
        found.ok_or_else(|| {
            let (whose, option) = match &which.org {
                Some(org) => {
                    (format!("the organization {org} has"), format!(" --org {}", quote_for_shell(org)))
                }
                None => ("there is".to_owned(), String::new()),
            };
            let first = if option.is_empty() { "`proliferate up` once, or " } else { "" };
            Failure::failed(format!(
                "{whose} no owner yet: run {first}`proliferate users create{option} --role owner --email E`"
            ))
        })
    }

    pub(crate) async fn key(&self, store: &Store, org: OrgId, named: &str) -> Result<ApiKeyId, Failure> {
        pick(KEY, named, &keys(store, org).await?)
    }

    /// The grant with this name. If several grants share a ticket or member, those that can still be revoked take
    /// precedence.
    pub(crate) async fn grant(&self, store: &Store, named: &str) -> Result<Uuid, Failure> {
        let all = store.override_grants().await?;
        let now = self.clock.now();
        let (active, over): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|grant| grant.revoked_at.is_none() && grant.valid_until > now);
        let (active, over) = (grants(store, active).await?, grants(store, over).await?);
        if active.iter().any(|grant| grant.matches(named)) {
            return pick(GRANT, named, &active);
        }
        pick(GRANT, named, &over)
    }

    pub(crate) async fn repo(&self, store: &Store, org: OrgId, named: &str) -> Result<RepoId, Failure> {
        pick(REPO, named, &repos(store, org).await?)
    }

    pub(crate) async fn configuration(
        &self,
        store: &Store,
        org: OrgId,
        named: &str,
    ) -> Result<ConfigurationId, Failure> {
        pick(CONFIGURATION, named, &configurations(store, org).await?)
    }

    /// The id of the event or run that starts with this text. If there is none, returns the text unchanged.
    pub(crate) async fn ledger_id(&self, store: &Store, named: &str) -> Result<String, Failure> {
        if named.chars().count() < PREFIX || !store.ledger_entries_about(named, 1).await?.is_empty() {
            return Ok(named.to_owned());
        }
        match store.ledger_ids(named, 10).await?.as_slice() {
            [] => Ok(named.to_owned()),
            [one] => Ok(one.clone()),
            many => Err(Failure::usage(format!("{named:?} can be any of these:\n  {}", many.join("\n  ")))),
        }
    }

    /// The id of a session in this database. A complete id is returned without a lookup.
    pub(crate) async fn session(&self, store: &Store, named: &str) -> Result<SessionId, Failure> {
        match named.parse() {
            Ok(id) => Ok(id),
            Err(_) => pick(SESSION, named, &sessions(store).await?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(begin: &str, name: &str) -> Candidate<SessionId> {
        Candidate::new(format!("{begin}-0000-4000-8000-000000000000").parse().unwrap(), [name.to_owned()])
    }

    fn pick_session(wanted: &str, all: &[Candidate<SessionId>]) -> Result<String, String> {
        let found = pick(Kind("thing", "things ls"), wanted, all);
        found.map(|id| id.to_string()[..8].to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_that_another_one_has_is_refused_with_its_id() {
        let all = [one("12345678", "Nightly"), one("1234ffff", "weekly")];
        let kind = Kind("thing", "things ls");
        for taken in ["Nightly", "nightly ", "12345678-0000-4000-8000-000000000000"] {
            let refused = refuse_taken(kind, taken, None, &all).unwrap_err().to_string();
            assert!(refused.contains("12345678-0000"), "{taken}: {refused}");
        }
        assert!(refuse_taken(kind, "daily", None, &all).is_ok());
        assert!(refuse_taken(kind, "NIGHTLY", Some(&all[0].id), &all).is_ok(), "its own name");
        assert!(refuse_taken(kind, "weekly", Some(&all[0].id), &all).is_err());
    }

    #[test]
    fn an_id_a_name_and_the_beginning_of_an_id_are_found() {
        let all = [one("12345678", "ada@example.com"), one("1234ffff", "bob"), one("00000007", "Bob")];
        for (wanted, found) in [
            ("12345678-0000-4000-8000-000000000000", "12345678"),
            ("ADA@example.com", "12345678"),
            ("1234F", "1234ffff"),
        ] {
            assert_eq!(pick_session(wanted, &all).as_deref(), Ok(found), "{wanted}");
        }
        let many = pick_session("1234", &all).unwrap_err();
        assert!(many.contains("12345678-") && many.contains("1234ffff-") && many.contains("ada@"), "{many}");
        assert!(pick_session("bob", &all).unwrap_err().contains("00000007-"));
        for none in ["eve", "123", ""] {
            assert!(pick_session(none, &all).unwrap_err().contains("`things ls`"), "{none}");
        }
    }
}

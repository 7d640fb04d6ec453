//! Repositories and configurations: made by people, found or created by the gateway, and private to an organization.

use proto::{ConfigurationKind, ConfigurationStatus, OrgId, RepoId, RepoSource, Role};
use sqlx::types::JsonValue;
use store::{
    ConfigurationChange, FoundConfiguration, NewConfiguration, NewRepo, NewSession, Placement, RemoteSource,
    StoreError, WantedCli, WantedManaged,
};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, member, new_session, org, together};

on_both! {
    a_repository_exists_until_it_is_deleted
    the_default_branch_is_the_chosen_or_the_forges_one
    a_configuration_has_repositories_at_their_places
    a_change_affects_only_the_fields_it_names
    another_organization_finds_and_changes_nothing
    a_deleted_configuration_leaves_its_sessions
    concurrent_callers_get_the_same_managed_configuration
    each_set_of_repositories_has_its_own_managed_configuration
    a_directory_of_a_user_has_one_configuration
}

fn new_repo(org_id: OrgId, number: u8) -> NewRepo {
    NewRepo {
        id: id(number),
        org_id,
        name: format!("acme/app{number}"),
        from: RemoteSource::Git,
        url: format!("https://example.com/{number}"),
        default_branch: None,
        is_private: false,
        added_by: None,
        at: at(number.into()),
    }
}

async fn repo(b: &Backend, org: OrgId, number: u8) -> RepoId {
    b.store.create_repo(new_repo(org, number)).await.unwrap();
    id(number)
}

fn place(repo_id: RepoId, path: &str) -> Placement {
    Placement { repo_id, workspace_path: path.to_owned() }
}

fn new_configuration(org_id: OrgId, number: u8, repos: Vec<Placement>) -> NewConfiguration {
    NewConfiguration {
        id: id(number),
        org_id,
        name: "app".to_owned(),
        sandbox_provider: "local".to_owned(),
        repos,
        created_by: None,
        at: at(number.into()),
    }
}

async fn a_repository_exists_until_it_is_deleted(b: &Backend) {
    let one = org(&b.store, 1).await;
    let first = repo(b, one, 20).await;
    b.store.create_repo(NewRepo { from: RemoteSource::Github, ..new_repo(one, 21) }).await.unwrap();
    let kept = b.store.repo(one, first).await.unwrap().unwrap();
    assert_eq!((kept.id, kept.org_id, kept.source), (first, one, RepoSource::Git));
    assert_eq!((kept.url.as_deref(), kept.name.as_str()), (Some("https://example.com/20"), "acme/app20"));
    assert_eq!((kept.default_branch.as_str(), kept.branch_given), ("main", false));
    let all = b.store.repos(one).await.unwrap();
    assert_eq!(all.iter().map(|repo| repo.source).collect::<Vec<_>>(), [RepoSource::Git, RepoSource::Github]);
    let again = NewRepo { id: id(22), ..new_repo(one, 20) };
    let twice = b.store.create_repo(again).await;
    assert!(matches!(twice, Err(StoreError::Taken("this repository"))), "{twice:?}");
    b.store.delete_repo(one, first).await.unwrap();
    assert!(b.store.repo(one, first).await.unwrap().is_none());
    let gone = b.store.delete_repo(one, first).await;
    assert!(matches!(gone, Err(StoreError::Missing("this repository"))), "{gone:?}");
}

async fn the_default_branch_is_the_chosen_or_the_forges_one(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let open = repo(b, one, 20).await;
    let given = NewRepo { default_branch: Some("develop".to_owned()), ..new_repo(one, 21) };
    b.store.create_repo(given).await.unwrap();
    for found in ["trunk", "master"] {
        b.store.found_branch(one, open, found).await.unwrap();
        b.store.found_branch(one, id(21), found).await.unwrap();
    }
    b.store.found_branch(two, open, "foreign").await.unwrap();
    let all = b.store.repos(one).await.unwrap();
    let known: Vec<_> = all.iter().map(|repo| (repo.default_branch.as_str(), repo.branch_given)).collect();
    assert_eq!(known, [("master", false), ("develop", true)]);
}

async fn a_configuration_has_repositories_at_their_places(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (app, lib) = (repo(b, one, 20).await, repo(b, one, 21).await);
    let places = vec![place(app, "app"), place(lib, "lib")];
    b.store.create_configuration(new_configuration(one, 30, places)).await.unwrap();
    let kept = b.store.configuration(one, id(30)).await.unwrap().unwrap();
    assert_eq!((kept.kind, kept.status), (ConfigurationKind::Manual, ConfigurationStatus::Pending));
    let repos = b.store.configuration_repos(one, id(30)).await.unwrap();
    let paths: Vec<_> = repos.iter().map(|placed| (placed.repo.id, placed.workspace_path.as_str())).collect();
    assert_eq!(paths, [(app, "app"), (lib, "lib")]);

    b.store
        .create_session(NewSession { configuration_id: Some(id(30)), ..new_session(one, 40) })
        .await
        .unwrap();
    b.store.create_session(new_session(one, 41)).await.unwrap();
    assert_eq!(b.store.session_repos(id(40)).await.unwrap(), repos);
    assert!(b.store.session_repos(id(41)).await.unwrap().is_empty(), "a scratch session");
    let crowded = vec![place(app, "."), place(lib, ".")];
    let refused = b.store.create_configuration(new_configuration(one, 31, crowded)).await;
    assert!(matches!(refused, Err(StoreError::Taken(_))), "{refused:?}");
    assert_eq!(b.store.configurations(one).await.unwrap(), [kept]);
}

async fn a_change_affects_only_the_fields_it_names(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (app, lib) = (repo(b, one, 20).await, repo(b, one, 21).await);
    b.store.create_configuration(new_configuration(one, 30, vec![place(app, ".")])).await.unwrap();
    let change = ConfigurationChange {
        name: Some("better".to_owned()),
        status: Some(ConfigurationStatus::Failed),
        error: Some("no disk".to_owned()),
        snapshot_id: Some("snap".to_owned()),
        service_commands: Some(JsonValue::from("make run")),
        by: Some("ada".to_owned()),
        ..ConfigurationChange::default()
    };
    b.store.update_configuration(one, id(30), change, at(100)).await.unwrap();
    let now = b.store.configuration(one, id(30)).await.unwrap().unwrap();
    assert_eq!((now.name.as_str(), now.status), ("better", ConfigurationStatus::Failed));
    assert_eq!((now.error.as_deref(), now.snapshot_id.as_deref()), (Some("no disk"), Some("snap")));
    assert_eq!((now.service_commands, now.env_files), (Some(JsonValue::from("make run")), None));
    assert_eq!((now.created_at, now.updated_at), (at(30), at(100)));
    let by =
        "SELECT service_commands_updated_by FROM configurations WHERE service_commands_updated_at IS NOT NULL
        AND env_files_updated_at IS NULL";
    assert_eq!(b.raw().await.texts(by).await, ["ada"]);
    assert_eq!(b.store.configuration_repos(one, id(30)).await.unwrap().len(), 1, "not named, not changed");

    let ready = ConfigurationChange {
        status: Some(ConfigurationStatus::Ready),
        repos: Some(vec![place(lib, ".")]),
        ..ConfigurationChange::default()
    };
    b.store.update_configuration(one, id(30), ready, at(101)).await.unwrap();
    let now = b.store.configuration(one, id(30)).await.unwrap().unwrap();
    assert_eq!((now.name.as_str(), now.status, now.error), ("better", ConfigurationStatus::Ready, None));
    assert_eq!(b.store.configuration_repos(one, id(30)).await.unwrap()[0].repo.id, lib);
}

async fn another_organization_finds_and_changes_nothing(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let app = repo(b, one, 20).await;
    b.store.create_configuration(new_configuration(one, 30, vec![place(app, ".")])).await.unwrap();
    let before = b.store.configuration(one, id(30)).await.unwrap();
    assert!(b.store.repos(two).await.unwrap().is_empty() && b.store.repo(two, app).await.unwrap().is_none());
    assert!(b.store.configurations(two).await.unwrap().is_empty());
    assert!(b.store.configuration(two, id(30)).await.unwrap().is_none());
    assert!(b.store.configuration_repos(two, id(30)).await.unwrap().is_empty());
    let mine = ConfigurationChange { name: Some("mine".to_owned()), ..ConfigurationChange::default() };
    for refused in [
        b.store.delete_repo(two, app).await,
        b.store.delete_configuration(two, id(30)).await,
        b.store.update_configuration(two, id(30), mine, at(1)).await,
        b.store.create_configuration(new_configuration(two, 31, vec![place(app, ".")])).await,
    ] {
        assert!(matches!(refused, Err(StoreError::Missing(_))), "{refused:?}");
    }
    assert_eq!(b.store.configuration(one, id(30)).await.unwrap(), before);
    repo(b, two, 22).await;
    let foreign = b.store.find_or_create_managed(managed(two, 32, Some(vec![app]))).await;
    assert!(matches!(foreign, Err(StoreError::Missing("this repository"))), "{foreign:?}");
}

async fn a_deleted_configuration_leaves_its_sessions(b: &Backend) {
    let one = org(&b.store, 1).await;
    b.store.create_configuration(new_configuration(one, 30, Vec::new())).await.unwrap();
    b.store
        .create_session(NewSession { configuration_id: Some(id(30)), ..new_session(one, 40) })
        .await
        .unwrap();
    b.store.delete_configuration(one, id(30)).await.unwrap();
    assert_eq!(b.store.session(one, id(40)).await.unwrap().unwrap().configuration_id, None);
    let gone = b.store.delete_configuration(one, id(30)).await;
    assert!(matches!(gone, Err(StoreError::Missing("this configuration"))), "{gone:?}");
}

fn managed(org_id: OrgId, number: u8, repo_ids: Option<Vec<RepoId>>) -> WantedManaged {
    let (sandbox_provider, at) = ("local".to_owned(), at(number.into()));
    WantedManaged { org_id, repo_ids, id: id(number), sandbox_provider, created_by: None, at }
}

async fn concurrent_callers_get_the_same_managed_configuration(b: &Backend) {
    let one = org(&b.store, 1).await;
    assert!(
        b.store.find_or_create_managed(managed(one, 60, None)).await.unwrap().is_none(),
        "no repositories"
    );
    let (app, lib) = (repo(b, one, 20).await, repo(b, one, 21).await);
    let found = together(8, |caller| {
        let store = b.store.clone();
        let wanted = managed(one, 60 + u8::try_from(caller).unwrap(), None);
        async move { store.find_or_create_managed(wanted).await.unwrap().unwrap() }
    })
    .await;
    assert_eq!(found.iter().filter(|found| found.is_new).count(), 1);
    let made = &found.iter().find(|found| found.is_new).unwrap().configuration;
    assert!(found.iter().all(|found| found.configuration == *made));
    assert_eq!((made.kind, made.status), (ConfigurationKind::Managed, ConfigurationStatus::Building));
    assert_eq!(made.name, "Managed Configuration");
    let repos = b.store.configuration_repos(one, made.id).await.unwrap();
    let paths: Vec<_> = repos.iter().map(|placed| (placed.repo.id, placed.workspace_path.as_str())).collect();
    assert_eq!(paths, [(app, "app20"), (lib, "app21")]);
}

async fn each_set_of_repositories_has_its_own_managed_configuration(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (app, lib) = (repo(b, one, 20).await, repo(b, one, 21).await);
    let find = async |number, repos: Option<Vec<RepoId>>| {
        let FoundConfiguration { configuration, is_new } =
            b.store.find_or_create_managed(managed(one, number, repos)).await.unwrap().unwrap();
        (configuration.id, is_new)
    };
    assert_eq!(find(60, Some(vec![app])).await, (id(60), true));
    assert_eq!(b.store.configuration_repos(one, id(60)).await.unwrap()[0].workspace_path, ".");
    assert_eq!(find(61, Some(vec![app, app])).await, (id(60), false));
    assert_eq!(find(62, Some(vec![lib, app])).await, (id(62), true));
    assert_eq!(find(63, Some(vec![app, lib])).await, (id(62), false));
    assert_eq!(find(64, None).await, (id(60), false), "the oldest");
    let snapshot =
        ConfigurationChange { snapshot_id: Some("s".to_owned()), ..ConfigurationChange::default() };
    b.store.update_configuration(one, id(62), snapshot, at(99)).await.unwrap();
    assert_eq!(find(65, None).await, (id(62), false), "one that starts faster");
    assert_eq!(find(66, Some(Vec::new())).await, (id(62), false), "none named is any");
}

async fn a_directory_of_a_user_has_one_configuration(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (ada, bob) =
        (member(&b.store, one, 10, Role::Owner).await, member(&b.store, one, 11, Role::Member).await);
    let wanted = |user_id, number: u8, display_name: Option<&str>| WantedCli {
        org_id: one,
        user_id,
        local_path_hash: "hash".to_owned(),
        display_name: display_name.map(str::to_owned),
        id: id(number),
        repo_id: id(number + 100),
        sandbox_provider: "local".to_owned(),
        at: at(1),
    };
    let found = together(8, |caller| {
        let store = b.store.clone();
        let wanted = wanted(ada, 60 + u8::try_from(caller).unwrap(), None);
        async move { store.find_or_create_cli(wanted).await.unwrap() }
    })
    .await;
    assert_eq!(found.iter().filter(|found| found.is_new).count(), 1);
    let made = &found[0].configuration;
    assert!(found.iter().all(|found| found.configuration == *made));
    assert_eq!((made.kind, made.status), (ConfigurationKind::Cli, ConfigurationStatus::Pending));
    assert_eq!((made.user_id, made.name.as_str()), (Some(ada), "Local Directory"));
    let repos = b.store.configuration_repos(one, made.id).await.unwrap();
    assert_eq!((repos.len(), repos[0].workspace_path.as_str()), (1, "."));
    assert_eq!((repos[0].repo.source, repos[0].repo.url.as_deref()), (RepoSource::Local, None));
    assert_eq!(b.store.repos(one).await.unwrap().len(), 1, "losers leave nothing");
    let other = b.store.find_or_create_cli(wanted(bob, 80, Some("code"))).await.unwrap();
    assert_eq!((other.is_new, other.configuration.name.as_str()), (true, "code"));
    // The gateway cannot clone a directory on somebody's machine.
    assert!(b.store.find_or_create_managed(managed(one, 90, None)).await.unwrap().is_none());
}

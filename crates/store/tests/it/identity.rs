//! Organizations and members: the first owner is created once, and no organization loses its last owner.

use proto::{OrgId, Role, UserId};
use store::{FirstOwner, NewMember, NewOrg, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, member, membership, org, together};

on_both! {
    the_first_owner_is_created_once
    organizations_are_listed_oldest_first
    one_address_is_one_user_in_every_organization
    a_name_is_private_to_its_organization
    adding_a_member_twice_or_to_no_organization_is_refused
    the_last_owner_cannot_be_removed
    two_owners_cannot_remove_each_other_at_once
}

fn first(number: u8) -> FirstOwner {
    let org = NewOrg { id: id(number), name: format!("org {number}"), at: at(0) };
    FirstOwner { org, user: id(100 + number), email: "Owner@Example.com".to_owned() }
}

async fn the_first_owner_is_created_once(b: &Backend) {
    assert!(b.store.first_owner().await.unwrap().is_none());
    let made = together(8, |caller| {
        let store = b.store.clone();
        async move { store.create_first_owner(first(u8::try_from(caller).unwrap())).await.unwrap() }
    })
    .await;
    assert_eq!(made.iter().filter(|made| **made).count(), 1, "{made:?}");
    let winner = u8::try_from(made.iter().position(|made| *made).unwrap()).unwrap();
    let owner = b.store.first_owner().await.unwrap().unwrap();
    assert_eq!((owner.org_id, owner.user_id), (id::<OrgId>(winner), id::<UserId>(100 + winner)));
    assert_eq!((owner.email.as_str(), owner.role), ("owner@example.com", Role::Owner));
    assert_eq!(owner.name, owner.email);
    assert_eq!(b.store.orgs().await.unwrap().len(), 1);
    assert!(!b.store.create_first_owner(first(50)).await.unwrap());
}

async fn organizations_are_listed_oldest_first(b: &Backend) {
    for number in [3, 1, 2] {
        org(&b.store, number).await;
    }
    let names: Vec<_> =
        b.store.orgs().await.unwrap().into_iter().map(|org| (org.name, org.created_at)).collect();
    assert_eq!(names, [1, 2, 3].map(|number| (format!("org {number}"), at(number))));
}

async fn one_address_is_one_user_in_every_organization(b: &Backend) {
    let (first, second) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let ada = b.store.add_member(membership(first, 10, "Ada@Example.com", Role::Owner)).await.unwrap();
    let again = b.store.add_member(membership(second, 11, "aDA@example.COM", Role::Member)).await.unwrap();
    assert_eq!(ada, id::<UserId>(10));
    assert_eq!(again, ada);

    let memberships = b.store.memberships(ada).await.unwrap();
    let roles: Vec<_> = memberships.iter().map(|m| (m.org_id, m.role, m.email.as_str())).collect();
    assert_eq!(roles, [(first, Role::Owner, "ada@example.com"), (second, Role::Member, "ada@example.com")]);
    assert!(b.store.member(second, id(11)).await.unwrap().is_none(), "the id that was not needed is nobody");
    assert_eq!(b.store.members(second).await.unwrap().len(), 1);
}

async fn a_name_is_private_to_its_organization(b: &Backend) {
    let (first, second) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let called = |org, name: &str| NewMember {
        name: name.to_owned(),
        ..membership(org, 10, "ada@example.com", Role::Owner)
    };
    let ada = b.store.add_member(called(first, "Ada, who owes us money")).await.unwrap();
    b.store.add_member(called(second, "Ada")).await.unwrap();
    let names: Vec<_> =
        b.store.memberships(ada).await.unwrap().into_iter().map(|m| (m.org_id, m.name)).collect();
    assert_eq!(names, [(first, "Ada, who owes us money".to_owned()), (second, "Ada".to_owned())]);
    assert_eq!(b.store.members(second).await.unwrap()[0].name, "Ada");
}

async fn adding_a_member_twice_or_to_no_organization_is_refused(b: &Backend) {
    let one = org(&b.store, 1).await;
    member(&b.store, one, 10, Role::Owner).await;
    let twice = b.store.add_member(membership(one, 11, "USER10@example.com", Role::Admin)).await;
    assert!(matches!(twice, Err(StoreError::Taken("this membership"))), "{twice:?}");
    assert_eq!(b.store.member(one, id(10)).await.unwrap().unwrap().role, Role::Owner, "the first one stands");

    let nowhere = b.store.add_member(membership(id(9), 12, "new@example.com", Role::Member)).await;
    assert!(matches!(nowhere, Err(StoreError::Missing("this organization"))), "{nowhere:?}");
    let users = b.raw().await.number("SELECT count(*) FROM users").await;
    assert_eq!(users, 1, "a membership that failed leaves no user");
}

async fn the_last_owner_cannot_be_removed(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (ada, bob) =
        (member(&b.store, one, 10, Role::Owner).await, member(&b.store, one, 11, Role::Admin).await);
    for change in [None, Some(Role::Admin), Some(Role::Member)] {
        let refused = b.store.change_member(one, ada, change, at(2)).await;
        assert!(matches!(refused, Err(StoreError::Refused(_))), "{change:?}: {refused:?}");
    }
    b.store.change_member(one, ada, Some(Role::Owner), at(2)).await.unwrap();
    assert_eq!(b.store.member(one, ada).await.unwrap().unwrap().role, Role::Owner);

    b.store.change_member(one, bob, Some(Role::Owner), at(2)).await.unwrap();
    b.store.change_member(one, ada, Some(Role::Member), at(2)).await.unwrap();
    b.store.change_member(one, ada, None, at(2)).await.unwrap();
    assert!(b.store.member(one, ada).await.unwrap().is_none());
    let gone = b.store.change_member(one, ada, None, at(2)).await;
    assert!(matches!(gone, Err(StoreError::Missing("this member"))), "{gone:?}");
}

async fn two_owners_cannot_remove_each_other_at_once(b: &Backend) {
    for round in 1..=10 {
        let one = org(&b.store, round).await;
        let owners =
            [member(&b.store, one, 10, Role::Owner).await, member(&b.store, one, 11, Role::Owner).await];
        let removed = together(2, |caller| {
            let store = b.store.clone();
            async move { store.change_member(one, owners[caller], None, at(2)).await }
        })
        .await;
        let refused = removed.iter().filter(|done| matches!(done, Err(StoreError::Refused(_)))).count();
        assert_eq!((removed.iter().filter(|done| done.is_ok()).count(), refused), (1, 1), "{removed:?}");
        assert_eq!(b.store.members(one).await.unwrap().len(), 1);
    }
}

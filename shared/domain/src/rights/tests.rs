//! The table of rights, cell by cell, and what holds of it whatever is drawn.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::ids::Kind;
use crate::time::{Span, Time};

fn who(text: &str) -> Principal {
    Principal::new(text).unwrap()
}

fn meta() -> Meta {
    Meta {
        kind: Kind::new("k").unwrap(),
        goal: String::new(),
        input: Value::Null,
        owner: who("user:owner"),
        submitted_by: who("user:submitter"),
        viewers: vec![who("user:viewer"), who("group:viewers")],
        operators: vec![who("user:operator"), who("group:operators")],
        approvers: vec![who("user:approver"), who("group:approvers")],
        ceiling: Ceiling::default(),
        labels: BTreeMap::new(),
        idempotency_key: None,
        body_sha256: None,
        created_at: Time(0),
        plan_dir: None,
        complete_when: None,
        artifacts: Vec::new(),
        deadline: None,
        retention: Span(0),
        finally: Vec::new(),
        traceparent: None,
    }
}

fn identity(principal: &str, roles: &[Role], groups: &[&str]) -> Identity {
    let named = groups.iter().map(|group| who(group)).collect();
    Identity {
        roles: roles.iter().copied().collect(),
        groups: Groups::Named(named),
        ..Identity::new(who(principal), Role::Worker)
    }
}

fn rights(of: &Identity) -> String {
    let meta = meta();
    let people = People::of(&meta.owner, &meta);
    let names = Right::ALL.into_iter().filter(|right| of.may(*right, &people));
    names.map(Right::as_str).collect::<Vec<_>>().join(" ")
}

#[test]
fn rights_follow_the_table() {
    use Role::{Admin, Participant, Publisher, Worker};
    for (principal, role, groups, expected) in [
        ("user:owner", Publisher, vec![], "view answer operate stop hand_over"),
        ("user:owner", Participant, vec![], "view answer operate stop hand_over"),
        ("user:operator", Publisher, vec![], "view answer operate stop"),
        ("user:approver", Publisher, vec![], "view"),
        ("user:viewer", Publisher, vec![], "view"),
        ("user:submitter", Publisher, vec![], "view"),
        ("user:x", Participant, vec!["group:operators"], "view answer operate stop"),
        ("user:x", Participant, vec!["group:approvers"], "view"),
        ("user:x", Participant, vec!["group:viewers"], "view"),
        ("user:x", Participant, vec!["group:others"], ""),
        ("user:x", Publisher, vec![], ""),
        ("user:x", Admin, vec![], "view answer operate stop hand_over"),
        ("user:owner", Worker, vec![], ""),
        ("user:x", Worker, vec!["group:operators"], ""),
    ] {
        let of_task = rights(&identity(principal, &[role], &groups));
        let own: Vec<&str> = of_task
            .split(' ')
            .filter(|right| !["submit", "list", "work", "administer"].contains(right))
            .collect();
        assert_eq!(own.join(" "), expected, "{principal} {role} {groups:?}");
    }
}

#[test]
fn roles_give_the_rights_of_the_installation() {
    for (role, expected) in [
        (Role::Admin, "submit list work administer"),
        (Role::Publisher, "submit list"),
        (Role::Participant, "list"),
        (Role::Worker, "work"),
    ] {
        let of = identity("user:x", &[role], &[]);
        let all = Right::ALL.into_iter().filter(|right| right.parts().is_empty() && of.has(*right));
        assert_eq!(all.map(Right::as_str).collect::<Vec<_>>().join(" "), expected, "{role}");
    }
}

#[test]
fn the_person_of_the_embedded_mode_is_in_every_group_and_nobody_else() {
    let local = Identity::local();
    assert!(local.is(&who("group:anything")) && local.is(&Principal::local()));
    assert!(!local.is(&who("user:ana")));
}

#[test]
fn only_an_admin_or_a_ceiling_lets_name_another_owner() {
    let publisher = identity("user:me", &[Role::Publisher], &["group:mine"]);
    for (owner, may) in
        [("user:me", true), ("group:mine", true), ("user:other", false), ("group:other", false)]
    {
        assert_eq!(publisher.may_own_by(&who(owner)), may, "{owner}");
        assert!(publisher.may_hand_to(&who(owner)), "a task may be given to anyone");
    }
    assert!(identity("user:me", &[Role::Admin], &[]).may_own_by(&who("user:other")));
    let owners = Some([crate::ceiling::Naming::new("user:boss").unwrap()].into());
    let bound = Ceiling { owners, ..Ceiling::default() };
    let bound = Identity { ceiling: Arc::new(bound), ..publisher };
    for (owner, may) in [("user:boss", true), ("user:me", true), ("user:other", false)] {
        assert_eq!((bound.may_own_by(&who(owner)), bound.may_hand_to(&who(owner))), (may, may));
    }
}

/// The table of docs/API.md is this one.
#[test]
fn the_documented_table_is_this_one() {
    let docs = include_str!("../../../../docs/API.md");
    let of_tasks = Right::ALL.into_iter().filter(|right| !right.parts().is_empty());
    for right in of_tasks {
        let cell = |yes: bool| if yes { "yes" } else { "no" };
        let mut row = format!("| `{right}` |");
        for part in Part::ALL {
            row.push_str(&format!(" {} |", cell(right.parts().contains(&part))));
        }
        assert!(docs.contains(&row), "docs/API.md lacks `{row}`");
    }
}

fn roles() -> impl Strategy<Value = BTreeSet<Role>> {
    proptest::collection::btree_set(proptest::sample::select(&Role::ALL[..]), 0..=4)
}

fn names() -> impl Strategy<Value = Principal> {
    let all = ["user:a", "user:b", "group:g", "group:h", "user:owner", "user:viewer"];
    proptest::sample::select(all.map(who).to_vec())
}

fn groups() -> impl Strategy<Value = BTreeSet<Principal>> {
    let all = ["group:g", "group:h", "group:operators"].map(who).to_vec();
    proptest::collection::btree_set(proptest::sample::select(all), 0..=3)
}

fn people() -> impl Strategy<Value = Meta> {
    let some = || proptest::collection::vec(names(), 0..3);
    (names(), names(), some(), some(), some()).prop_map(
        |(owner, submitted_by, operators, approvers, viewers)| Meta {
            owner,
            submitted_by,
            operators,
            approvers,
            viewers,
            ..meta()
        },
    )
}

proptest! {
    /// More roles, more groups and more parts never take a right away.
    #[test]
    fn rights_only_grow(
        (few, more, g, h) in (roles(), roles(), groups(), groups()),
        (me, meta, named) in (names(), people(), names()),
    ) {
        let of = |roles: &BTreeSet<Role>, groups: &BTreeSet<Principal>| Identity {
            roles: roles.clone(),
            groups: Groups::Named(groups.clone()),
            ..Identity::new(me.clone(), Role::Worker)
        };
        let (both, all) = (few.union(&more).copied().collect(), g.union(&h).cloned().collect());
        let mut wider = meta.clone();
        wider.operators.push(named.clone());
        wider.approvers.push(named.clone());
        wider.viewers.push(named);
        for right in Right::ALL {
            if of(&few, &g).may(right, &People::of(&meta.owner, &meta)) {
                prop_assert!(of(&both, &all).may(right, &People::of(&wider.owner, &wider)));
            }
        }
    }

    /// Whoever has any right on a task sees it.
    #[test]
    fn who_may_do_anything_with_a_task_sees_it(
        (roles, groups, me, meta) in (roles(), groups(), names(), people()),
    ) {
        let of = Identity {
            roles,
            groups: Groups::Named(groups),
            ..Identity::new(me, Role::Worker)
        };
        let people = People::of(&meta.owner, &meta);
        let on_tasks = Right::ALL.into_iter().filter(|right| !right.parts().is_empty());
        for right in on_tasks {
            prop_assert!(!of.may(right, &people) || of.may(Right::View, &people));
        }
    }
}

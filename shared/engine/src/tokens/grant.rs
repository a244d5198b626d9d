//! What a token is to say, before it is made.

use std::collections::BTreeSet;

use standfast_domain::ceiling::Ceiling;
use standfast_domain::ids::Principal;
use standfast_domain::plan::Fault;
use standfast_domain::rights::Role;
use standfast_domain::time::Span;

use super::GROUPS_MAX;

/// What a token is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whom it names.
    pub principal: Principal,
    /// What it allows; at least one.
    pub roles: BTreeSet<Role>,
    /// The groups that it stands for besides its principal.
    pub groups: BTreeSet<Principal>,
    /// What its principal may not go beyond with it.
    pub ceiling: Ceiling,
    /// How long it is valid; none: until it is revoked.
    pub expires: Option<Span>,
    /// What it is for, in the words of who makes it.
    pub label: String,
}

impl Grant {
    /// Makes a grant of one role for good, without groups and ceiling.
    pub fn new(principal: Principal, role: Role) -> Self {
        Self {
            principal,
            roles: BTreeSet::from([role]),
            groups: BTreeSet::new(),
            ceiling: Ceiling::default(),
            expires: None,
            label: String::new(),
        }
    }

    /// Says what of it is not acceptable, with the part that it is about.
    pub fn faults(&self) -> Vec<Fault> {
        let fault = |pointer: &str, message: String| Fault { pointer: pointer.to_owned(), message };
        let mut faults = Vec::new();
        let principal = &self.principal;
        if principal.is_group() {
            let message = format!("`{principal}` is a group: a group is named, it never acts");
            faults.push(fault("/principal", message));
        }
        if *principal == Principal::system() {
            let message = format!("`{principal}` is Standfast itself: its clocks act as it");
            faults.push(fault("/principal", message));
        }
        if self.roles.is_empty() {
            faults.push(fault("/roles", "expected at least one role, found none".to_owned()));
        }
        for other in self.groups.iter().filter(|group| !group.is_group()) {
            faults.push(fault("/groups", format!("expected `group:NAME`, found `{other}`")));
        }
        if self.groups.len() > GROUPS_MAX {
            let found = self.groups.len();
            faults.push(fault("/groups", format!("expected at most {GROUPS_MAX}, found {found}")));
        }
        if self.expires == Some(Span(0)) {
            faults.push(fault("/expires", "expected a span longer than 0".to_owned()));
        }
        let of_ceiling = self.ceiling.faults().into_iter();
        faults.extend(
            of_ceiling
                .map(|found| Fault { pointer: format!("/ceiling{}", found.pointer), ..found }),
        );
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_that_cannot_be_is_told_by_its_parts() {
        let who = |text: &str| Principal::new(text).unwrap();
        let good = Grant::new(who("user:ana"), Role::Publisher);
        assert_eq!(good.faults(), []);
        let place =
            |grant: Grant| grant.faults().into_iter().map(|f| f.pointer).collect::<Vec<_>>();
        for (grant, expected) in [
            (Grant::new(who("group:g"), Role::Admin), "/principal"),
            (Grant::new(Principal::system(), Role::Worker), "/principal"),
            (Grant { roles: BTreeSet::new(), ..good.clone() }, "/roles"),
            (Grant { groups: [who("user:ben")].into(), ..good.clone() }, "/groups"),
            (Grant { expires: Some(Span(0)), ..good.clone() }, "/expires"),
        ] {
            assert_eq!(place(grant), [expected]);
        }
    }
}

//! Who may do what: one function from who asks, with what, to what a task allows.
//!
//! A token's roles say what it may do in the installation at all; a task's people say who may
//! do what with that task. Both are needed: a role alone shows nobody's task (an admin's
//! excepted), and a name in a plan gives nothing to a token that only works.
//!
//! ```text
//!             view  answer  operate  stop  hand over      (rights on one task)
//! owner         x     x       x       x       x
//! operator      x     x       x       x
//! approver      x
//! viewer        x
//! submitter     x
//! admin         x     x       x       x       x
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ceiling::Ceiling;
use crate::hold::HoldReason;
use crate::ids::Principal;
use crate::record::Meta;

/// What a token allows in the whole installation. A token has one or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything, on every task.
    Admin,
    /// Submits tasks, and does with any task what its people allow.
    Publisher,
    /// Does with a task what its people allow; submits none.
    Participant,
    /// Announces handlers and claims attempts.
    Worker,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Admin, Self::Publisher, Self::Participant, Self::Worker];

    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Publisher => "publisher",
            Self::Participant => "participant",
            Self::Worker => "worker",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a command needs. Every command names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// See a task: its state, steps, logs, artifacts, events and effects.
    View,
    /// Answer what holds a task.
    Answer,
    /// Pause and resume a task, and stop one of its attempts.
    Operate,
    /// Stop a task.
    Stop,
    /// Give a task to another owner.
    HandOver,
    /// Submit tasks.
    Submit,
    /// List the tasks that one may see.
    List,
    /// Announce handlers; claim, keep and settle attempts.
    Work,
    /// Look at the installation as a whole: metrics.
    Administer,
}

impl Right {
    /// All rights.
    pub const ALL: [Self; 9] = [
        Self::View,
        Self::Answer,
        Self::Operate,
        Self::Stop,
        Self::HandOver,
        Self::Submit,
        Self::List,
        Self::Work,
        Self::Administer,
    ];

    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Answer => "answer",
            Self::Operate => "operate",
            Self::Stop => "stop",
            Self::HandOver => "hand_over",
            Self::Submit => "submit",
            Self::List => "list",
            Self::Work => "work",
            Self::Administer => "administer",
        }
    }

    /// Names the parts in a task that have the right; none for a right of the installation.
    pub fn parts(self) -> &'static [Part] {
        match self {
            Self::View => &Part::ALL,
            Self::Answer | Self::Operate | Self::Stop => &[Part::Owner, Part::Operator],
            Self::HandOver => &[Part::Owner],
            Self::Submit | Self::List | Self::Work | Self::Administer => &[],
        }
    }

    /// Names the roles of which a token needs one: with the part that the right asks for if it
    /// is one on a task, by themselves else. An admin needs no part.
    pub fn roles(self) -> &'static [Role] {
        match self {
            Self::Submit => &[Role::Publisher, Role::Admin],
            Self::Work => &[Role::Worker, Role::Admin],
            Self::Administer => &[Role::Admin],
            Self::View
            | Self::Answer
            | Self::Operate
            | Self::Stop
            | Self::HandOver
            | Self::List => &[Role::Participant, Role::Publisher, Role::Admin],
        }
    }

    /// Gives the right that answering a hold needs.
    pub fn to_answer(reason: HoldReason) -> Self {
        match reason {
            HoldReason::Timer
            | HoldReason::Paused
            | HoldReason::Failures
            | HoldReason::WorkerDied
            | HoldReason::Verification
            | HoldReason::UncertainEffect
            | HoldReason::UndoFailed
            | HoldReason::EffectChanged => Self::Answer,
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A part that a principal has in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Who owns it now.
    Owner,
    /// Who acts on it besides the owner.
    Operator,
    /// Who its plan names to decide on it: sees it.
    Approver,
    /// Who sees it.
    Viewer,
    /// Who submitted it.
    Submitter,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 5] =
        [Self::Owner, Self::Operator, Self::Approver, Self::Viewer, Self::Submitter];

    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Operator => "operator",
            Self::Approver => "approver",
            Self::Viewer => "viewer",
            Self::Submitter => "submitter",
        }
    }
}

/// The groups that somebody is a member of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Every group: the person of the embedded mode.
    All,
    /// These.
    Named(BTreeSet<Principal>),
}

/// Who asks, and with what: the content of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who acts.
    pub principal: Principal,
    /// What its token allows.
    pub roles: BTreeSet<Role>,
    /// The groups that it stands for besides itself.
    pub groups: Groups,
    /// What its plans, its claims and the owners that it names may not go beyond.
    pub ceiling: Arc<Ceiling>,
}

impl Identity {
    /// Makes an identity of one role, without groups and ceiling.
    pub fn new(principal: Principal, role: Role) -> Self {
        Self {
            principal,
            roles: BTreeSet::from([role]),
            groups: Groups::Named(BTreeSet::new()),
            ceiling: Arc::default(),
        }
    }

    /// Gives the person of the embedded mode: an admin and a member of every group.
    pub fn local() -> Self {
        Self { groups: Groups::All, ..Self::new(Principal::local(), Role::Admin) }
    }

    /// True for an admin.
    pub fn is_admin(&self) -> bool {
        self.roles.contains(&Role::Admin)
    }

    /// True if a name stands for this one: its own, or that of a group of its.
    pub fn is(&self, named: &Principal) -> bool {
        *named == self.principal
            || match &self.groups {
                Groups::All => named.is_group(),
                Groups::Named(groups) => groups.contains(named),
            }
    }

    /// Names all that stands for this one; nothing where that is every group.
    pub fn names(&self) -> Option<Vec<&Principal>> {
        match &self.groups {
            Groups::All => None,
            Groups::Named(groups) => Some([&self.principal].into_iter().chain(groups).collect()),
        }
    }

    /// True if this one may do what needs a right of the installation.
    pub fn has(&self, right: Right) -> bool {
        right.roles().iter().any(|role| self.roles.contains(role))
    }

    /// True if this one has a right on a task with these people.
    pub fn may(&self, right: Right, people: &People<'_>) -> bool {
        self.has(right)
            && (self.is_admin() || right.parts().iter().any(|part| people.give(*part, self)))
    }

    /// True if a task that this one submits may have that owner. Whoever is not an admin owns
    /// what it submits, be it as a member of a group, unless its ceiling names other owners: an
    /// owner is asked for answers and may be charged.
    pub fn may_own_by(&self, owner: &Principal) -> bool {
        match &self.ceiling.owners {
            Some(owners) => self.is(owner) || owners.iter().any(|naming| naming.takes(owner)),
            None => self.is_admin() || self.is(owner),
        }
    }

    /// True if this one may hand a task over to that owner: unless its ceiling names owners,
    /// to anyone.
    pub fn may_hand_to(&self, owner: &Principal) -> bool {
        self.ceiling.owners.is_none() || self.may_own_by(owner)
    }
}

/// The people of one task.
#[derive(Clone, Copy, Debug)]
pub struct People<'a> {
    owner: &'a Principal,
    meta: &'a Meta,
}

impl<'a> People<'a> {
    /// Takes the owner of now and what was submitted.
    pub fn of(owner: &'a Principal, meta: &'a Meta) -> Self {
        Self { owner, meta }
    }

    /// Lists who has a part.
    pub fn listed(&self, part: Part) -> Vec<&'a Principal> {
        match part {
            Part::Owner => vec![self.owner],
            Part::Operator => self.meta.operators.iter().collect(),
            Part::Approver => self.meta.approvers.iter().collect(),
            Part::Viewer => self.meta.viewers.iter().collect(),
            Part::Submitter => vec![&self.meta.submitted_by],
        }
    }

    /// Lists who has a right by the task's own people, each once.
    pub fn who_may(&self, right: Right) -> Vec<&'a Principal> {
        let mut all = Vec::new();
        for named in right.parts().iter().flat_map(|part| self.listed(*part)) {
            if !all.contains(&named) {
                all.push(named);
            }
        }
        all
    }

    fn give(&self, part: Part, who: &Identity) -> bool {
        match part {
            Part::Owner => who.is(self.owner),
            Part::Operator => self.meta.operators.iter().any(|named| who.is(named)),
            Part::Approver => self.meta.approvers.iter().any(|named| who.is(named)),
            Part::Viewer => self.meta.viewers.iter().any(|named| who.is(named)),
            Part::Submitter => who.is(&self.meta.submitted_by),
        }
    }
}

#[cfg(test)]
mod tests;

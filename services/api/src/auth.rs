//! Who may ask for what.

use axum::extract::FromRequestParts;
use axum::http::request::Parts as Head;
use standfast_domain::ids::Principal;
use standfast_domain::record::Meta;
use standfast_engine::tokens::{Identity, Role};

use crate::Api;
use crate::problems::Fail;

/// How callers are known.
#[derive(Clone, Debug)]
pub enum Access {
    /// One token that the process made itself: the embedded mode, where whoever can read the
    /// endpoint's file is the person.
    Fixed {
        /// SHA-256 of the token, in hex.
        token_sha256: String,
        /// Whom it names.
        identity: Identity,
    },
    /// The installation's tokens.
    Tokens {
        /// As long as no token was ever made, requests without one act as the local person.
        /// For listeners on loopback addresses alone.
        open_if_none: bool,
    },
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub Identity);

impl FromRequestParts<Api> for Caller {
    type Rejection = Fail;

    async fn from_request_parts(head: &mut Head, _: &Api) -> Result<Self, Fail> {
        let caller = head.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| Fail::internal(&"a route without its guard"))
    }
}

impl Caller {
    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    pub fn is_admin(&self) -> bool {
        self.0.role == Role::Admin
    }

    /// True if the caller may see the task.
    pub fn may_see(&self, meta: &Meta) -> bool {
        let me = self.principal();
        match self.0.role {
            Role::Admin => true,
            Role::Worker => false,
            Role::Publisher => {
                self.may_act(meta) || meta.submitted_by == *me || meta.viewers.contains(me)
            }
        }
    }

    fn may_act(&self, meta: &Meta) -> bool {
        let me = self.principal();
        match self.0.role {
            Role::Admin => true,
            Role::Worker => false,
            Role::Publisher => meta.owner == *me || meta.operators.contains(me),
        }
    }

    /// Demands the right to act on a task that the caller may see.
    pub fn demand_act(&self, meta: &Meta) -> Result<(), Fail> {
        if self.may_act(meta) {
            return Ok(());
        }
        let mut needed = vec![meta.owner.to_string()];
        needed.extend(meta.operators.iter().map(Principal::to_string));
        Err(Fail::forbidden(&format!("the owner, an operator or an admin: {}", needed.join(", "))))
    }

    /// Demands the right to submit and list.
    pub fn demand_publisher(&self) -> Result<(), Fail> {
        match self.0.role {
            Role::Admin | Role::Publisher => Ok(()),
            Role::Worker => Err(Fail::forbidden("a token of the role `publisher` or `admin`")),
        }
    }

    /// Demands the right to work.
    pub fn demand_worker(&self) -> Result<(), Fail> {
        match self.0.role {
            Role::Admin | Role::Worker => Ok(()),
            Role::Publisher => Err(Fail::forbidden("a token of the role `worker` or `admin`")),
        }
    }

    /// Demands the right to name somebody else as owner.
    pub fn demand_owner(&self, owner: Option<&Principal>) -> Result<(), Fail> {
        match owner {
            Some(owner) if !self.0.may_name_owner(Some(owner)) => {
                Err(Fail::forbidden(&format!("an admin, or without `owner: {owner}`")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;
    use standfast_domain::ids::Kind;
    use standfast_domain::time::{Span, Time};

    use super::*;

    fn who(text: &str) -> Principal {
        Principal::new(text).unwrap()
    }

    fn caller(text: &str, role: Role) -> Caller {
        Caller(Identity { principal: who(text), role })
    }

    pub(crate) fn meta() -> Meta {
        Meta {
            kind: Kind::new("k").unwrap(),
            goal: String::new(),
            input: Value::Null,
            owner: who("user:owner"),
            submitted_by: who("service:shop"),
            viewers: vec![who("user:viewer")],
            operators: vec![who("user:operator")],
            labels: BTreeMap::new(),
            idempotency_key: None,
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

    #[test]
    fn rights_follow_the_table() {
        let meta = meta();
        for (name, role, sees, acts) in [
            ("user:owner", Role::Publisher, true, true),
            ("user:operator", Role::Publisher, true, true),
            ("user:viewer", Role::Publisher, true, false),
            ("service:shop", Role::Publisher, true, false),
            ("user:other", Role::Publisher, false, false),
            ("user:other", Role::Admin, true, true),
            ("user:owner", Role::Worker, false, false),
        ] {
            let caller = caller(name, role);
            assert_eq!(caller.may_see(&meta), sees, "{name} {role:?} sees");
            assert_eq!(caller.demand_act(&meta).is_ok(), acts, "{name} {role:?} acts");
        }
    }

    #[test]
    fn only_an_admin_names_another_owner() {
        let (me, other) = (who("user:me"), who("user:other"));
        let publisher = caller("user:me", Role::Publisher);
        assert!(publisher.demand_owner(None).is_ok());
        assert!(publisher.demand_owner(Some(&me)).is_ok());
        assert!(publisher.demand_owner(Some(&other)).is_err());
        assert!(caller("user:me", Role::Admin).demand_owner(Some(&other)).is_ok());
    }
}

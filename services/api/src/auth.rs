//! Who may ask for what.
//!
//! A route learns who asks by one of two extractors, each of which demands a right: `By` for
//! what the installation as a whole allows, and `On` for one task, which it loads with its
//! people. There is no other way to a task's records, so that no route can forget to ask.

use std::marker::PhantomData;
use std::ops::Deref;

use axum::extract::FromRequestParts;
use axum::http::request::Parts as Head;
use standfast_domain::ids::{HandlerName, Principal, Queue, TaskId};
use standfast_domain::record::Meta;
use standfast_domain::rights::{People, Right};
use standfast_engine::tokens::{Credential, Identity};
use standfast_protocol::problem::{Fault, ProblemKind};

use crate::Api;
use crate::extract::Place;
use crate::problems::Fail;
use crate::reads::{self, Base};

/// How callers are known.
#[derive(Clone, Debug)]
pub enum Access {
    /// One token that the process made itself: the embedded mode, where whoever can read the
    /// endpoint's file is the person, and may act for another.
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

/// The rights that routes name, as types.
pub(crate) mod needs {
    use standfast_domain::rights::Right;

    /// A right that a route needs.
    pub(crate) trait Need: Send {
        const RIGHT: Right;
    }

    macro_rules! need {
        ($($right:ident),*) => {
            $(
                #[derive(Debug)]
                pub(crate) struct $right;

                impl Need for $right {
                    const RIGHT: Right = Right::$right;
                }
            )*
        };
    }

    need!(View, HandOver, Operate, Stop, Submit, List, Work, Administer);
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub identity: Identity,
    /// The token by which; none for an api of one's own.
    pub credential: Option<Credential>,
}

impl Caller {
    pub fn principal(&self) -> &Principal {
        &self.identity.principal
    }

    pub fn is_admin(&self) -> bool {
        self.identity.is_admin()
    }

    /// Gives the caller as it is now: its token may have been revoked, or have expired, while
    /// its request waited.
    pub async fn now(&self, api: &Api) -> Result<Self, Fail> {
        let over = || Fail::new(ProblemKind::Unauthorized, "the token holds no more");
        match (&self.credential, &api.settings().access) {
            (Some(credential), _) => {
                let found = api.tokens().still(credential).await?.ok_or_else(over)?;
                Ok(Self { identity: found.identity.clone(), credential: Some(found) })
            }
            (None, Access::Tokens { .. }) if api.tokens().any().await? => Err(over()),
            (None, Access::Tokens { .. } | Access::Fixed { .. }) => Ok(self.clone()),
        }
    }

    /// True if the caller may see a task.
    pub fn may_see(&self, meta: &Meta) -> bool {
        self.identity.may(Right::View, &People::of(&meta.owner, meta))
    }

    /// Demands a right of the installation.
    pub fn demand(&self, right: Right) -> Result<(), Fail> {
        if self.identity.has(right) {
            return Ok(());
        }
        let roles: Vec<String> = right.roles().iter().map(|role| format!("`{role}`")).collect();
        let detail = format!("this needs the right `{right}`: a token of role {}", or(&roles));
        Err(Fail::forbidden(right, detail))
    }

    /// Demands a right on a task that the caller may see.
    pub fn demand_on(&self, right: Right, base: &Base) -> Result<(), Fail> {
        let people = People::of(&base.meta.owner, &base.meta);
        if self.identity.may(right, &people) {
            return Ok(());
        }
        let parts: Vec<String> =
            right.parts().iter().map(|part| part.as_str().to_owned()).collect();
        let names: Vec<String> =
            people.who_may(right).into_iter().map(Principal::to_string).collect();
        let (parts, names) = (or(&parts), names.join(", "));
        let detail = format!("this needs the right `{right}` on the task: {parts} ({names})");
        Err(Fail::forbidden(right, format!("{detail}, or an admin")).about(&base.task))
    }

    /// Demands that a worker's queues and handlers are within its ceiling; all faults at once.
    pub fn demand_within(
        &self,
        queues: &[(String, &Queue)],
        handlers: &[(String, &HandlerName)],
    ) -> Result<(), Fail> {
        let ceiling = &self.identity.ceiling;
        let mut errors = Vec::new();
        let mut beyond = |pointer: &String, what: &str, name: &str| {
            let message = format!("your token does not allow {what} `{name}`");
            errors.push(Fault { pointer: pointer.clone(), message });
        };
        for (pointer, queue) in queues {
            if ceiling.queues.as_ref().is_some_and(|allowed| !allowed.contains(queue)) {
                beyond(pointer, "queue", queue.as_str());
            }
        }
        for (pointer, handler) in handlers {
            if ceiling.handlers.as_ref().is_some_and(|allowed| !allowed.contains(handler)) {
                beyond(pointer, "handler", handler.as_str());
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        let each = errors.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message));
        let detail = each.collect::<Vec<_>>().join("; ");
        Err(Fail::forbidden(Right::Work, detail).with_errors(errors))
    }
}

fn or(words: &[String]) -> String {
    words.join(" or ")
}

/// Who asks, whatever its token allows. For the few routes whose right depends on the request.
pub(crate) struct AnyToken(pub Caller);

impl FromRequestParts<Api> for AnyToken {
    type Rejection = Fail;

    async fn from_request_parts(head: &mut Head, _: &Api) -> Result<Self, Fail> {
        let caller = head.extensions.get::<Caller>().cloned();
        caller.map(Self).ok_or_else(|| Fail::internal(&"a route without its guard"))
    }
}

/// Who asks, and has the right `R` in the installation.
pub(crate) struct By<R> {
    caller: Caller,
    right: PhantomData<fn() -> R>,
}

impl<R> Deref for By<R> {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl<R: needs::Need> By<R> {
    /// Demands the right again, of a request that has waited.
    pub async fn still(&mut self, api: &Api) -> Result<(), Fail> {
        self.caller = self.caller.now(api).await?;
        self.caller.demand(R::RIGHT)
    }
}

impl<R: needs::Need> FromRequestParts<Api> for By<R> {
    type Rejection = Fail;

    async fn from_request_parts(head: &mut Head, api: &Api) -> Result<Self, Fail> {
        let AnyToken(caller) = AnyToken::from_request_parts(head, api).await?;
        caller.demand(R::RIGHT)?;
        Ok(Self { caller, right: PhantomData })
    }
}

/// The task of the path, and who asks and has the right `R` on it. To those who may not see it
/// the task does not exist.
pub(crate) struct On<R> {
    pub base: Base,
    pub caller: Caller,
    right: PhantomData<fn() -> R>,
}

impl<R: needs::Need> FromRequestParts<Api> for On<R> {
    type Rejection = Fail;

    async fn from_request_parts(head: &mut Head, api: &Api) -> Result<Self, Fail> {
        let AnyToken(caller) = AnyToken::from_request_parts(head, api).await?;
        let task = Place::from_request_parts(head, api).await?.task()?;
        Self::find(api, caller, task).await
    }
}

impl<R: needs::Need> On<R> {
    /// Loads a task for a caller.
    pub async fn find(api: &Api, caller: Caller, task: TaskId) -> Result<Self, Fail> {
        let absent = || Fail::not_found(format!("failed to find task {task}"));
        let base = reads::find(api, &task).await?.ok_or_else(absent)?;
        if !caller.may_see(&base.meta) {
            return Err(missing(&task));
        }
        caller.demand_on(R::RIGHT, &base)?;
        Ok(Self { base, caller, right: PhantomData })
    }
}

/// Says whether a request that goes on for long may do so: its token still holds, and its task
/// is still to be seen. A caller learns of neither but by the end of the connection.
pub(crate) async fn still_sees(api: &Api, caller: &Caller, task: &TaskId) -> Result<bool, Fail> {
    match demand_still_sees(api, caller, task).await {
        Ok(()) => Ok(true),
        Err(fail) if fail.is(ProblemKind::Unauthorized) || fail.is(ProblemKind::NotFound) => {
            Ok(false)
        }
        Err(fail) => Err(fail),
    }
}

/// Demands, before a request that has waited is answered, what it began with: a token that
/// holds, and a task that its caller may see. One that was removed has ended.
pub(crate) async fn demand_still_sees(
    api: &Api,
    caller: &Caller,
    task: &TaskId,
) -> Result<(), Fail> {
    let caller = caller.now(api).await?;
    match reads::find(api, task).await? {
        Some(base) if !caller.may_see(&base.meta) => Err(missing(task)),
        Some(_) | None => Ok(()),
    }
}

fn missing(task: &TaskId) -> Fail {
    let fail = Fail::not_found(format!("failed to find task {task}"));
    fail.hidden(Right::View).about(task)
}

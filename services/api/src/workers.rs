//! Workers outside announce what they can do.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use standfast_domain::ids::{HandlerName, NameFault, Queue, WorkerId};
use standfast_engine::registry::{ANNOUNCEMENT, Announcement, WorkerLoad};
use standfast_protocol::claims::{Announce, Announced};
use standfast_protocol::limits::{ANNOUNCED_MAX, REQUEST_BYTES_MAX};
use standfast_protocol::paths;
use standfast_protocol::problem::{Fault, ProblemKind};

use crate::Api;
use crate::auth::{By, needs};
use crate::extract;
use crate::problems::Fail;

/// Takes a worker's announcement, or its leave. A worker's id is its principal's while it holds.
#[utoipa::path(post, path = paths::WORKERS, tag = "claims", request_body = Announce,
    responses((status = 200, body = Announced)))]
pub(crate) async fn announce(
    State(api): State<Api>,
    caller: By<needs::Work>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Announced>, Fail> {
    let request: Announce = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    let mut names = Names::default();
    let worker = names.one("/worker", WorkerId::new(request.worker));
    let queues = names.all("/queues", request.queues.into_iter().map(Queue::new));
    let handlers = request.handlers.into_iter().map(|handler| HandlerName::new(handler.name));
    let handlers = names.all("/handlers", handlers);
    let Some(worker) = worker else { return Err(names.into_fail()) };
    names.check()?;
    caller.demand_within(&placed("/queues", &queues), &placed("/handlers", &handlers))?;
    let load = request.concurrency.map(|concurrency| {
        let running = request.running.unwrap_or_default();
        WorkerLoad { concurrency, running }
    });
    let principal = caller.principal();
    let taken = if request.leaving {
        let by = (!caller.is_admin()).then_some(principal);
        api.registry().withdraw(&worker, by).await?
    } else {
        let (worker, queues, handlers) = (&worker, &queues[..], &handlers[..]);
        let unsubscribed = &[];
        let announced = Announcement { worker, principal, queues, unsubscribed, handlers, load };
        api.registry().announce(announced).await?
    };
    if !taken {
        let detail = format!("worker `{worker}` was announced by another principal and is its");
        return Err(Fail::new(ProblemKind::Forbidden, detail));
    }
    Ok(Json(Announced { principal: principal.to_string(), again_ms: ANNOUNCEMENT.0 / 3 }))
}

/// Gives each name with its place.
pub(crate) fn placed<'n, T>(pointer: &str, names: &'n [T]) -> Vec<(String, &'n T)> {
    let each = names.iter().enumerate();
    each.map(|(at, name)| (format!("{pointer}/{at}"), name)).collect()
}

/// Collects what is wrong with the names of a request.
#[derive(Default)]
pub(crate) struct Names(Vec<Fault>);

impl Names {
    /// Takes one name.
    pub fn one<T>(&mut self, pointer: &str, name: Result<T, NameFault>) -> Option<T> {
        match name {
            Ok(name) => Some(name),
            Err(fault) => {
                self.0.push(Fault { pointer: pointer.to_owned(), message: fault.to_string() });
                None
            }
        }
    }

    /// Takes a list of names.
    pub fn all<T>(
        &mut self,
        pointer: &str,
        names: impl ExactSizeIterator<Item = Result<T, NameFault>>,
    ) -> Vec<T> {
        if names.len() > ANNOUNCED_MAX {
            let message = format!("expected at most {ANNOUNCED_MAX}, found {}", names.len());
            self.0.push(Fault { pointer: pointer.to_owned(), message });
            return Vec::new();
        }
        let each = names.enumerate();
        each.filter_map(|(at, name)| self.one(&format!("{pointer}/{at}"), name)).collect()
    }

    /// Refuses the request if anything was wrong.
    pub fn check(&self) -> Result<(), Fail> {
        if self.0.is_empty() { Ok(()) } else { Err(Self(self.0.clone()).into_fail()) }
    }

    /// Refuses the request.
    pub fn into_fail(self) -> Fail {
        let each = self.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message));
        Fail::invalid(each.collect::<Vec<_>>().join("; ")).with_errors(self.0)
    }
}

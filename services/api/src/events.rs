//! A task's history: as pages, and as a stream without gaps.
//!
//! A stream reads the stored log from its cursor on and goes on reading: there is no moment
//! between "what was" and "what comes" at which an event could be lost, and any api process can
//! take over where another one stopped.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event as Message, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream};
use standfast_domain::commit::Scope;
use standfast_domain::event::{Change, Event, decode_event};
use standfast_domain::ids::TaskId;
use standfast_domain::record::{Header, Key, Record};
use standfast_engine::ports::StoreError;
use standfast_protocol::events::{
    EventPage, EventQuery, SSE_ENDED, SSE_SILENCE_MS_MAX, cursor, read_cursor,
};
use standfast_protocol::headers::{EVENT_STREAM, LAST_EVENT_ID};
use standfast_protocol::paths;

use crate::auth::{Caller, On, demand_still_sees, needs, still_sees};
use crate::extract;
use crate::problems::Fail;
use crate::waits::Wait;
use crate::{Api, present, reads};

/// Events that a stream reads at a time.
const READ_AT_ONCE: usize = 200;
/// How long a stream with nothing to tell goes on before it is looked whether its caller may
/// still see the task.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long a client should wait before it comes back.
const RETRY: Duration = Duration::from_secs(2);

/// Gives a task's events, as a page or, with `Accept: text/event-stream`, as they happen.
#[utoipa::path(get, path = paths::EVENTS, tag = "events",
    params(
        ("id" = String, Path, description = "the task"),
        EventQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "the cursor to resume after"),
    ),
    responses(
        (status = 200, content((EventPage = "application/json"), (String = "text/event-stream"))),
    ))]
pub(crate) async fn events(
    State(api): State<Api>,
    On { base, caller, .. }: On<needs::View>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Fail> {
    let query: EventQuery = extract::query(&uri)?;
    let last = headers.get(LAST_EVENT_ID).map(|value| value.to_str().unwrap_or("?"));
    let after = match last.or(query.after.as_deref()) {
        Some(text) => read_cursor(base.task.as_str(), text).ok_or_else(Fail::bad_cursor)?,
        None => 0,
    };
    if after > base.header.next_event {
        return Err(Fail::bad_cursor());
    }
    if wants_stream(&headers) {
        let wait = Wait::begin(&api, None)?;
        let reader = Reader { api, task: base.task, next: after };
        return Ok(stream_of(reader, wait, caller).into_response());
    }
    let limit = extract::page_limit(query.limit)?;
    let longest = extract::wait(query.wait_ms)?;
    let mut reader = Reader { api, task: base.task, next: after };
    page(&mut reader, &caller, limit, longest).await.map(IntoResponse::into_response)
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accept.flat_map(|text| text.split(',')).any(|part| {
        part.split(';').next().is_some_and(|name| name.trim().eq_ignore_ascii_case(EVENT_STREAM))
    })
}

/// Reads a task's log from a place on.
struct Reader {
    api: Api,
    task: TaskId,
    /// The number of the next event.
    next: u64,
}

/// What a look at the log gave.
enum Look {
    Events(Vec<Event>),
    /// Nothing yet.
    Nothing,
    /// Nothing, and nothing will come.
    Ended,
}

impl Reader {
    async fn look(&mut self, limit: usize) -> Result<Look, Fail> {
        let scope = Scope::Task(self.task.clone());
        let Some(header) = self.header().await? else { return Ok(Look::Ended) };
        if header.next_event <= self.next {
            return Ok(if header.state.is_final() { Look::Ended } else { Look::Nothing });
        }
        let stored = self.api.engine().store().events(&scope, self.next, limit).await?;
        let mut events = Vec::with_capacity(stored.len());
        for bytes in stored {
            let event = decode_event(self.next, &bytes)
                .map_err(|error| StoreError::Corrupt(error.to_string()))?;
            events.push(event.event);
            self.next += 1;
        }
        Ok(if events.is_empty() { Look::Nothing } else { Look::Events(events) })
    }

    async fn header(&self) -> Result<Option<Header>, Fail> {
        let keys = vec![Key::Header];
        let found = reads::of_task(self.api.engine(), &self.task, keys).await?;
        Ok(match found.into_values().next() {
            Some(Record::Header(header)) => Some(header),
            _ => None,
        })
    }
}

/// Says whether an event ends its task. What may follow only tidies up.
fn is_end(event: &Event) -> bool {
    matches!(event.change, Change::TaskEnded { .. } | Change::EntriesCleared)
}

async fn page(
    reader: &mut Reader,
    caller: &Caller,
    limit: usize,
    longest: Duration,
) -> Result<Json<EventPage>, Fail> {
    let api = reader.api.clone();
    let mut wait = match longest.is_zero() {
        true => None,
        false => Some(Wait::begin(&api, Some(longest))?),
    };
    let (events, ended) = loop {
        let looked = reader.look(limit).await?;
        if wait.is_some() {
            // Behind the look: whoever may see the task now could see all that was found.
            demand_still_sees(&api, caller, &reader.task).await?;
        }
        match looked {
            Look::Events(events) => {
                let ended = events.last().is_some_and(is_end);
                break (events, ended);
            }
            Look::Ended => break (Vec::new(), true),
            Look::Nothing => {}
        }
        let again = match &mut wait {
            Some(wait) => wait.again(&api, Some(&reader.task)).await,
            None => false,
        };
        if !again {
            break (Vec::new(), false);
        }
    };
    Ok(Json(EventPage {
        events: events.iter().map(present::event::view).collect(),
        next: cursor(reader.task.as_str(), reader.next),
        ended,
    }))
}

/// What a stream still has to say.
struct Telling {
    reader: Reader,
    wait: Wait,
    caller: Caller,
    /// When it was last looked whether the caller may still see the task.
    looked: Duration,
    ready: VecDeque<Message>,
    ended: bool,
}

fn stream_of(
    reader: Reader,
    wait: Wait,
    caller: Caller,
) -> Sse<impl Stream<Item = Result<Message, Infallible>>> {
    let hello = Message::default().retry(RETRY).comment("events of one task, in order");
    let looked = reader.api.engine().clock().monotonic();
    let ready = VecDeque::from([hello]);
    let state = Telling { reader, wait, caller, looked, ready, ended: false };
    let messages = stream::unfold(state, |mut state| async move {
        loop {
            if let Some(message) = state.ready.pop_front() {
                return Some((Ok(message), state));
            }
            if state.ended || !state.fill().await {
                return None;
            }
        }
    });
    let silence = Duration::from_millis(SSE_SILENCE_MS_MAX);
    Sse::new(messages).keep_alive(KeepAlive::new().interval(silence))
}

impl Telling {
    /// Waits for more to say; false when the connection should end. The client comes back with
    /// its last id, be it that the process ends or that the store did not answer.
    async fn fill(&mut self) -> bool {
        let api = self.reader.api.clone();
        loop {
            let looked = match self.reader.look(READ_AT_ONCE).await {
                Ok(looked) => looked,
                Err(fail) => {
                    // A store that is away would break off every stream: the engine warns once.
                    tracing::debug!(task = %self.reader.task, ?fail, "a stream broke off");
                    return false;
                }
            };
            if !self.may_go_on(&api, &looked).await {
                return false;
            }
            match looked {
                Look::Events(events) => {
                    self.take(&events);
                    return true;
                }
                Look::Ended => {
                    self.end();
                    return true;
                }
                Look::Nothing => {}
            }
            if !self.wait.again(&api, Some(&self.reader.task)).await {
                return false;
            }
        }
    }

    /// Says whether the caller may still see the task: a token is revoked or expires, a task
    /// changes hands. It is looked before anything is told, and every few seconds.
    async fn may_go_on(&mut self, api: &Api, found: &Look) -> bool {
        let now = api.engine().clock().monotonic();
        let nothing = matches!(found, Look::Nothing);
        if nothing && now.saturating_sub(self.looked) < LOOK_AGAIN {
            return true;
        }
        self.looked = now;
        still_sees(api, &self.caller, &self.reader.task).await.unwrap_or(false)
    }

    fn take(&mut self, events: &[Event]) {
        for event in events {
            let view = present::event::view(event);
            let data = serde_json::to_string(&view).expect("events are plain data");
            let id = cursor(self.reader.task.as_str(), view.sequence);
            self.ready.push_back(Message::default().id(id).event(view.kind).data(data));
        }
        if events.last().is_some_and(is_end) {
            self.end();
        }
    }

    fn end(&mut self) {
        self.ready.push_back(Message::default().event(SSE_ENDED).data("{}"));
        self.ended = true;
    }
}

//! A task's events as they happen, without gaps, over connections that may break.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Response, Url};
use standfast_protocol::events::{EventPage, EventView, SSE_ENDED, SSE_SILENCE_MS_MAX};
use standfast_protocol::headers::{EVENT_STREAM, LAST_EVENT_ID};
use standfast_protocol::paths::{self, fill};

use crate::backoff::Backoff;
use crate::error::Error;
use crate::http::{Http, Repeat, read_json, retry_after, unexpected, unreachable_error};
use crate::sse::{Message, Parser};

/// Longest silence before a stream counts as broken: the server speaks at least every
/// [`SSE_SILENCE_MS_MAX`].
const SILENCE_MAX: Duration = Duration::from_millis(SSE_SILENCE_MS_MAX * 3);
/// Asked for in case the server, or a proxy before it, answers with pages.
const WAIT_MS: u64 = 20_000;

/// The events of one task. [`EventStream::next`] gives them one by one.
///
/// The stream is asked for as Server-Sent Events and resumed with `Last-Event-ID`; a server
/// that answers with pages is asked for the next page instead.
pub struct EventStream {
    http: Http,
    task: String,
    cursor: Option<String>,
    sequence: u64,
    ready: VecDeque<(Option<String>, EventView)>,
    open: Option<OpenStream>,
    ended: bool,
    backoff: Backoff,
    failing_since: Option<Instant>,
}

struct OpenStream {
    url: Url,
    chunks: BoxStream<'static, reqwest::Result<Bytes>>,
    parser: Parser,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream")
            .field("task", &self.task)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

impl EventStream {
    pub(crate) fn new(http: Http, task: String, after: Option<String>) -> Self {
        Self {
            http,
            task,
            cursor: after,
            sequence: 0,
            ready: VecDeque::new(),
            open: None,
            ended: false,
            backoff: Backoff::new(),
            failing_since: None,
        }
    }

    /// Gives the cursor after the last event given, to go on from in another process.
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// Gives the next event, or nothing once the task has ended and all were given.
    ///
    /// May be dropped while it waits: no event is lost by that.
    pub async fn next(&mut self) -> Result<Option<EventView>, Error> {
        loop {
            while let Some((cursor, event)) = self.ready.pop_front() {
                if cursor.is_some() {
                    self.cursor = cursor;
                }
                if event.sequence > self.sequence {
                    self.sequence = event.sequence;
                    return Ok(Some(event));
                }
            }
            if self.ended {
                return Ok(None);
            }
            match self.fill().await {
                Ok(()) => self.failing_since = None,
                Err(error) => self.bear(error).await?,
            }
        }
    }

    /// Takes in a chunk of the open stream, or opens one.
    async fn fill(&mut self) -> Result<(), Error> {
        let Some(open) = &mut self.open else { return self.connect().await };
        let chunk = tokio::time::timeout(SILENCE_MAX, open.chunks.next()).await;
        let messages = match chunk {
            Ok(Some(Ok(chunk))) => open.parser.push(&chunk).map_err(|_| {
                unexpected(&open.url, "a message of the stream is longer than 4 MiB")
            })?,
            Ok(Some(Err(source))) => return Err(unreachable_error(&open.url, source)),
            Ok(None) | Err(_) => {
                self.open = None;
                tokio::time::sleep(self.backoff.pause(None)).await;
                return Ok(());
            }
        };
        let url = open.url.clone();
        messages.into_iter().try_for_each(|message| self.take(&url, message))
    }

    async fn connect(&mut self) -> Result<(), Error> {
        let path = fill(paths::EVENTS, &[&self.task]);
        let mut call = self.http.call(Method::GET, &path).repeat(Repeat::Never).timeout(None);
        call = call.header("accept", EVENT_STREAM)?.query([("wait_ms", WAIT_MS.to_string())]);
        if let Some(cursor) = &self.cursor {
            call = call.header(LAST_EVENT_ID, cursor)?.query([("after", cursor.clone())]);
        }
        let response = tokio::time::timeout(SILENCE_MAX, self.http.send(call)).await;
        let response = response.map_err(|_| Error::Silent { url: path })??;
        if is_event_stream(&response) {
            let url = response.url().clone();
            let chunks = response.bytes_stream().boxed();
            self.open = Some(OpenStream { url, chunks, parser: Parser::default() });
            return Ok(());
        }
        let url = response.url().clone();
        let page: EventPage = read_json(&url, response).await?;
        self.ended = page.ended;
        let count = page.events.len();
        if count > 0 {
            self.backoff.reset();
        } else if !self.ended {
            tokio::time::sleep(self.backoff.pause(None)).await;
        }
        for (index, event) in page.events.into_iter().enumerate() {
            let cursor = (index + 1 == count).then(|| page.next.clone());
            self.ready.push_back((cursor, event));
        }
        Ok(())
    }

    fn take(&mut self, url: &Url, message: Message) -> Result<(), Error> {
        if message.event == SSE_ENDED {
            self.ended = true;
            self.open = None;
            return Ok(());
        }
        let event = serde_json::from_str(&message.data)
            .map_err(|error| unexpected(url, format!("an event: {error}")))?;
        self.backoff.reset();
        self.ready.push_back((Some(message.id), event));
        Ok(())
    }

    /// Waits before the next try, unless the error will not pass or patience has ended.
    async fn bear(&mut self, error: Error) -> Result<(), Error> {
        self.open = None;
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if !error.is_passing() || since.elapsed() > self.http.patience() {
            return Err(error);
        }
        let pause = self.backoff.pause(retry_after(&error));
        tracing::debug!(%error, task = self.task, "following the events again");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

fn is_event_stream(response: &Response) -> bool {
    let header = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    header.is_some_and(|value| value.starts_with(EVENT_STREAM))
}

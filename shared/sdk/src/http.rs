//! One way to call the api: address, token, retries, problems.

use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use reqwest::{Method, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use standfast_protocol::headers::{AS, JSON};
use standfast_protocol::problem::Problem;

use crate::backoff::Backoff;
use crate::error::{Error, passing_status};

/// How long a call is tried again when the caller says nothing else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for an answer, on top of the wait that a request asks for.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest pause taken from `Retry-After`: a wrong clock there must not stop us for a day.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// When a call may be sent a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Whenever no answer came: twice is once.
    Freely,
    /// Only if the first was surely not taken: the connection failed, or the api said so.
    IfNotTaken,
    /// Not here: the caller repeats it, or nobody does.
    Never,
}

/// A call to the api.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Bytes>,
    timeout: Option<Duration>,
    repeat: Repeat,
}

impl Call {
    /// Adds a header; refuses a value that cannot be one.
    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Result<Self, Error> {
        let value = HeaderValue::from_str(value)
            .map_err(|_| Error::Setup(format!("send `{name}`: not visible ASCII")))?;
        self.headers.insert(HeaderName::from_static(name), value);
        Ok(self)
    }

    /// Adds query parameters.
    pub(crate) fn query<K: AsRef<str>>(
        mut self,
        pairs: impl IntoIterator<Item = (K, String)>,
    ) -> Self {
        let mut pairs = pairs.into_iter().peekable();
        if pairs.peek().is_some() {
            self.url.query_pairs_mut().extend_pairs(pairs);
        }
        self
    }

    /// Sets a JSON body.
    pub(crate) fn json(self, body: &impl Serialize) -> Result<Self, Error> {
        let body = Bytes::from(serde_json::to_vec(body)?);
        Ok(self.body(JSON, body))
    }

    /// Sets a body of any type.
    pub(crate) fn body(mut self, media_type: &'static str, body: Bytes) -> Self {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        self.body = Some(body);
        self
    }

    /// Says when the call may be sent again.
    pub(crate) fn repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }

    /// Sets the longest wait for the whole answer; `None` for a stream without end.
    pub(crate) fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }
}

/// The address of an api, with a token and a pool of connections.
#[derive(Clone)]
pub(crate) struct Http {
    base: Url,
    /// None where the token is empty: an api that is open on this machine needs none.
    token: Option<HeaderValue>,
    client: reqwest::Client,
    patience: Duration,
    /// For whom the caller acts, if not for itself.
    acting_as: Option<HeaderValue>,
}

/// Leaves out the token.
impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

impl Http {
    pub(crate) fn new(url: &str, token: &str) -> Result<Self, Error> {
        let setup = |why: &str| Error::Setup(format!("use the address `{url}`: {why}"));
        let mut base = Url::parse(url).map_err(|error| setup(&error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(setup("expected http:// or https:// and a host"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(Error::Setup("use an address with a user in it: give a token".to_owned()));
        }
        base.set_query(None);
        base.set_fragment(None);
        let token = bearer(token)?;
        let client = new_client(&base)?;
        Ok(Self { base, token, client, patience: PATIENCE, acting_as: None })
    }

    /// Makes a twin with connections of its own. A connection is driven by the runtime that
    /// opened it, so a runtime that must not wait for another needs its own pool.
    pub(crate) fn twin(&self) -> Result<Self, Error> {
        Ok(Self { client: new_client(&self.base)?, ..self.clone() })
    }

    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    pub(crate) fn act_as(&mut self, principal: &str) -> Result<(), Error> {
        let value = HeaderValue::from_str(principal)
            .map_err(|_| Error::Setup(format!("act as `{principal}`: not visible ASCII")))?;
        self.acting_as = Some(value);
        Ok(())
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Begins a call to a path of this api, which may carry a query.
    pub(crate) fn call(&self, method: Method, path: &str) -> Call {
        let mut url = self.base.clone();
        let (path, query) = path.split_once('?').map_or((path, None), |(p, q)| (p, Some(q)));
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url.set_query(query);
        let repeat = if method == Method::GET { Repeat::Freely } else { Repeat::Never };
        let timeout = Some(ANSWER_TIMEOUT);
        Call { method, url, headers: HeaderMap::new(), body: None, timeout, repeat }
    }

    /// Sends a call until it is answered, refused or patience ends.
    pub(crate) async fn send(&self, call: Call) -> Result<Response, Error> {
        let began = Instant::now();
        let mut backoff = Backoff::new();
        loop {
            let error = match self.send_once(&call).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let pause = backoff.pause(retry_after(&error));
            if !may_repeat(call.repeat, &error) || began.elapsed() + pause > self.patience {
                return Err(error);
            }
            tracing::debug!(%error, pause_ms = pause.as_millis(), "calling the api again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends a call and reads its JSON answer.
    pub(crate) async fn fetch<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let url = call.url.clone();
        let response = self.send(call).await?;
        read_json(&url, response).await
    }

    async fn send_once(&self, call: &Call) -> Result<Response, Error> {
        let mut request = self.client.request(call.method.clone(), call.url.clone());
        request = request.headers(call.headers.clone());
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        if let Some(principal) = &self.acting_as {
            request = request.header(AS, principal.clone());
        }
        if let Some(body) = &call.body {
            request = request.body(body.clone());
        }
        if let Some(timeout) = call.timeout {
            request = request.timeout(timeout);
        }
        let response =
            request.send().await.map_err(|source| unreachable_error(&call.url, source))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(read_problem(&call.url, response).await)
    }
}

/// Makes the header's value; none of an empty token.
fn bearer(token: &str) -> Result<Option<HeaderValue>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| Error::Setup("use the token: not visible ASCII".to_owned()))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn new_client(base: &Url) -> Result<reqwest::Client, Error> {
    let mut builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("standfast-sdk/", env!("CARGO_PKG_VERSION")));
    let host = base.host_str().unwrap_or_default();
    if matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
        // A proxy cannot reach this machine's own addresses.
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| Error::Setup(format!("make an HTTP client: {error}")))
}

/// Reads the JSON body of an answer.
pub(crate) async fn read_json<T: DeserializeOwned>(
    url: &Url,
    response: Response,
) -> Result<T, Error> {
    let bytes = response.bytes().await.map_err(|source| unreachable_error(url, source))?;
    serde_json::from_slice(&bytes).map_err(|error| unexpected(url, error.to_string()))
}

pub(crate) fn unexpected(url: &Url, why: impl Into<String>) -> Error {
    Error::Unexpected { url: url.to_string(), why: why.into() }
}

pub(crate) fn unreachable_error(url: &Url, source: reqwest::Error) -> Error {
    Error::Unreachable { url: url.to_string(), source: source.without_url() }
}

/// Makes an error of an answer that is not a success. What is not a problem of ours, from a
/// proxy in between for example, becomes one with the status as its title.
async fn read_problem(url: &Url, response: Response) -> Error {
    let status = response.status();
    let header = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after_ms = header.and_then(|text| text.parse::<u64>().ok()).map(|s| s * 1_000);
    let bytes = match response.bytes().await {
        Ok(bytes) => bytes,
        Err(source) => return unreachable_error(url, source),
    };
    let mut problem = serde_json::from_slice(&bytes).unwrap_or_else(|_| Problem {
        kind: "about:blank".to_owned(),
        title: status.to_string(),
        status: status.as_u16(),
        detail: format!("{url} answered {status} without saying why"),
        errors: Vec::new(),
        retry_after_ms: None,
        stop_plan: None,
    });
    problem.retry_after_ms = problem.retry_after_ms.or(retry_after_ms);
    Error::Problem(Box::new(problem))
}

/// Gives the pause that the server asked for.
pub(crate) fn retry_after(error: &Error) -> Option<Duration> {
    match error {
        Error::Problem(problem) => {
            problem.retry_after_ms.map(|ms| Duration::from_millis(ms).min(RETRY_AFTER_MAX))
        }
        _ => None,
    }
}

fn may_repeat(repeat: Repeat, error: &Error) -> bool {
    match (repeat, error) {
        (Repeat::Freely, Error::Problem(problem)) => passing_status(problem.status),
        (Repeat::Freely, Error::Unreachable { .. }) => true,
        (Repeat::IfNotTaken, Error::Problem(problem)) => problem.status == 429,
        (Repeat::IfNotTaken, Error::Unreachable { source, .. }) => source.is_connect(),
        (Repeat::Freely | Repeat::IfNotTaken | Repeat::Never, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_used_are_refused() {
        for url in ["", "127.0.0.1:8080", "ftp://x", "http://u:p@x", "unix:/x"] {
            assert!(matches!(Http::new(url, "t"), Err(Error::Setup(_))), "{url}");
        }
        assert!(matches!(Http::new("http://x", "a\nb"), Err(Error::Setup(_))));
    }

    #[test]
    fn a_base_path_and_a_query_are_kept() {
        let http = Http::new("http://x/base/", "t").unwrap();
        let call = http.call(Method::GET, "/v1/a%2Fb?x=1").query([("y", "ä&".to_owned())]);
        assert_eq!(call.url.as_str(), "http://x/base/v1/a%2Fb?x=1&y=%C3%A4%26");
        assert!(!format!("{http:?}").contains("Bearer"));
    }
}

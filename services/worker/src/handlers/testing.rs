//! What the tests of several handlers share.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use standfast_domain::record::EffectClass;
use tokio_util::sync::CancellationToken;

use super::{
    Class, Effect, Failure, Intents, Job, LogLimits, LogSink, MaySend, Pulse, Report, SecretFault,
    Secrets, Success,
};

/// Secrets of a fixed list.
pub(super) struct Fixed(BTreeMap<String, String>);

impl Fixed {
    pub(super) fn new(list: &[(&str, &str)]) -> Arc<Self> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Arc::new(Self(list.iter().map(own).collect()))
    }
}

impl Secrets for Fixed {
    fn resolve(&self, name: &str) -> Result<String, SecretFault> {
        self.0.get(name).cloned().ok_or_else(|| SecretFault::Unknown(name.to_owned()))
    }
}

/// A job in a directory, with a minute of time and two secrets.
pub(crate) fn job(directory: &Path, input: Value) -> Job {
    Job {
        task: "t07-4k9v2mq8r5x1c".to_owned(),
        step: "draft".to_owned(),
        attempt: 3,
        round: 1,
        input,
        directory: directory.to_owned(),
        artifact: None,
        deadline: Duration::from_secs(60),
        cancel: CancellationToken::new(),
        log: LogSink::new(LogLimits::default(), None),
        traceparent: None,
        last_details: None,
        pulse: Pulse::default(),
        secrets: Fixed::new(&[("TOKEN", "hunter2-hunter2"), ("PIN", "8471-2233")]),
        effect: None,
    }
}

/// The time of every sender.
pub(crate) const NOW: Duration = Duration::from_secs(1_000);

/// Intents that are answered as a test says, and counted.
pub(crate) struct Told {
    pub answer: Box<dyn Fn() -> MaySend + Send + Sync>,
    pub asked: AtomicU32,
}

#[async_trait]
impl Intents for Told {
    async fn may_send(&self, _: Duration) -> MaySend {
        self.asked.fetch_add(1, Ordering::SeqCst);
        (self.answer)()
    }

    fn monotonic(&self) -> Duration {
        NOW
    }
}

/// An effect whose intents are answered so.
pub(crate) fn effect(
    class: EffectClass,
    answer: impl Fn() -> MaySend + Send + Sync + 'static,
) -> (Arc<Effect>, Arc<Told>) {
    let told = Arc::new(Told { answer: Box::new(answer), asked: AtomicU32::new(0) });
    (Arc::new(Effect::new(class, "t1/pay/main/1".to_owned(), told.clone())), told)
}

/// The answer that lets an effect be sent.
pub(crate) fn now() -> MaySend {
    MaySend::Before(NOW + Duration::from_secs(10))
}

#[track_caller]
pub(super) fn succeeded(report: Report) -> Success {
    match report {
        Report::Succeeded(success) => success,
        Report::Failed(failure) => panic!("expected success, found {failure:?}"),
    }
}

#[track_caller]
pub(super) fn failed(report: Report, class: Class, part: &str) -> Failure {
    match report {
        Report::Succeeded(success) => panic!("expected {class:?} ({part}), found {success:?}"),
        Report::Failed(failure) => {
            assert_eq!(failure.class, class, "{failure:?}");
            assert!(failure.message.contains(part), "expected `{part}` in {failure:?}");
            failure
        }
    }
}

/// Asserts that the page of the built-in handlers has a row for each of a handler's fields.
pub(super) fn described(handler: &str, fields: &[&str]) {
    let page = include_str!("../../../../docs/HANDLERS.md");
    let start = page.find(&format!("## `{handler}`")).expect("the handler has a part");
    let part = &page[start..];
    let part = part[1..].find("\n## ").map_or(part, |end| &part[..end]);
    for field in fields {
        assert!(part.contains(&format!("\n| `{field}` |")), "`{field}` of {handler} has no row");
    }
}

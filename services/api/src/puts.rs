//! What an attempt leaves while it runs: log text and artifacts.
//!
//! An artifact's bytes go to the blobs, named by their content; a record beside the claim keeps
//! which name they have, until the completion names it. So any api process can take the parts.

use std::collections::BTreeMap;
use std::io::Write;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use standfast_domain::commit::{Commit, CommitId, Guard, Scope};
use standfast_domain::ids::TaskId;
use standfast_domain::outcome::{ARTIFACTS_MAX, Artifact};
use standfast_domain::plan::read::ARTIFACT_BYTES_MAX as NAME_BYTES_MAX;
use standfast_domain::record::{AttemptLog, Key, Record};
use standfast_domain::refusal::Refusal;
use standfast_domain::view::Attempt;
use standfast_engine::ports::{BATCH_MAX, Load};
use standfast_protocol::artifacts::ArtifactView;
use standfast_protocol::claims::{Holder, LogAppend, LogAppended};
use standfast_protocol::headers::PLAIN_TEXT;
use standfast_protocol::limits::{ARTIFACT_BYTES_MAX, ARTIFACTS_PUT_BYTES_MAX, LOG_BYTES_MAX};
use standfast_protocol::paths::{self, fill};
use standfast_protocol::problem::ProblemKind;

use crate::Api;
use crate::auth::{By, needs};
use crate::claims::fence;
use crate::extract::{self, Place, bad_parameter};
use crate::present::log::{append, total};
use crate::problems::Fail;
use crate::reads;

/// How often a write is tried again because the claim was renewed at the same moment.
const TRIES: usize = 16;

/// Appends text to the log of an attempt; what the log has already is not taken twice.
#[utoipa::path(post, path = paths::CLAIM_LOG, tag = "claims", request_body = String,
    params(
        ("task" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
        LogAppend,
    ),
    responses((status = 200, body = LogAppended)))]
pub(crate) async fn log(
    State(api): State<Api>,
    caller: By<needs::Work>,
    place: Place,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<LogAppended>, Fail> {
    let query: LogAppend = extract::query(&uri)?;
    extract::demand_type(&headers, PLAIN_TEXT)?;
    let bytes = extract::bytes(&headers, body, LOG_BYTES_MAX).await?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Fail::invalid("the text is not UTF-8; replace what is not before sending"))?;
    let holder = (query.worker.as_str(), query.attempt, query.epoch);
    let (task, at) = fence(&api, &caller, &place, holder).await?;
    for _ in 0..TRIES {
        let key = Key::Log(at.step.clone(), at.attempt);
        let found = reads::of_task(api.engine(), &task, vec![key]).await?;
        let log = match found.into_values().next() {
            Some(Record::Log(log)) => log,
            _ => AttemptLog::default(),
        };
        let before = total(&log);
        let log = append(log, query.offset, &text).map_err(|end| {
            let offset = query.offset;
            let detail = format!("the log ends at byte {end}, the text begins at {offset}");
            Fail::new(ProblemKind::NotApplicable, detail)
        })?;
        let next_offset = total(&log);
        if next_offset == before || api.claims().append_log(&task, &at, log).await? {
            return Ok(Json(LogAppended { next_offset }));
        }
    }
    Err(Fail::unavailable("the claim changes all the time"))
}

/// Takes the bytes of an artifact of a running attempt.
#[utoipa::path(put, path = paths::CLAIM_ARTIFACT, tag = "claims",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(
        ("task" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
        ("name" = String, Path, description = "the artifact, encoded as one segment"),
        Holder,
    ),
    responses((status = 200, body = ArtifactView)))]
pub(crate) async fn artifact(
    State(api): State<Api>,
    caller: By<needs::Work>,
    place: Place,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ArtifactView>, Fail> {
    let query: Holder = extract::query(&uri)?;
    check_path(place.name())?;
    let holder = (query.worker.as_str(), query.attempt, query.epoch);
    let (task, at) = fence(&api, &caller, &place, holder).await?;
    // Before the bytes are read; they are counted once it is known how many they are.
    held(&api, &task, &at).await?.1.with(place.name(), "", 0)?;
    let mut file = tempfile::NamedTempFile::new().map_err(|error| Fail::internal(&error))?;
    extract::pieces(&headers, body, ARTIFACT_BYTES_MAX, |piece| {
        file.write_all(&piece).map_err(|error| Fail::internal(&error))
    })
    .await?;
    let kept = api.blobs().put_file(&task, file.path()).await?;
    let artifact = Artifact {
        name: place.name().to_owned(),
        blob: kept.name,
        bytes: kept.bytes,
        sha256: kept.sha256,
        directory: false,
    };
    remember(&api, &task, &at, &artifact).await?;
    Ok(Json(ArtifactView {
        step: at.step.to_string(),
        url: fill(paths::ARTIFACT, &[task.as_str(), at.step.as_str(), &artifact.name]),
        name: artifact.name,
        bytes: artifact.bytes,
        sha256: artifact.sha256,
    }))
}

/// Checks an artifact's name by the rule of plans: a path that stays within its directory.
fn check_path(name: &str) -> Result<(), Fail> {
    let inside = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if inside && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let message = format!(
        "expected a relative path of at most {NAME_BYTES_MAX} bytes, such as `out/notes.md`, \
         without `.`, `..` and control characters"
    );
    Err(bad_parameter("name", message))
}

fn field(at: &Attempt, name: &str) -> String {
    format!("put/{}/{}/{name}", at.step, at.attempt)
}

/// What an attempt has put so far, in a record of its own.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Puts {
    /// Names and the SHA-256 of what each means now.
    names: BTreeMap<String, String>,
    /// Bytes of all puts but repeated ones.
    bytes: u64,
    #[serde(skip)]
    version: Option<CommitId>,
}

impl Puts {
    fn field(at: &Attempt) -> String {
        format!("puts/{}/{}", at.step, at.attempt)
    }

    /// Counts one more; what is repeated, as after a lost answer, is counted once.
    fn with(mut self, name: &str, sha256: &str, bytes: u64) -> Result<Self, Fail> {
        let refuse = |detail| Err(Fail::new(ProblemKind::TooLarge, detail));
        if !self.names.contains_key(name) && self.names.len() >= ARTIFACTS_MAX {
            return refuse(format!("an attempt may put at most {ARTIFACTS_MAX} artifacts"));
        }
        if self.names.get(name).is_some_and(|before| before == sha256) {
            return Ok(self);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > ARTIFACTS_PUT_BYTES_MAX {
            return refuse(format!(
                "an attempt may put at most {ARTIFACTS_PUT_BYTES_MAX} bytes of artifacts in all, \
                 those put over included; with this one it would be {}",
                self.bytes
            ));
        }
        self.names.insert(name.to_owned(), sha256.to_owned());
        Ok(self)
    }
}

/// Reads the claim's version and what was put; an attempt that is not held any more is fenced.
async fn held(api: &Api, task: &TaskId, at: &Attempt) -> Result<(CommitId, Puts), Fail> {
    let key = Key::Claim(at.step.clone());
    let fields = vec![key.field(), Puts::field(at)];
    let load = Load { scope: Scope::Task(task.clone()), fields };
    let (_, records) = api.engine().store().load(&[load]).await?;
    let mut records = records.into_iter().flatten();
    let (claim, puts) = (records.next().flatten(), records.next().flatten());
    let fenced = || Refusal::Fenced { step: at.step.clone(), attempt: at.attempt };
    let stored = claim.ok_or_else(fenced)?;
    match Record::decode(&key, &stored.bytes) {
        Ok(Record::Claim(claim))
            if claim.attempt == at.attempt
                && claim.worker == at.worker
                && claim.epoch == at.epoch => {}
        _ => return Err(fenced().into()),
    }
    let puts = match puts {
        Some(puts) => {
            let read: Puts =
                serde_json::from_slice(&puts.bytes).map_err(|error| Fail::internal(&error))?;
            Puts { version: Some(puts.version), ..read }
        }
        None => Puts::default(),
    };
    Ok((stored.version, puts))
}

/// Keeps which blob a name means, as long as the attempt is held.
async fn remember(api: &Api, task: &TaskId, at: &Attempt, artifact: &Artifact) -> Result<(), Fail> {
    let bytes = serde_json::to_vec(artifact).expect("plain data");
    for _ in 0..TRIES {
        let (claim, before) = held(api, task, at).await?;
        let guard = |field, version| Guard { field, version };
        let guards = vec![
            guard(Key::Claim(at.step.clone()).field(), Some(claim)),
            guard(Puts::field(at), before.version),
        ];
        let puts = before.with(&artifact.name, &artifact.sha256, artifact.bytes)?;
        let puts = serde_json::to_vec(&puts).expect("plain data");
        let commit = Commit {
            id: api.engine().commit_id(),
            scope: Scope::Task(task.clone()),
            guards,
            writes: vec![
                (field(at, &artifact.name), Some(bytes.clone())),
                (Puts::field(at), Some(puts)),
            ],
            first_event: 0,
            events: Vec::new(),
            indexes: Vec::new(),
            returns: Vec::new(),
        };
        if api.engine().commit_raw(commit).await? {
            return Ok(());
        }
    }
    Err(Fail::unavailable("the claim changes all the time"))
}

/// Gives the artifacts that a completion names. The one that the plan expects must be there.
pub(crate) async fn named(
    api: &Api,
    task: &TaskId,
    at: &Attempt,
    names: Vec<String>,
) -> Result<Vec<Artifact>, Fail> {
    let pointer = "/outcome/artifacts";
    if names.len() > ARTIFACTS_MAX.min(BATCH_MAX) {
        return Err(bad_parameter(pointer, format!("expected at most {ARTIFACTS_MAX}")));
    }
    let definition = reads::definition(api.engine(), task, &at.step).await?;
    if let Some(expected) = &definition.plan.artifact
        && !names.contains(expected)
    {
        let message = format!("the plan expects `{expected}`: put it and name it");
        return Err(bad_parameter(pointer, message));
    }
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let fields = names.iter().map(|name| field(at, name)).collect();
    let load = Load { scope: Scope::Task(task.clone()), fields };
    let (_, records) = api.engine().store().load(&[load]).await?;
    let mut artifacts = Vec::with_capacity(names.len());
    for (number, (name, stored)) in names.iter().zip(records.into_iter().flatten()).enumerate() {
        let artifact = stored.and_then(|stored| serde_json::from_slice(&stored.bytes).ok());
        let missing =
            || bad_parameter(&format!("{pointer}/{number}"), format!("`{name}` was not put"));
        artifacts.push(artifact.ok_or_else(missing)?);
    }
    Ok(artifacts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_puts_so_many_artifacts_and_bytes_and_no_more() {
        let put = |puts: Puts, name: &str, bytes| puts.with(name, &format!("{name}{bytes}"), bytes);
        let mut puts = Puts::default();
        for number in 0..ARTIFACTS_MAX {
            puts = put(puts, &number.to_string(), 1).unwrap();
        }
        let clone = |puts: &Puts| Puts { names: puts.names.clone(), ..Puts::default() };
        let fault = put(clone(&puts), "more", 1).err().expect("one too many");
        assert!(fault.is(ProblemKind::TooLarge));
        assert!(put(clone(&puts), "7", 2).is_ok(), "a name may be put over");
        let full = put(Puts::default(), "a", ARTIFACTS_PUT_BYTES_MAX).unwrap();
        let full = put(full, "a", ARTIFACTS_PUT_BYTES_MAX).expect("a repeat is counted once");
        assert!(put(full, "a", 1).err().expect("too many").is(ProblemKind::TooLarge));
    }

    #[test]
    fn an_artifact_stays_within_its_directory() {
        for name in ["a", "out/notes.md", "ä b", "a..b"] {
            assert!(check_path(name).is_ok(), "{name}");
        }
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "/a", "a/", "..", "a/../b", "./a", "a\0", "a\nb", &long] {
            assert!(check_path(name).is_err(), "{name:?}");
        }
    }
}

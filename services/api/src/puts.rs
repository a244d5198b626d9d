//! What an attempt leaves while it runs: log text and artifacts.
//!
//! An artifact's bytes go to the blobs, named by their content; a record beside the claim keeps
//! which name they have, until the completion names it. So any api process can take the parts.

use std::io::Write;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use standfast_domain::commit::{Commit, Guard, Scope, StoredRecord};
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
use standfast_protocol::limits::{ARTIFACT_BYTES_MAX, LOG_BYTES_MAX};
use standfast_protocol::paths::{self, fill};
use standfast_protocol::problem::ProblemKind;

use crate::Api;
use crate::auth::Caller;
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
    caller: Caller,
    place: Place,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<LogAppended>, Fail> {
    caller.demand_worker()?;
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
    caller: Caller,
    place: Place,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ArtifactView>, Fail> {
    caller.demand_worker()?;
    let query: Holder = extract::query(&uri)?;
    check_path(place.name())?;
    let holder = (query.worker.as_str(), query.attempt, query.epoch);
    let (task, at) = fence(&api, &caller, &place, holder).await?;
    held(&api, &task, &at).await?; // before the bytes are read
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

/// Reads the claim; an attempt that is not held any more is fenced.
async fn held(api: &Api, task: &TaskId, at: &Attempt) -> Result<StoredRecord, Fail> {
    let key = Key::Claim(at.step.clone());
    let load = Load { scope: Scope::Task(task.clone()), fields: vec![key.field()] };
    let (_, records) = api.engine().store().load(&[load]).await?;
    let stored = records.into_iter().flatten().next().flatten();
    let claim = stored.as_ref().and_then(|stored| Record::decode(&key, &stored.bytes).ok());
    match (stored, claim) {
        (Some(stored), Some(Record::Claim(claim)))
            if claim.attempt == at.attempt
                && claim.worker == at.worker
                && claim.epoch == at.epoch =>
        {
            Ok(stored)
        }
        _ => Err(Refusal::Fenced { step: at.step.clone(), attempt: at.attempt }.into()),
    }
}

/// Keeps which blob a name means, as long as the attempt is held.
async fn remember(api: &Api, task: &TaskId, at: &Attempt, artifact: &Artifact) -> Result<(), Fail> {
    let bytes = serde_json::to_vec(artifact).expect("plain data");
    for _ in 0..TRIES {
        let claim = held(api, task, at).await?;
        let field_name = Key::Claim(at.step.clone()).field();
        let commit = Commit {
            id: api.engine().commit_id(),
            scope: Scope::Task(task.clone()),
            guards: vec![Guard { field: field_name, version: Some(claim.version) }],
            writes: vec![(field(at, &artifact.name), Some(bytes.clone()))],
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

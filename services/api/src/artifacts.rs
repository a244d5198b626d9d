//! Files that steps left: the list of them, and their bytes.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::outcome::Artifact;
use standfast_domain::record::{Key, Record};
use standfast_domain::rights::Right;
use standfast_protocol::artifacts::{ArtifactPage, ArtifactView};
use standfast_protocol::headers::OCTETS;
use standfast_protocol::paths;
use utoipa::IntoParams;

use crate::auth::{AnyToken, Caller, On, needs};
use crate::extract::{self, Place};
use crate::problems::Fail;
use crate::reads::{self, Base};
use crate::{Api, present};

/// Lists the artifacts of a task's settled steps.
#[utoipa::path(get, path = paths::ARTIFACTS, tag = "artifacts",
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = ArtifactPage)))]
pub(crate) async fn list(
    State(api): State<Api>,
    On { base, .. }: On<needs::View>,
) -> Result<Json<ArtifactPage>, Fail> {
    let mut artifacts = all(&api, &base).await?;
    artifacts.sort_by(|a, b| (&a.step, &a.name).cmp(&(&b.step, &b.name)));
    Ok(Json(ArtifactPage { artifacts }))
}

/// Reads all artifacts of a task, in the order of the plan. Bounded by a plan's steps.
pub(crate) async fn all(api: &Api, base: &Base) -> Result<Vec<ArtifactView>, Fail> {
    let mut views = Vec::new();
    if base.header.succeeded == 0 {
        return Ok(views);
    }
    for chunk in 0..base.header.order_chunks {
        let key = Key::Order(chunk);
        let mut found = reads::of_task(api.engine(), &base.task, vec![key.clone()]).await?;
        let Some(Record::Names(names)) = found.remove(&key) else { continue };
        let keys = names.iter().cloned().map(Key::Artifacts).collect();
        let mut found = reads::of_task(api.engine(), &base.task, keys).await?;
        for step in names {
            if let Some(Record::Artifacts(artifacts)) = found.remove(&Key::Artifacts(step.clone()))
            {
                let each = artifacts.iter();
                views.extend(each.map(|found| present::step::artifact(base, &step, found)));
            }
        }
    }
    Ok(views)
}

/// Query of an artifact's bytes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DownloadQuery {
    /// For workers: the step, held by the caller, that reads the artifact as its input.
    #[serde(default, rename = "for")]
    reader: Option<String>,
}

/// Gives the bytes of an artifact, always as a file to keep.
#[utoipa::path(get, path = paths::ARTIFACT, tag = "artifacts",
    params(
        ("id" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
        ("name" = String, Path, description = "the artifact, encoded as one segment"),
        DownloadQuery,
    ),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub(crate) async fn download(
    State(api): State<Api>,
    AnyToken(caller): AnyToken,
    place: Place,
    uri: Uri,
) -> Result<Response, Fail> {
    let query: DownloadQuery = extract::query(&uri)?;
    let (task, step) = (place.task()?, place.step()?);
    match &query.reader {
        Some(reader) if caller.identity.has(Right::Work) => {
            demand_input(&api, &caller, &task, &step, reader).await?;
        }
        Some(_) | None => {
            On::<needs::View>::find(&api, caller, task.clone()).await?;
        }
    }
    let key = Key::Artifacts(step.clone());
    let found = reads::of_task(api.engine(), &task, vec![key.clone()]).await?.remove(&key);
    let artifacts = match found {
        Some(Record::Artifacts(artifacts)) => artifacts,
        _ => Vec::new(),
    };
    let missing = || Fail::not_found("failed to find the artifact");
    let artifact =
        artifacts.into_iter().find(|found| found.name == place.name()).ok_or_else(missing)?;
    let stream = api.blobs().stream(&artifact.blob).await?;
    let mut response = Body::from_stream(stream).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(OCTETS));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(artifact.bytes));
    headers.insert(CONTENT_DISPOSITION, disposition(&artifact));
    Ok(response)
}

/// Lets a worker read what the step that it holds needs; all else does not exist for it.
async fn demand_input(
    api: &Api,
    caller: &Caller,
    task: &TaskId,
    step: &StepId,
    reader: &str,
) -> Result<(), Fail> {
    let missing = || Fail::not_found("failed to find the artifact");
    let reader = StepId::new(reader).map_err(|_| missing())?;
    let keys = vec![Key::Claim(reader.clone()), Key::Definition(reader.clone())];
    let mut found = reads::of_task(api.engine(), task, keys).await?;
    let held = match found.remove(&Key::Claim(reader.clone())) {
        Some(Record::Claim(claim)) => caller.is_admin() || claim.principal == *caller.principal(),
        _ => false,
    };
    let count = match found.remove(&Key::Definition(reader.clone())) {
        Some(Record::Definition(definition)) => definition.needs_count,
        _ => 0,
    };
    if held && reads::needs(api.engine(), task, &reader, count.max(1)).await?.contains(step) {
        return Ok(());
    }
    Err(missing())
}

/// Names the file for a browser: its last part, in ASCII, and exactly as RFC 8187 encodes it.
fn disposition(artifact: &Artifact) -> HeaderValue {
    let name = artifact.name.rsplit('/').next().unwrap_or_default();
    let name = if artifact.directory { format!("{name}.tar") } else { name.to_owned() };
    let ascii: String = name
        .chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' | '_' | ' ' => c,
            _ => '_',
        })
        .collect();
    let mut encoded = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    let text = format!("attachment; filename=\"{ascii}\"; filename*=UTF-8''{encoded}");
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_cannot_end_its_header() {
        let artifact = Artifact {
            name: "out/a\"b\r\né.html".into(),
            blob: String::new(),
            bytes: 0,
            sha256: String::new(),
            directory: false,
        };
        assert_eq!(
            disposition(&artifact),
            "attachment; filename=\"a_b___.html\"; filename*=UTF-8''a%22b%0D%0A%C3%A9.html"
        );
    }
}

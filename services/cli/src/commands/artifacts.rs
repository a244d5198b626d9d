//! `standfast artifacts`: what steps left behind.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use standfast_protocol::artifacts::{ArtifactPage, ArtifactView};

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::artifacts;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast artifacts t07-4k9v2mq8r5x1c
  standfast artifacts t07-4k9v2mq8r5x1c RELEASE_NOTES.md --output notes.md")]
pub struct ArtifactsArgs {
    /// The task's id
    task: String,
    /// The artifact to fetch, as NAME or STEP/NAME; without it they are listed
    name: Option<String>,
    /// Write it to this file instead of standard output
    #[arg(long, short, value_name = "PATH", requires = "name")]
    output: Option<PathBuf>,
    /// Print the list, or what is known of the one fetched, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Lists artifacts or fetches one, checked against its digest.
pub async fn execute(args: ArtifactsArgs) -> Result<Exit, Failure> {
    if args.json && args.name.is_some() && args.output.is_none() {
        return Err(Failure::usage("with --json the bytes need a file: add --output PATH"));
    }
    let connection = connect(&args.place, Missing::Refuse).await?;
    let page = connection.client.artifacts(&args.task).await?;
    let Some(name) = &args.name else {
        connection.close().await;
        list(&page, args.json)?;
        return Ok(Exit::Completed);
    };
    let found = find(&page.artifacts, name)?;
    let bytes = connection.client.artifact(&args.task, found).await?;
    connection.close().await;
    match &args.output {
        Some(path) => std::fs::write(path, &bytes).map_err(|error| {
            Failure::new(format!("failed to write {}: {error}", path.display()))
        })?,
        None => std::io::stdout().lock().write_all(&bytes)?,
    }
    if args.json {
        look::json(found)?;
    }
    Ok(Exit::Completed)
}

fn list(page: &ArtifactPage, json: bool) -> Result<(), Failure> {
    if json {
        return look::json(page);
    }
    if page.artifacts.is_empty() {
        look::note("no artifacts");
    }
    look::lines(artifacts::table(&page.artifacts, &Look::of_stdout()))
}

/// Finds the one that is meant; a name that several steps left needs its step.
fn find<'a>(artifacts: &'a [ArtifactView], name: &str) -> Result<&'a ArtifactView, Failure> {
    let whole = |artifact: &ArtifactView| format!("{}/{}", artifact.step, artifact.name);
    let found: Vec<&ArtifactView> = artifacts
        .iter()
        .filter(|artifact| artifact.name == name || whole(artifact) == name)
        .collect();
    match found[..] {
        [one] => Ok(one),
        [] => {
            let names: Vec<String> = artifacts.iter().map(whole).collect();
            let advice = match names.is_empty() {
                true => "the task has none yet".to_owned(),
                false => format!("there are {}", names.join(", ")),
            };
            Err(Failure::new(format!("there is no artifact `{name}`")).and(advice))
        }
        [..] => {
            let names: Vec<String> = found.into_iter().map(whole).collect();
            let message = format!("several steps left an artifact `{name}`");
            Err(Failure::new(message).and(format!("name one of {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::samples::artifact;

    #[test]
    fn an_artifact_is_found_by_name_or_by_step_and_name() {
        let all = [artifact("a", "x", 1), artifact("b", "x", 2), artifact("b", "y/z", 3)];
        assert_eq!(find(&all, "y/z").unwrap().bytes, 3);
        assert_eq!(find(&all, "b/y/z").unwrap().bytes, 3);
        assert_eq!(find(&all, "b/x").unwrap().bytes, 2);
        assert_eq!(find(&all, "x").unwrap_err().lines, ["name one of a/x, b/x"]);
        assert_eq!(find(&all, "n").unwrap_err().lines, ["there are a/x, b/x, b/y/z"]);
    }
}

//! Artifacts as a table.

use standfast_protocol::artifacts::ArtifactView;

use super::quantities::bytes;
use super::table::Table;
use crate::look::Look;

/// Lists artifacts, one a line; the digest is cut on a terminal and whole elsewhere.
pub fn table(artifacts: &[ArtifactView], look: &Look) -> Vec<String> {
    let columns = [("STEP", 28), ("SIZE", 12), ("NAME", 64), ("SHA-256", usize::MAX)];
    let mut table = Table::new(&columns);
    for artifact in artifacts {
        table.row(vec![
            artifact.step.clone(),
            bytes(artifact.bytes),
            artifact.name.clone(),
            artifact.sha256.clone(),
        ]);
    }
    table.lines(look)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::terminal;
    use crate::show::samples;

    #[test]
    fn artifacts_are_listed_by_step() {
        let artifacts = [
            samples::artifact("draft", "RELEASE_NOTES.md", 1_900),
            samples::artifact("draft", "\u{1b}[2Jx", 0),
        ];
        insta::assert_snapshot!(table(&artifacts, &terminal(80)).join("\n"));
    }
}

//! What a program says of its progress, in the file that `STANDFAST_PROGRESS` names.
//!
//! The file is looked at while the program runs. Programs may write it anew or append to it:
//! its last whole line counts, or all of it if it has no line end. A change of it, or of the
//! outcome file, is a sign of life.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use standfast_engine::claims::DETAILS_BYTES_MAX;

use super::super::{Masker, Pulse};

/// How often the files are looked at: soon enough for a person who watches, and a look at a
/// file costs next to nothing.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Bytes at the file's end that are read: the longest line that is kept, and the cut one
/// before it.
const READ_BYTES_MAX: u64 = 4 * DETAILS_BYTES_MAX as u64;

/// The files by which a program shows that it lives.
#[derive(Clone)]
pub(super) struct Progress {
    pub file: PathBuf,
    pub outcome: PathBuf,
    pub masker: Masker,
    pub pulse: Pulse,
}

/// What a file looked like: length, time of change, number.
type Look = (u64, i64, i64, u64);

impl Progress {
    /// Looks again and again, until dropped.
    pub async fn follow(self) {
        let mut before = (None, None);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            before = self.look(before);
        }
    }

    /// Looks once and passes on what has changed; gives how the files look now.
    pub fn look(&self, before: (Option<Look>, Option<Look>)) -> (Option<Look>, Option<Look>) {
        let now = (look(&self.file), look(&self.outcome));
        if now.1 != before.1 {
            self.pulse.beat();
        }
        if now.0 != before.0 {
            match read(&self.file) {
                Ok(Some(line)) => self.pulse.say(self.masked(&line)),
                Ok(None) | Err(_) => self.pulse.beat(), // about to be written, or no such file
            }
        }
        now
    }

    fn masked(&self, line: &str) -> String {
        let line = self.masker.text(line);
        line[..line.floor_char_boundary(DETAILS_BYTES_MAX)].to_owned()
    }
}

fn look(path: &Path) -> Option<Look> {
    let about = std::fs::symlink_metadata(path).ok()?;
    Some((about.len(), about.mtime(), about.mtime_nsec(), about.ino()))
}

/// Opens a file that a program may have written; `None` if it has not. A link or a pipe in its
/// place must neither lead elsewhere nor block.
pub(super) fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).map_err(io::Error::other)?;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.metadata()?.is_file() {
        true => Ok(Some(file)),
        false => Err(io::Error::other("is not a regular file")),
    }
}

/// Reads the last whole line that is not empty.
fn read(path: &Path) -> io::Result<Option<String>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = text.rfind('\n').map_or(&*text, |end| &text[..end]);
    let last = whole.lines().map(str::trim).rfind(|line| !line.is_empty());
    Ok(last.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("progress");
        assert_eq!(read(&path).unwrap(), None);
        let long = format!("{}\nlast\n", "x".repeat(100_000));
        for (text, line) in [
            ("", None),
            ("50 %", Some("50 %")),
            ("one\ntwo\n", Some("two")),
            ("one\ntwo\nthr", Some("two")),
            ("one\n\n \n", Some("one")),
            (" padded \n", Some("padded")),
            (&long, Some("last")),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap().as_deref(), line, "{text:.40}");
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/proc/self/status", &path).unwrap();
        assert!(read(&path).is_err(), "a link leads nowhere");
    }
}

//! Opaque cursors. A cursor holds a place in one list and a digest of what the list is; with
//! any other list, or damaged, it is refused.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use standfast_domain::canonical::digest_hex;

use crate::problems::Fail;

/// Hex digits of the digest that are kept: enough that no mistake goes unnoticed.
const DIGEST_CHARS: usize = 16;

/// Names one list: what it lists and by which filters.
pub(crate) struct List(String);

impl List {
    /// Takes what tells this list from others.
    pub fn new(filters: &serde_json::Value) -> Self {
        Self(digest_hex(filters)[..DIGEST_CHARS].to_owned())
    }

    /// Writes the cursor of a place.
    pub fn cursor(&self, place: &str) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}{place}", self.0))
    }

    /// Reads a cursor of this list.
    pub fn place(&self, cursor: &str) -> Result<String, Fail> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| Fail::bad_cursor())?;
        let text = String::from_utf8(bytes).map_err(|_| Fail::bad_cursor())?;
        text.strip_prefix(&self.0).map(str::to_owned).ok_or_else(Fail::bad_cursor)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cursor_belongs_to_its_list() {
        let (one, two) = (List::new(&json!({"state": "failed"})), List::new(&json!({})));
        let cursor = one.cursor("000|t");
        assert_eq!(one.place(&cursor).unwrap(), "000|t");
        assert!(two.place(&cursor).is_err());
        for text in ["", "x", "!!", &cursor[1..]] {
            assert!(one.place(text).is_err(), "{text}");
        }
    }
}

//! Text from elsewhere, made fit for a terminal: no control characters, known width.
//!
//! A goal, an error or a log line is written by whoever wrote the plan or the program that ran.
//! An escape code in it could move the cursor, hide lines or answer on behalf of the reader, so
//! every control character is replaced by its visible picture.

/// Stands for what was cut away.
const CUT: char = '…';

/// Makes one line: control characters and line ends become visible, nothing is lost.
pub fn plain(text: &str) -> String {
    text.chars().map(|letter| picture(letter).unwrap_or(letter)).collect()
}

/// Like [`plain`], but keeps line feeds and tabs: for logs, which are lines.
pub fn plain_lines(text: &str) -> String {
    let lines = text.replace("\r\n", "\n");
    let keep = |letter| matches!(letter, '\n' | '\t');
    lines
        .chars()
        .map(|letter| picture(letter).filter(|_| !keep(letter)).unwrap_or(letter))
        .collect()
}

/// Gives the visible picture of a character that a terminal would obey or not show; Unicode
/// has pictures for ASCII's. Marks that reorder text are among them: with these a command can
/// be made to read as another one.
fn picture(letter: char) -> Option<char> {
    match letter {
        '\u{00}'..='\u{1f}' => char::from_u32(0x2400 + u32::from(letter)),
        '\u{7f}' => Some('␡'),
        '\u{80}'..='\u{9f}' => Some('\u{fffd}'),
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => {
            Some('\u{fffd}')
        }
        '\u{feff}' | '\u{e0000}'..='\u{e007f}' => Some('\u{fffd}'),
        _ => None,
    }
}

/// Counts the columns of a terminal that a text takes, escape codes excepted.
pub fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// Gives the columns of one character: none for marks that combine, two for wide ones.
///
/// The ranges are the large blocks of Unicode's East Asian Width and of emoji. A character
/// that a terminal takes as wider costs at most a ragged column.
fn columns(letter: char) -> usize {
    match u32::from(letter) {
        0x0300..=0x036f | 0x0483..=0x0489 | 0x0591..=0x05bd | 0x064b..=0x065f => 0,
        0x1ab0..=0x1aff | 0x1dc0..=0x1dff | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
        0xfe20..=0xfe2f | 0xe0100..=0xe01ef => 0,
        0x1100..=0x115f | 0x2e80..=0x303e | 0x3041..=0x33ff | 0x3400..=0x4dbf => 2,
        0x4e00..=0x9fff | 0xa000..=0xa4cf | 0xa960..=0xa97f | 0xac00..=0xd7a3 => 2,
        0xf900..=0xfaff | 0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 => 2,
        0x1f300..=0x1f64f | 0x1f680..=0x1f6ff | 0x1f900..=0x1f9ff | 0x1fa70..=0x1faff => 2,
        0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// Cuts a text to a width, the last column saying that something was cut. Characters stay
/// whole, marks stay with their letter.
pub fn fit(text: &str, width_max: usize) -> String {
    if width(text) <= width_max {
        return text.to_owned();
    }
    let mut fitted = String::new();
    let mut used = 0;
    for letter in text.chars() {
        used += columns(letter);
        if used + 1 > width_max {
            break;
        }
        fitted.push(letter);
    }
    if width_max > 0 {
        fitted.push(CUT);
    }
    fitted
}

/// Fills a text with spaces up to a width, after cutting it to that.
pub fn pad(text: &str, to: usize) -> String {
    let mut padded = fit(text, to);
    padded.extend(std::iter::repeat_n(' ', to.saturating_sub(width(&padded))));
    padded
}

/// Breaks a line between words so that each part fits, further parts indented. A word that is
/// wider stays whole: it may be an id to copy.
pub fn wrap(line: &str, width_max: usize, indent: usize) -> Vec<String> {
    if width(line) <= width_max || width_max <= indent {
        return vec![line.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    let mut current = String::new();
    for word in line.split_inclusive(' ') {
        let full = width(&current) + width(word.trim_end()) > width_max;
        if full && !current.trim().is_empty() {
            lines.push(current.trim_end().to_owned());
            current = " ".repeat(indent);
        }
        current.push_str(word);
    }
    lines.push(current.trim_end().to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(plain("a\u{1b}[31mb\r\n\u{7}\u{9b}2J\u{7f}"), "a␛[31mb␍␊␇\u{fffd}2J␡");
        assert_eq!(plain("rm \u{202e}txt.exe"), "rm \u{fffd}txt.exe");
        assert_eq!(plain("über 日本 ✓"), "über 日本 ✓");
    }

    #[test]
    fn logs_keep_their_lines_and_nothing_else() {
        assert_eq!(plain_lines("a\r\nb\tc\rd\u{1b}c\n"), "a\nb\tc␍d␛c\n");
    }

    #[test]
    fn width_counts_columns() {
        for (text, columns) in [("abc", 3), ("über", 4), ("u\u{308}", 1), ("日本", 4), ("✓", 1)]
        {
            assert_eq!(width(text), columns, "{text}");
        }
    }

    #[test]
    fn a_cut_text_fits_and_says_so() {
        for text in ["release-notes", "日本語のゴール", "u\u{308}u\u{308}u\u{308}u\u{308}"] {
            for width_max in 0..10 {
                let fitted = fit(text, width_max);
                assert!(width(&fitted) <= width_max, "{fitted} in {width_max}");
                assert!(fitted == text || fitted.ends_with(CUT) || width_max == 0);
            }
        }
        assert_eq!(fit("日本語", 4), "日…");
        assert_eq!(pad("日本", 5), "日本 ");
        assert_eq!(pad("abcdef", 4), "abc…");
    }

    #[test]
    fn long_lines_break_between_words() {
        assert_eq!(wrap("2 Why one two three", 13, 6), ["2 Why one two", "      three"]);
        assert_eq!(wrap("a verylongword b", 6, 2), ["a", "  verylongword", "  b"]);
        assert_eq!(wrap("short", 80, 12), ["short"]);
    }
}

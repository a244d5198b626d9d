//! Cases of reading JSON strictly.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn found(text: &str) -> Vec<String> {
    let faults = read(text.as_bytes(), Limits::PLAN).expect_err("a text that is refused");
    faults.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect()
}

fn taken(text: &str) -> Value {
    read(text.as_bytes(), Limits::PLAN).unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

#[test]
fn what_json_can_carry_is_kept_exactly() {
    for text in [
        "[]",
        r#"{"a":[]}"#,
        "9007199254740993",
        "-9223372036854775808",
        "18446744073709551615",
        "1.0",
        "1e308",
        "-0",
        "-0.0",
        "1E-400",
        r#""\u0000""#,
        r#""😀 \ud83d\ude00 \/ \b\f\n\r\t\" \\ é""#,
        " \t\r\n{ \"b\" : 1 , \"a\" : [ true , false , null ] } ",
    ] {
        let right: Value = serde_json::from_str(text).expect("serde reads it");
        assert_eq!(taken(text), right, "{text}");
        assert_eq!(taken(text).to_string(), right.to_string(), "{text}");
    }
}

#[test]
fn duplicate_keys_are_refused_where_they_stand() {
    assert_eq!(found(r#"{"a":{"b/c":1,"b\/c":2}}"#), ["/a/b~1c: duplicate key `b/c`"]);
    assert_eq!(
        found(r#"{"~":1,"\u007e":2,"":3,"":4}"#),
        ["/~0: duplicate key `~`", "/: duplicate key an empty text"]
    );
}

#[test]
fn numbers_beyond_64_bits_are_refused_by_name() {
    assert_eq!(
        found(r#"{"n":[18446744073709551616,-9223372036854775809,1e400,-1.5e999]}"#),
        [
            "/n/0: integer 18446744073709551616 does not fit 64 bits",
            "/n/1: integer -9223372036854775809 does not fit 64 bits",
            "/n/2: number 1e400 does not fit a double",
            "/n/3: number -1.5e999 does not fit a double",
        ]
    );
    let long = "9".repeat(500);
    assert_eq!(found(&long), [format!(": integer {}… does not fit 64 bits", &long[..40])]);
}

#[test]
fn words_that_are_not_json_are_refused_by_name() {
    assert_eq!(
        found(r#"[{"a":[{"b":NaN}]},Infinity,-Infinity,undefined,True,01,1.,.5,+1,1e]"#),
        [
            "/0/a/0/b: expected a finite number, found `NaN`: JSON cannot carry it",
            "/1: expected a finite number, found `Infinity`: JSON cannot carry it",
            "/2: expected a finite number, found `-Infinity`: JSON cannot carry it",
            "/3: expected a value, found `undefined`",
            "/4: expected a value, found `True`",
            "/5: expected a value, found `01`",
            "/6: expected a value, found `1.`",
            "/7: expected a value, found `.5`",
            "/8: expected a value, found `+1`",
            "/9: expected a value, found `1e`",
        ]
    );
}

#[test]
fn strings_that_are_not_text_are_refused_by_name() {
    assert_eq!(
        found(r#"["\ud83d","\ude00x","\ud83d\u0041","\x","\u12g4"]"#),
        [
            "/0: lone surrogate `\\ud83d`: not a character",
            "/1: lone surrogate `\\ude00`: not a character",
            "/2: lone surrogate `\\ud83d`: not a character",
            "/3: expected an escape of JSON, found `\\x`",
            "/4: expected four hex digits after `\\u`",
        ]
    );
    assert_eq!(found("{\"a\":\"x\ny\"}"), ["/a: expected `\\u000a`, found that byte unescaped"]);
}

#[test]
fn a_broken_text_says_where_and_keeps_the_faults_before_it() {
    assert_eq!(
        found("{\"a\":NaN,\n  \"b\" 1}"),
        [
            "/a: expected a finite number, found `NaN`: JSON cannot carry it",
            ": expected `:`, found `1` at line 2, column 7",
        ]
    );
    for (text, right) in [
        ("", ": expected a value, found the end at line 1, column 1"),
        ("[1,]", "/1: expected a value, found `]` at line 1, column 4"),
        ("[1 2]", ": expected `,` or `]`, found `2` at line 1, column 4"),
        ("{\"a\":1,}", ": expected a key in double quotes, found `}` at line 1, column 8"),
        ("[1] x", ": expected the end, found `x` at line 1, column 5"),
        ("[\"é", "/0: expected `\"`, found the end at line 1, column 4"),
        ("\"\\", ": expected an escape, found the end at line 1, column 3"),
        ("\u{feff}[]", ": expected a value, found `\u{feff}` at line 1, column 1"),
    ] {
        assert_eq!(found(text), [right], "{text}");
    }
}

#[test]
fn bytes_that_are_not_utf8_are_refused() {
    let faults = read(b"[\"\xff\"]", Limits::PLAN).expect_err("not UTF-8");
    assert_eq!(faults[0].message, "expected UTF-8, found another byte at offset 2");
}

#[test]
fn a_text_may_be_as_long_as_its_limit() {
    let limits = Limits { bytes_max: 4, depth_max: DEPTH_MAX };
    assert!(read(b"1234", limits).is_ok());
    let faults = read(b"12345", limits).expect_err("too long");
    assert_eq!(faults[0].message, "expected at most 4 bytes, found 5");
}

#[test]
fn nesting_ends_at_its_limit_and_reading_goes_on_behind_it() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read(nested(64).as_bytes(), Limits::PLAN).is_ok());
    let text = format!("{{\"a\":{},\"b\":NaN}}", nested(64));
    let right = format!(
        "/a{}: expected at most 64 arrays and objects within one another, found more",
        "/0".repeat(63)
    );
    assert_eq!(found(&text)[0], right);
    assert!(found(&text)[1].starts_with("/b: "));
    let tricky = format!("{}{{\"]\\\"}}\":\"\\\\\"}}{}", "[".repeat(64), "]".repeat(64));
    assert_eq!(found(&tricky).len(), 1, "{tricky}");
}

#[test]
fn no_nesting_overflows_the_stack() {
    let limits = Limits { bytes_max: usize::MAX, depth_max: usize::MAX };
    for text in ["[".repeat(1_000_000), "{\"a\":".repeat(200_000)] {
        assert!(read(text.as_bytes(), limits).is_err());
    }
}

#[test]
fn values_from_elsewhere_are_checked_for_their_depth() {
    let mut value = json!({"a": 1});
    for _ in 0..63 {
        value = json!([value, 1]);
    }
    assert_eq!(check_value(&value, 64), []);
    let faults = check_value(&json!({"x/y": value}), 64);
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].pointer, format!("/x~1y{}", "/0".repeat(63)));
}

/// What JSON is made of, right and wrong.
const PIECES: [&str; 24] = [
    "[",
    "]",
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    "{\"a\":",
    ",\"b\":",
    "\"a\"",
    "\"b\"",
    "\"\\u0061\"",
    "\"\\ud800\"",
    "\"\\n\"",
    "1",
    "-0",
    "1.5",
    "1e9",
    "01",
    "true",
    "null",
    " ",
    "NaN",
];

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes, Limits::PLAN);
    }

    #[test]
    fn what_it_accepts_serde_accepts_and_reads_the_same(
        pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..14),
    ) {
        let text = pieces.concat();
        let theirs = serde_json::from_str::<Value>(&text);
        match (read(text.as_bytes(), Limits::PLAN), theirs) {
            (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
            (Ok(_), Err(error)) => prop_assert!(false, "serde refuses {}: {}", text, error),
            // Stricter by design in one thing here: equal keys.
            (Err(faults), Ok(_)) => {
                prop_assert!(faults.iter().all(|f| f.message.starts_with("duplicate key")));
            }
            (Err(_), Err(_)) => {}
        }
    }

    #[test]
    fn what_serde_writes_it_reads(
        numbers in prop::collection::vec(any::<f64>(), 0..5),
        texts in prop::collection::btree_map(any::<String>(), any::<i64>(), 0..5),
    ) {
        let value = json!({"numbers": numbers, "texts": texts});
        let text = value.to_string();
        let theirs: Value = serde_json::from_str(&text).expect("serde reads what it wrote");
        prop_assert_eq!(read(text.as_bytes(), Limits::PLAN), Ok(theirs));
    }
}

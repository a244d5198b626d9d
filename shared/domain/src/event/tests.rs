//! Cases of stored events and their chain.

use super::*;

fn log() -> Vec<Vec<u8>> {
    let mut hash = FIRST_HASH.to_owned();
    let mut encoded = Vec::new();
    for number in 0..4 {
        let (at, change) = (Time(7), Change::RootsOpened { chunk: 1 });
        let event = Event { sequence: number, at, actor: Principal::system(), change };
        let (bytes, next) = encode_event(&event, CommitId(number / 2), &hash);
        encoded.push(bytes);
        hash = next;
    }
    encoded
}

/// Gives the number of the first event that does not follow.
fn first_fault(log: &[Vec<u8>]) -> Option<u64> {
    let mut hash = FIRST_HASH.to_owned();
    for (number, bytes) in (0..).zip(log) {
        match verify_event(number, bytes, &hash) {
            Ok(next) => hash = next,
            Err(_) => return Some(number),
        }
    }
    None
}

#[test]
fn an_event_is_stored_without_its_number_and_read_with_that_of_its_place() {
    let log = log();
    let stored = decode_event(3, &log[3]).unwrap();
    assert_eq!((stored.event.sequence, stored.commit), (3, CommitId(1)));
    let text = String::from_utf8(log[3].clone()).unwrap();
    let head = format!("0000000000000001{}1 ", stored.hash);
    let json = r#"{"at":7,"actor":"service:standfast","type":"roots_opened","chunk":1}"#;
    assert_eq!(text, head + json);
}

#[test]
fn events_that_are_swapped_gone_doubled_or_put_in_do_not_follow() {
    let log = log();
    assert_eq!(first_fault(&log), None);
    // All four say the same; only their chain tells them apart.
    for (one, other) in [(0, 1), (1, 2), (0, 3)] {
        let mut swapped = log.clone();
        swapped.swap(one, other);
        assert_eq!(first_fault(&swapped), Some(one as u64));
    }
    for place in 0..3 {
        let mut shorter = log.clone();
        shorter.remove(place);
        assert_eq!(first_fault(&shorter), Some(place as u64));
    }
    for (number, bytes) in (0..).zip(&log) {
        for place in 0..log.len() {
            let mut longer = log.clone();
            longer.insert(place, bytes.clone());
            let fault = if place == number { place + 1 } else { place };
            assert_eq!(first_fault(&longer), Some(fault as u64), "{number} at {place}");
        }
    }
}

#[test]
fn an_event_of_a_later_format_is_refused_by_name() {
    let text = String::from_utf8(log().remove(0)).unwrap();
    let later = text.replacen("1 {", "2 {", 1);
    let error = decode_event(0, later.as_bytes()).unwrap_err();
    assert_eq!(error, DecodeError::Newer { field: "event 0".to_owned(), found: 2 });
}

//! Cases of what a view knows, changes and takes back.

use super::*;
use crate::ids::Principal;
use crate::record::{Part, Stop, StopMode};
use crate::time::Time;

fn gate(epoch: u32) -> Record {
    Record::Gate(Gate { epoch, ..Gate::default() })
}

#[test]
fn what_was_created_and_rolled_back_is_unknown_not_absent() {
    let mut view = View::new(TaskId::random([1; 16]));
    let savepoint = view.savepoint();
    view.create(Key::Gate, gate(2));
    view.rollback(savepoint);
    assert!(!view.knows(&Key::Gate));
    assert_eq!(view.changes_len(), 0);
}

#[test]
fn after_a_birth_only_what_changes_without_the_header_is_unknown() {
    let mut view = View::new(TaskId::random([1; 16]));
    view.load(Key::Header, None, None);
    let header = Header::new(Time(0), 1, 0, None);
    view.put(Key::Header, Some(Record::Header(header))).unwrap();
    view.committed(CommitId(1));
    let step = StepId::new("a").unwrap();
    assert!(view.knows(&Key::Gate) && view.knows(&Key::Step(step.clone())));
    assert!(!view.knows(&Key::Claim(step)));
    view.refused();
    assert!(!view.knows(&Key::Gate));
}

#[test]
fn what_undoes_and_cleans_up_is_ended_by_no_stop() {
    let stop = |mode| Stop {
        by: Principal::local(),
        at: Time(0),
        reason: None,
        mode,
        plan_sha256: None,
        lapsed: Vec::new(),
        deadline_at: None,
    };
    for (closed, mode, ends) in [
        (false, None, false),
        (true, None, true),
        (true, Some(StopMode::Halt), true),
        (true, Some(StopMode::Undo), true),
        (true, Some(StopMode::Drain), false),
    ] {
        let gate = Gate { closed, stop: mode.map(stop), ..Gate::default() };
        assert_eq!(gate.ends(Part::Main), ends, "{mode:?}");
        assert!(!gate.ends(Part::Undo) && !gate.ends(Part::Finally), "{mode:?}");
    }
}

fn changed(view: &View) -> Vec<Key> {
    view.changes().map(|(key, _, _)| key.clone()).collect()
}

#[test]
fn what_is_changed_again_after_idle_changes_were_dropped_is_a_change() {
    let mut view = View::new(TaskId::random([1; 16]));
    view.load(Key::Gate, Some(gate(2)), Some(CommitId(1)));
    view.edit_gate(|gate| gate.epoch = 2).unwrap();
    view.drop_idle_changes();
    assert_eq!(changed(&view), []);
    view.edit_gate(|gate| gate.epoch = 3).unwrap();
    view.create(Key::Owner, gate(1));
    view.create(Key::Header, gate(1));
    view.drop_idle_changes();
    assert_eq!(changed(&view), [Key::Header, Key::Gate, Key::Owner]);
}

#[test]
fn a_rollback_takes_back_only_what_changed_since() {
    let mut view = View::new(TaskId::random([1; 16]));
    view.load(Key::Gate, Some(gate(2)), Some(CommitId(1)));
    let first = view.savepoint();
    view.edit_gate(|gate| gate.epoch = 3).unwrap();
    let second = view.savepoint();
    view.edit_gate(|gate| gate.epoch = 4).unwrap();
    view.create(Key::Owner, gate(1));
    view.drop_idle_changes();
    view.rollback(second);
    assert_eq!((view.gate().unwrap().epoch, changed(&view)), (3, vec![Key::Gate]));
    view.rollback(first);
    assert_eq!((view.gate().unwrap().epoch, changed(&view)), (2, vec![]));
    view.edit_gate(|gate| gate.epoch = 5).unwrap();
    assert_eq!(changed(&view), [Key::Gate]);
}

#[test]
fn what_a_batch_left_as_it_was_keeps_its_version() {
    let mut view = View::new(TaskId::random([1; 16]));
    view.load(Key::Gate, Some(gate(2)), Some(CommitId(1)));
    let header = Header::new(Time(0), 1, 0, None);
    view.load(Key::Header, Some(Record::Header(header)), Some(CommitId(1)));
    view.edit_gate(|gate| gate.closed = false).unwrap();
    view.edit_header(|header| header.started = true).unwrap();
    view.committed(CommitId(2));
    assert_eq!(view.version(&Key::Gate), Some(CommitId(1)));
    assert_eq!(view.version(&Key::Header), Some(CommitId(2)));
}

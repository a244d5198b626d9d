//! The cases that all stores are held to.

use futures::future::join_all;
use standfast_domain::commit::{CommitId, Home, Scope};
use standfast_engine::ports::{BATCH_MAX, Load, Store};

use crate::support::{
    Make, applied, bodies, commit, commit_all, load, members, partition, range, task, task_id, text,
};

pub async fn guards_hold_for_the_version_read_and_no_other(store: &dyn Store) {
    let scope = task();
    let first = commit(&scope).guard("a", None).put("a", "1");
    assert!(applied(store, &first).await);
    assert!(!applied(store, &commit(&scope).guard("a", None).put("a", "2")).await);
    assert!(!applied(store, &commit(&scope).guard("a", Some(CommitId(5))).put("a", "2")).await);
    assert!(!applied(store, &commit(&scope).guard("b", Some(first.id)).put("a", "2")).await);
    let one_fails = commit(&scope).guard("a", Some(first.id)).guard("a", None).put("a", "2");
    assert!(!applied(store, &one_fails).await);
    assert_eq!(text(store, &scope, "a").await.as_deref(), Some("1"));

    let second = commit(&scope).guard("a", Some(first.id)).guard("b", None).put("a", "2");
    assert!(applied(store, &second).await);
    let record = load(store, &scope, &["a"]).await.remove(0).unwrap();
    assert_eq!((record.version, &record.bytes[..]), (second.id, &b"2"[..]));
    assert!(applied(store, &commit(&scope).guard("a", Some(second.id)).remove("a")).await);
    assert!(applied(store, &commit(&scope).guard("a", None).put("a", "3")).await);
}

pub async fn a_refused_commit_writes_nothing_even_amid_a_batch(store: &dyn Store) {
    let scope = task();
    let kept = commit(&scope).put("kept", "1").put("other", "1").add("i", "kept");
    assert!(applied(store, &kept).await);
    let batch = [
        commit(&scope).put("before", "1").events(0, &["before"]).add("i", "before"),
        commit(&scope)
            .guard("missing", Some(CommitId(9)))
            .put("kept", "2")
            .put("new", "2")
            .remove("other")
            .events(1, &["refused"])
            .add("i", "refused")
            .take("i", "kept"),
        commit(&scope).put("after", "1").events(1, &["after"]).add("i", "after"),
    ];
    let answers = commit_all(store, &batch).await;
    assert_eq!(
        answers.iter().map(|answer| answer.applied).collect::<Vec<_>>(),
        [true, false, true]
    );
    let found = load(store, &scope, &["before", "kept", "new", "other", "after"]).await;
    let versions: Vec<_> = found.iter().map(|record| record.as_ref().map(|r| r.version)).collect();
    let wanted = [Some(batch[0].id), Some(kept.id), None, Some(kept.id), Some(batch[2].id)];
    assert_eq!(versions, wanted);
    assert_eq!(bodies(store, &scope, 0, 10).await, ["before", "after"]);
    assert_eq!(members(store, range(scope.home(), "i")).await, ["after", "before", "kept"]);
}

pub async fn a_later_commit_of_a_batch_sees_the_earlier_ones(store: &dyn Store) {
    let scope = task();
    let first = commit(&scope).guard("a", None).put("a", "1").events(0, &["x"]);
    let second =
        commit(&scope).guard("a", Some(first.id)).put("a", "2").events(1, &["y"]).returns(&["a"]);
    let third = commit(&scope).guard("a", Some(first.id)).put("a", "3").events(2, &["z"]);
    let answers = commit_all(store, &[first, second.clone(), third]).await;
    assert_eq!(
        answers.iter().map(|answer| answer.applied).collect::<Vec<_>>(),
        [true, true, false]
    );
    assert_eq!(answers[1].records[0].as_ref().unwrap().version, second.id);
}

pub async fn a_repeat_with_events_is_applied_once_also_after_later_commits(store: &dyn Store) {
    let scope = task();
    let first = commit(&scope).guard("a", None).put("a", "1").events(0, &["x", "y"]).add("i", "m");
    assert!(applied(store, &first).await);
    assert!(applied(store, &first).await);
    let next = commit(&scope).put("a", "2").events(2, &["z"]).take("i", "m");
    assert!(applied(store, &next).await);
    let answers = commit_all(store, &[first.clone().returns(&["a"]), first, next.clone()]).await;
    assert!(answers.iter().all(|answer| answer.applied));
    assert_eq!(answers[0].records[0].as_ref().unwrap().version, next.id);
    assert_eq!(bodies(store, &scope, 0, 10).await, ["x", "y", "z"]);
    assert_eq!(store.counts(&[(scope.home(), "i".to_owned())]).await.unwrap(), [0]);
}

pub async fn a_repeat_without_events_is_applied_once(store: &dyn Store) {
    let scope = task();
    let first = commit(&scope).remove("z").guard("a", None).put("a", "1").put("b", "1");
    assert!(applied(store, &first).await);
    assert!(applied(store, &commit(&scope).put("b", "2").put("c", "2").add("i", "m")).await);
    assert!(applied(store, &first).await, "its first record still carries its id");
    assert_eq!(text(store, &scope, "b").await.as_deref(), Some("2"), "and nothing was written");
    assert!(applied(store, &commit(&scope).put("a", "3")).await);
    assert!(!applied(store, &first).await, "its guard refuses it once the record is another's");
}

pub async fn a_commit_that_only_removes_is_judged_anew(store: &dyn Store) {
    let scope = task();
    let first = commit(&scope).put("a", "1").put("b", "1");
    assert!(applied(store, &first).await);
    let guarded = commit(&scope).guard("a", Some(first.id)).remove("a").returns(&["a"]);
    let plain = commit(&scope).remove("b");
    assert!(applied(store, &guarded).await && applied(store, &plain).await);
    let answers = commit_all(store, &[guarded, plain]).await;
    assert_eq!((answers[0].applied, answers[1].applied), (false, true));
    assert_eq!(answers[0].records, [None]);
}

pub async fn events_with_a_gap_or_an_overlap_are_refused(store: &dyn Store) {
    let scope = task();
    assert!(!applied(store, &commit(&scope).put("a", "1").events(1, &["x"])).await);
    assert!(applied(store, &commit(&scope).events(0, &["x", "y"])).await);
    for first in [0, 1, 3] {
        let wrong = commit(&scope).put("a", "1").events(first, &["z"]);
        assert!(!applied(store, &wrong).await, "{first}");
    }
    assert_eq!(text(store, &scope, "a").await, None);
    for (first, events) in [(0, 1), (3, 1), (3, 490)] {
        // Its guard holds, so that a store may append before it counts.
        let wrong = commit(&scope).guard("a", None).put("a", "1").add("i", "m");
        assert!(!applied(store, &wrong.events(first, &vec!["w"; events])).await, "{first}");
    }
    assert_eq!(text(store, &scope, "a").await, None);
    assert_eq!(store.counts(&[(scope.home(), "i".to_owned())]).await.unwrap(), [0]);
    assert_eq!(bodies(store, &scope, 0, 10).await, ["x", "y"], "nothing is left of them");
    assert!(applied(store, &commit(&scope).events(2, &["z"])).await);
    assert!(applied(store, &commit(&scope).put("a", "1")).await, "no events, no number");
}

pub async fn events_come_in_pages(store: &dyn Store) {
    let scope = task();
    let all: Vec<String> = (0..25).map(|number| number.to_string()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert!(applied(store, &commit(&scope).events(0, &all[..20])).await);
    assert!(applied(store, &commit(&scope).events(20, &all[20..])).await);
    assert_eq!(bodies(store, &scope, 0, 10).await, all[..10]);
    assert_eq!(bodies(store, &scope, 10, 10).await, all[10..20]);
    assert_eq!(bodies(store, &scope, 20, 10).await, all[20..]);
    assert_eq!(bodies(store, &scope, 24, 1).await, all[24..]);
    for (from, limit) in [(25, 10), (0, 0), (u64::MAX, 10)] {
        assert!(bodies(store, &scope, from, limit).await.is_empty(), "{from} {limit}");
    }
}

pub async fn indexes_are_walked_in_byte_order_both_ways(store: &dyn Store) {
    let scope = task();
    // Prefixes of each other, bytes below and above letters, and names close to the index's.
    let sorted = ["", "\0", "a", "a\0", "a!", "aa", "ab", "b", "z{}\n", "é", "\u{10ffff}"];
    let mut change = commit(&scope).add("i ", "x").add("i\0", "x").add("h", "x").add("ii", "x");
    for member in ["b", "aa", "", "é", "a", "z{}\n", "\u{10ffff}", "a!", "ab", "a\0", "\0"] {
        change = change.add("i", member);
    }
    assert!(applied(store, &change).await);
    let whole = range(scope.home(), "i");
    let backwards: Vec<&str> = sorted.iter().rev().copied().collect();
    for after in [None, Some(2), Some(6)] {
        for before in [None, Some(4), Some(9)] {
            for limit in [500, 3, 1, 0] {
                let (from, to) = (after.map_or(0, |at| at + 1), before.unwrap_or(sorted.len()));
                let wanted = sorted.get(from..to).unwrap_or_default();
                let mut asked = whole.clone();
                asked.limit = limit;
                asked.after = after.map_or(String::new(), |at: usize| sorted[at].to_owned());
                asked.before = before.map(|at: usize| sorted[at].to_owned());
                let shown = format!("{asked:?}");
                let front = &wanted[..wanted.len().min(limit)];
                assert_eq!(members(store, asked.clone()).await, front, "{shown}");
                asked.reverse = true;
                let back: Vec<&str> = wanted.iter().rev().take(limit).copied().collect();
                assert_eq!(members(store, asked).await, back, "{shown}");
            }
        }
    }
    let mut reversed = whole.clone();
    reversed.reverse = true;
    let mut none = whole.clone();
    none.before = Some(String::new());
    let pages = store.ranges(&[whole, reversed, none]).await.unwrap();
    assert_eq!(pages[0], sorted);
    assert_eq!(pages[1], backwards);
    assert!(pages[2].is_empty());
}

pub async fn index_changes_may_be_repeated_and_are_counted(store: &dyn Store) {
    let scope = task();
    let change = commit(&scope).add("i", "a").add("i", "b").add("i", "a").take("i", "c");
    assert!(applied(store, &change).await);
    assert!(applied(store, &commit(&scope).add("i", "a").add("j", "x").take("i", "b")).await);
    assert!(applied(store, &commit(&scope).take("i", "b").add("i", "d").take("i", "d")).await);
    let asked = ["i", "j", "k"].map(|index| (scope.home(), index.to_owned()));
    assert_eq!(store.counts(&asked).await.unwrap(), [1, 1, 0]);
    assert_eq!(members(store, range(scope.home(), "i")).await, ["a"]);
}

pub async fn any_bytes_come_back_as_they_were(store: &dyn Store) {
    let scope = task();
    let every: Vec<u8> = (0..=255).collect();
    let strange: [&[u8]; 7] =
        [b"", b"\0", b"\xff\xfe\0\x80", b"{}", b"a\r\nb\n", b"$5\r\nhello\r\n", &every];
    let names = ["", "\0", "{}", "a\r\nb", "é", ":", "%s"];
    let mut change = commit(&scope);
    for (name, bytes) in names.iter().zip(strange) {
        change = change.put(name, bytes);
        let mut event = change.id.to_string().into_bytes();
        event.extend_from_slice(bytes);
        change.events.push(event);
    }
    let answers = commit_all(store, &[change.clone().returns(&names)]).await;
    let loaded = load(store, &scope, &names).await;
    assert_eq!(answers[0].records, loaded);
    for (record, bytes) in loaded.iter().zip(strange) {
        let record = record.as_ref().unwrap();
        assert_eq!((record.version, &record.bytes[..]), (change.id, bytes));
    }
    assert_eq!(store.events(&scope, 0, 10).await.unwrap(), change.events);
    assert!(applied(store, &change).await, "a repeat is recognised whatever the bytes are");
}

pub async fn a_commit_may_be_as_large_as_a_batch(store: &dyn Store) {
    let scope = task();
    let names: Vec<String> = (0..BATCH_MAX).map(|number| format!("{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut change = commit(&scope).events(0, &names).returns(&names);
    for name in &names {
        change = change.guard(name, None).put(name, name).add("i", name);
    }
    let answers = commit_all(store, &[change.clone()]).await;
    assert!(answers[0].applied);
    let texts = answers[0].records.iter().map(|record| record.as_ref().unwrap().bytes.as_slice());
    assert!(texts.eq(names.iter().map(|name| name.as_bytes())));
    assert_eq!(bodies(store, &scope, 0, BATCH_MAX).await, names);
    assert_eq!(members(store, range(scope.home(), "i")).await, names);

    let mut away = commit(&scope);
    for name in &names {
        away = away.guard(name, Some(change.id)).remove(name).take("i", name);
    }
    assert!(applied(store, &away).await);
    assert!(load(store, &scope, &names).await.iter().all(Option::is_none));
    assert_eq!(store.counts(&[(scope.home(), "i".to_owned())]).await.unwrap(), [0]);
}

pub async fn many_commits_in_one_call_are_all_answered(store: &dyn Store) {
    let scopes: Vec<Scope> = (0..8).map(|seed| Scope::Task(task_id(seed))).collect();
    let mut commits = Vec::new();
    for round in 0..40 {
        for scope in &scopes {
            let body = round.to_string();
            let made = commit(scope).put("a", &body).put("b", &body).events(round, &[&body]);
            commits.push(made.returns(&["a"]));
        }
    }
    let answers = commit_all(store, &commits).await;
    assert_eq!(answers.len(), commits.len());
    for (commit, answer) in commits.iter().zip(&answers) {
        assert!(answer.applied);
        assert_eq!(answer.records[0].as_ref().unwrap().version, commit.id);
    }
    let loads = scopes.iter().map(|scope| Load { scope: scope.clone(), fields: vec!["b".into()] });
    let loaded = store.load(&loads.collect::<Vec<_>>()).await.unwrap().1;
    assert!(loaded.iter().all(|records| records[0].as_ref().unwrap().bytes == b"39"));
}

pub async fn a_refusal_gives_the_records_as_they_are(store: &dyn Store) {
    let scope = task();
    let first = commit(&scope).put("a", "1");
    let theirs = commit(&scope).guard("a", Some(first.id)).put("a", "theirs");
    assert!(applied(store, &first).await && applied(store, &theirs).await);
    let ours = commit(&scope).guard("a", Some(first.id)).put("a", "ours").returns(&["b", "a", "a"]);
    let answer = commit_all(store, &[ours]).await.remove(0);
    assert!(!answer.applied);
    assert_eq!(answer.records[0], None);
    assert_eq!(answer.records[1], answer.records[2]);
    let record = answer.records[1].as_ref().unwrap();
    assert_eq!((record.version, &record.bytes[..]), (theirs.id, &b"theirs"[..]));
}

pub async fn of_a_hundred_writers_exactly_one_wins_each_round(store: &dyn Store) {
    let scope = task();
    let mut version = None;
    for round in 0..5 {
        let commits: Vec<_> = (0..100)
            .map(|writer| {
                let body = writer.to_string();
                let made = commit(&scope).guard("a", version).put("a", &body);
                made.events(round, &[&body]).add("winners", &format!("{round} {body}"))
            })
            .collect();
        let outcomes = join_all(commits.iter().map(|commit| applied(store, commit))).await;
        let winners: Vec<_> = commits
            .iter()
            .zip(outcomes)
            .filter(|(_, won)| *won)
            .map(|(commit, _)| commit)
            .collect();
        assert_eq!(winners.len(), 1, "round {round}");
        version = Some(winners[0].id);
        let record = load(store, &scope, &["a"]).await.remove(0).unwrap();
        assert_eq!(Some(record.version), version);
    }
    assert_eq!(bodies(store, &scope, 0, 100).await.len(), 5);
    assert_eq!(store.counts(&[(scope.home(), "winners".to_owned())]).await.unwrap(), [5]);
}

pub async fn an_erased_task_leaves_nothing_and_others_alone(store: &dyn Store) {
    let (gone, kept) = (Scope::Task(task_id(1)), Scope::Task(task_id(2)));
    let names: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for scope in [&gone, &kept] {
        let mut made = commit(scope).put("header", "h").events(0, &names);
        for name in &names {
            made = made.put(name, name);
        }
        assert!(applied(store, &made).await);
    }
    let mut steps = 0;
    while store.erase(&task_id(1), 7).await.unwrap() {
        steps += 1;
        assert_eq!(text(store, &gone, "header").await, None, "the header goes first");
        assert!(steps <= 61 / 7, "each step removes as many as it may");
    }
    assert!(!store.erase(&task_id(1), 7).await.unwrap(), "a repeat finds nothing");
    assert!(load(store, &gone, &names).await.iter().all(Option::is_none));
    assert!(bodies(store, &gone, 0, 500).await.is_empty());
    assert!(load(store, &kept, &names).await.iter().all(Option::is_some));
    assert_eq!(bodies(store, &kept, 0, 500).await, names);
    assert!(applied(store, &commit(&gone).events(0, &["anew"])).await);
}

pub async fn time_never_goes_back(store: &dyn Store) {
    let scope = task();
    let mut last = store.now().await.unwrap();
    assert!(last.rfc3339().as_str() > "2026", "{}", last.rfc3339());
    for round in 0..20 {
        let load = Load { scope: scope.clone(), fields: vec!["a".to_owned()] };
        let times = [
            store.load(&[load]).await.unwrap().0,
            store.commit(&[commit(&scope).put("a", "1")]).await.unwrap().0,
            store.commit(&[]).await.unwrap().0,
            store.now().await.unwrap(),
        ];
        for time in times {
            assert!(time >= last, "round {round}: {time:?} came after {last:?}");
            last = time;
        }
    }
}

pub async fn scopes_and_homes_are_apart(store: &dyn Store) {
    let id = task_id(1);
    let other = (0..64).map(partition).find(|number| *number != id.partition()).unwrap();
    let scopes = [
        Scope::Task(id.clone()),
        Scope::Partition(id.partition()),
        Scope::Partition(other),
        Scope::Installation,
    ];
    for (number, scope) in scopes.iter().enumerate() {
        let body = number.to_string();
        let made = commit(scope).guard("a", None).put("a", &body).events(0, &[&body]);
        assert!(applied(store, &made.add("i", &body)).await);
    }
    for (number, scope) in scopes.iter().enumerate() {
        assert_eq!(text(store, scope, "a").await, Some(number.to_string()));
        assert_eq!(bodies(store, scope, 0, 10).await, [number.to_string()]);
    }
    let homes = [Home::Partition(id.partition()), Home::Partition(other), Home::Installation];
    let pages = store.ranges(&homes.map(|home| range(home, "i"))).await.unwrap();
    assert_eq!(pages, [vec!["0", "1"], vec!["2"], vec!["3"]]);
}

pub async fn absent_things_are_empty(store: &dyn Store) {
    let scope = task();
    let empty = Load { scope: scope.clone(), fields: Vec::new() };
    let absent = Load { scope: scope.clone(), fields: vec!["a".to_owned(), "b".to_owned()] };
    let loaded = store.load(&[empty.clone(), absent, empty]).await.unwrap().1;
    assert_eq!(loaded, [vec![], vec![None, None], vec![]]);
    assert!(store.load(&[]).await.unwrap().1.is_empty());
    assert!(store.ranges(&[]).await.unwrap().is_empty());
    assert!(store.counts(&[]).await.unwrap().is_empty());
    assert!(members(store, range(scope.home(), "i")).await.is_empty());
    assert!(!store.erase(&task_id(1), 10).await.unwrap());
    let nothing = commit(&scope).returns(&["a"]);
    assert_eq!(commit_all(store, &[nothing]).await[0].records, [None]);
}

pub async fn health_names_the_product(store: &dyn Store) {
    let health = store.health().await.unwrap();
    let known = ["redis ", "valkey ", "redb ", "memory"];
    assert!(known.iter().any(|name| health.product.starts_with(name)), "{health:?}");
}

//! What every store must do: the same cases for the real Redis, for the file and for the
//! simulator's store in memory, then what is particular to each, then random commits against a
//! model.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "store_cases.rs"]
mod cases;
#[path = "store_property.rs"]
mod property;
#[path = "store_redb.rs"]
mod redb_only;
#[path = "store_redis.rs"]
mod redis_only;
#[path = "support_store.rs"]
mod support;

macro_rules! each {
    ($($case:ident)*) => {
        mod redis_store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let place = crate::support::Place::redis();
                crate::cases::$case(&*place.open().await).await;
            })*
        }

        mod memory_store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let place = crate::support::Place::Memory;
                crate::cases::$case(&*place.open().await).await;
            })*
        }

        mod redb_store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let place = crate::support::Place::redb();
                crate::cases::$case(&*place.open().await).await;
            })*
        }
    };
}

each! {
    guards_hold_for_the_version_read_and_no_other
    a_refused_commit_writes_nothing_even_amid_a_batch
    a_later_commit_of_a_batch_sees_the_earlier_ones
    a_repeat_with_events_is_applied_once_also_after_later_commits
    a_repeat_without_events_is_applied_once
    a_commit_that_only_removes_is_judged_anew
    events_with_a_gap_or_an_overlap_are_refused
    events_come_in_pages
    indexes_are_walked_in_byte_order_both_ways
    index_changes_may_be_repeated_and_are_counted
    any_bytes_come_back_as_they_were
    a_commit_may_be_as_large_as_a_batch
    many_commits_in_one_call_are_all_answered
    a_refusal_gives_the_records_as_they_are
    of_a_hundred_writers_exactly_one_wins_each_round
    an_erased_task_leaves_nothing_and_others_alone
    time_never_goes_back
    scopes_and_homes_are_apart
    absent_things_are_empty
    health_names_the_product
}

//! One suite for all brokers: what the port promises is tried on each, with the same words.
//!
//! What only RabbitMQ can go through (restarts, kills, alarms, deleted queues) is tried on a
//! node of its own, so that a shared broker is never disturbed. The plain cases use the broker
//! at `STANDFAST_TEST_AMQP`, under a prefix of their own.

#![allow(clippy::unwrap_used)]

#[path = "broker/faults.rs"]
mod faults;
#[path = "broker/rig.rs"]
mod rig;
#[path = "broker/shared.rs"]
mod shared;
#[path = "broker/topology.rs"]
mod topology;
#[path = "broker/unserved.rs"]
mod unserved;

/// Runs each named case of `shared` on every broker.
macro_rules! on_each_broker {
    ($($case:ident)*) => {
        mod in_process {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let rig = crate::rig::Rig::in_process();
                    crate::rig::run(&rig, crate::shared::$case(&rig)).await;
                }
            )*
        }
        mod rabbitmq {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let rig = crate::rig::Rig::rabbit().await;
                    crate::rig::run(&rig, crate::shared::$case(&rig)).await;
                }
            )*
        }
    };
}

on_each_broker! {
    what_is_published_arrives_whole
    one_consumer_sees_a_queue_in_order
    no_more_than_the_prefetch_is_under_way
    deliveries_may_be_ended_in_any_order
    closing_hands_back_what_is_not_acknowledged
    dropping_hands_back_what_is_not_acknowledged
    one_that_ceases_gives_back_what_it_has_not_given_and_can_end_the_rest
    a_dead_letter_goes_to_the_dead_steps
    depth_counts_messages_and_consumers
    competing_consumers_share_without_overlap
    a_reply_needs_a_queue
    a_thousand_publishers_at_once_are_all_confirmed
    names_of_255_bytes_pass_and_256_are_refused
    a_cancelled_wait_loses_nothing
    a_closed_subscription_ends
    what_is_told_reaches_all_who_listen
    who_does_not_listen_any_more_costs_nothing
    a_flood_of_words_ends_and_the_newest_is_heard
    health_is_connected_and_without_fault
}

//! Crash points: named places on the way of a command at which a test ends the process, the way
//! a power cut would: at once, with nothing flushed and nobody told.
//!
//! `STANDFAST_CRASH=POINT` ends the process with SIGKILL when it passes the point for the first
//! time, `POINT:NTH` when it passes it for the NTH. Only builds with debug assertions have any of
//! this: a release build has neither the variable's name nor a point's, since [`point`] is empty
//! there.

/// True in builds that have crash points.
pub const COMPILED: bool = cfg!(debug_assertions);

/// All points, in the order in which a task passes them.
///
/// `before` is before the commit, `stored` after it and before anyone is woken, `woken` after
/// that and before the answer. Of `send`, `before` is before anything leaves, `sent` when it has
/// left and its answer is not there or not read, `answered` before anybody is told of the answer.
#[cfg(debug_assertions)]
pub const POINTS: [&str; 22] = [
    "submit.before",
    "submit.stored",
    "submit.woken",
    "outbox.before",
    "outbox.confirmed",
    "claim.before",
    "claim.stored",
    "handler.before",
    "intent.before",
    "intent.stored",
    "send.before",
    "send.sent",
    "send.answered",
    "receipt.before",
    "receipt.stored",
    "handler.after",
    "complete.before",
    "complete.stored",
    "publish.sent",
    "publish.confirmed",
    "ack.before",
    "ack.after",
];

/// Passes a point; ends the process if that is what a test asked for.
#[cfg(debug_assertions)]
pub fn point(name: &'static str) {
    armed::pass(name);
}

/// Does nothing: this build has no crash points.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_: &'static str) {}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    use super::POINTS;

    /// The point that is armed, and how often it may still be passed, this time included.
    struct Armed {
        name: String,
        left: AtomicU64,
    }

    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

    pub fn pass(name: &'static str) {
        assert!(POINTS.contains(&name), "crash point `{name}` is in the list of all");
        let armed = ARMED.get_or_init(|| std::env::var("STANDFAST_CRASH").ok().map(read));
        let Some(armed) = armed.as_ref().filter(|armed| armed.name == name) else { return };
        if armed.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = kill_process(getpid(), Signal::KILL); // nothing can refuse it
            loop {
                std::thread::park();
            }
        }
    }

    fn read(text: String) -> Armed {
        let (name, nth) = text.split_once(':').unwrap_or((&text, "1"));
        let nth: Option<u64> = nth.parse().ok().filter(|nth| *nth > 0);
        let (true, Some(left)) = (POINTS.contains(&name), nth) else {
            panic!("STANDFAST_CRASH is POINT or POINT:NTH with one of {POINTS:?}, found `{text}`");
        };
        Armed { name: name.to_owned(), left: AtomicU64::new(left) }
    }
}

//! Threads that handlers run on: few, and one more when a handler keeps its thread.
//!
//! A handler is code of somebody who may block. If it ran on the runtime that sends heartbeats,
//! enough of such handlers would end the worker's claims; a thread for each attempt would cost
//! short ones more than their work. So handlers are polled here, on threads of their own, within
//! the runtime's context (its timers and sockets). One thread serves all handlers that only
//! wait. A handler that is ready and waits for a thread longer than [`WAIT_MAX`] gets a new one;
//! a thread that has had nothing to do for [`IDLE_MAX`] ends.
//!
//! ```text
//!  waker ──▶ line of ready handlers ──▶ thread polls ──▶ ended, or waits for its waker
//!                     │ the first waits too long
//!                     └──▶ watch: one thread more
//! ```

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

/// How long a handler that is ready may wait for a thread before there is one more.
const WAIT_MAX: Duration = Duration::from_millis(2);
/// How long a thread without work is kept.
const IDLE_MAX: Duration = Duration::from_secs(10);

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The threads; they end, each with the handler it has, when this is dropped.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    _watch: AbortOnDropHandle<()>,
}

struct Shared {
    line: Mutex<Line>,
    /// A handler is ready, or the pool has ended.
    ready: Condvar,
    /// More handlers are ready than threads are free.
    short: Notify,
    runtime: Handle,
}

#[derive(Default)]
struct Line {
    /// Ready handlers, and since when.
    waiting: VecDeque<(Arc<Task>, Instant)>,
    threads: usize,
    idle: usize,
    ended: bool,
}

/// One handler that runs.
struct Task {
    /// Gone once it has ended.
    running: Mutex<Option<Running>>,
    state: AtomicU8,
    pool: Arc<Shared>,
}

/// It waits for its waker.
const WAITS: u8 = 0;
/// It stands in the line.
const IN_LINE: u8 = 1;
/// A thread polls it.
const POLLED: u8 = 2;
/// A thread polls it, and it was woken meanwhile.
const POLLED_AND_WOKEN: u8 = 3;

impl Pool {
    /// Makes a pool without threads, within the current runtime.
    pub(crate) fn new() -> Self {
        let shared = Arc::new(Shared {
            line: Mutex::default(),
            ready: Condvar::new(),
            short: Notify::new(),
            runtime: Handle::current(),
        });
        let watch = tokio::spawn(watch(shared.clone()));
        Self { shared, _watch: AbortOnDropHandle::new(watch) }
    }

    /// Runs a future to its end on the pool's threads. An error: there is no thread at all.
    pub(crate) fn run(&self, future: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        if self.shared.lock().threads == 0 {
            self.shared.clone().grow()?;
        }
        let running = Mutex::new(Some(Box::pin(future) as Running));
        let task = Task { running, state: AtomicU8::new(IN_LINE), pool: self.shared.clone() };
        self.shared.put(Arc::new(task));
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.ready.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, task: Arc<Task>) {
        let mut line = self.lock();
        line.waiting.push_back((task, Instant::now()));
        let (idle, short) = (line.idle > 0, line.waiting.len() > line.idle);
        drop(line);
        if idle {
            self.ready.notify_one();
        }
        if short {
            self.short.notify_one();
        }
    }

    /// Adds a thread.
    fn grow(self: Arc<Self>) -> io::Result<()> {
        self.lock().threads += 1;
        let shared = self.clone();
        let name = "standfast-attempt".to_owned();
        let spawned = std::thread::Builder::new().name(name).spawn(move || shared.serve());
        if spawned.is_err() {
            self.lock().threads -= 1;
        }
        spawned.map(|_| ())
    }

    /// Polls ready handlers until there has been nothing to do for long.
    fn serve(&self) {
        let _context = self.runtime.enter();
        while let Some(task) = self.next() {
            // Handlers catch their own panics; one in a drop must not cost the thread.
            let _ = catch_unwind(AssertUnwindSafe(|| task.poll()));
        }
    }

    fn next(&self) -> Option<Arc<Task>> {
        let mut line = self.lock();
        loop {
            if let Some((task, _)) = line.waiting.pop_front() {
                return Some(task);
            }
            if line.ended {
                line.threads -= 1;
                return None;
            }
            line.idle += 1;
            let waited = self.ready.wait_timeout(line, IDLE_MAX);
            let (woken, result) = waited.unwrap_or_else(PoisonError::into_inner);
            line = woken;
            line.idle -= 1;
            if result.timed_out() && line.waiting.is_empty() {
                line.threads -= 1;
                return None;
            }
        }
    }

    /// Says how long the first of the line has waited.
    fn waited(&self) -> Option<Duration> {
        self.lock().waiting.front().map(|(_, since)| since.elapsed())
    }
}

/// Adds threads while handlers wait for one too long.
async fn watch(shared: Arc<Shared>) {
    loop {
        shared.short.notified().await;
        while let Some(waited) = shared.waited() {
            if waited >= WAIT_MAX
                && let Err(error) = shared.clone().grow()
            {
                tracing::warn!(%error, "failed to start a thread; handlers wait for one");
            }
            tokio::time::sleep(WAIT_MAX).await;
        }
    }
}

impl Task {
    fn poll(self: Arc<Self>) {
        self.state.store(POLLED, Ordering::Release);
        let waker = Waker::from(self.clone());
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(future) = running.as_mut() else { return };
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            *running = None;
            return;
        }
        drop(running);
        let waits = self.state.compare_exchange(POLLED, WAITS, Ordering::AcqRel, Ordering::Acquire);
        if waits.is_err() {
            self.state.store(IN_LINE, Ordering::Release);
            let pool = self.pool.clone();
            pool.put(self);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let next = |state| match state {
            WAITS => Some(IN_LINE),
            POLLED => Some(POLLED_AND_WOKEN),
            _ => None,
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(WAITS) {
            let pool = self.pool.clone();
            pool.put(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tokio::sync::oneshot;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn what_only_waits_shares_one_thread() {
        let pool = Pool::new();
        let (ended, mut seen) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..100 {
            let ended = ended.clone();
            let waits = async move {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                ended.send(std::thread::current().id()).unwrap();
            };
            pool.run(waits).unwrap();
        }
        for _ in 0..100 {
            tokio::time::timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
        }
        assert!(pool.shared.lock().threads < 100);
    }

    // The runtime has one thread, so those that block hold up neither it nor each other.
    #[tokio::test(flavor = "current_thread")]
    async fn what_blocks_its_thread_holds_nobody_up() {
        let pool = Pool::new();
        let (mut gates, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let (gate, opened) = channel::<()>();
            let (end, ended) = oneshot::channel();
            pool.run(async move {
                let _ = end.send(opened.recv_timeout(PATIENCE).is_ok());
            })
            .unwrap();
            gates.push(gate);
            ends.push(ended);
        }
        // The last one first: all of them must have a thread.
        while let (Some(gate), Some(ended)) = (gates.pop(), ends.pop()) {
            gate.send(()).unwrap();
            assert!(ended.await.unwrap());
        }
    }
}

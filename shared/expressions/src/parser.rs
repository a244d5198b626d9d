//! The way into `cel`'s parser: one thread with a deep stack, fed by a channel, and a bounded
//! cache of what it has made.
//!
//! The parser recurses about eight frames a level and a debug build overflows a common stack at
//! twelve, so no caller's thread ever runs it. One thread is enough: a parse takes about a tenth
//! of a millisecond and each text is parsed once as long as it is cached.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use cel::Env;

use crate::Fault;
use crate::limits::{PARSER_STACK_BYTES, PROGRAMS_MAX};
use crate::lower::lower;
use crate::node::Program;
use crate::scan;

/// Longest part of a parser's message that is passed on, in characters: it may quote the text.
const MESSAGE_CHARS_MAX: usize = 120;

/// Levels at which `cel` itself gives up: never reached by what `scan` lets through, and a second
/// guard of the stack should the two disagree on a text.
const RECURSION_MAX: u16 = 24;

/// Parses, checks and lowers a text, or finds it in the cache.
pub(crate) fn program(text: &str) -> Result<Arc<Program>, Fault> {
    if let Some(program) = lock(&CACHE).find(text) {
        return Ok(program);
    }
    scan::check(text)?;
    let program = Arc::new(on_parser_thread(text)?);
    lock(&CACHE).insert(text, Arc::clone(&program));
    Ok(program)
}

static CACHE: Mutex<Cache> = Mutex::new(Cache { young: BTreeMap::new(), old: BTreeMap::new() });
static PARSER: Mutex<Option<Sender<Job>>> = Mutex::new(None);

/// Two generations: when the young one is full it becomes the old one, and what is found in the
/// old one is young again. So what is in use stays, without a clock or a list of uses.
struct Cache {
    young: BTreeMap<String, Arc<Program>>,
    old: BTreeMap<String, Arc<Program>>,
}

impl Cache {
    fn find(&mut self, text: &str) -> Option<Arc<Program>> {
        if let Some(program) = self.young.get(text) {
            return Some(Arc::clone(program));
        }
        let program = self.old.remove(text)?;
        self.insert(text, Arc::clone(&program));
        Some(program)
    }

    fn insert(&mut self, text: &str, program: Arc<Program>) {
        if self.young.len() >= PROGRAMS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(text.to_owned(), program);
    }
}

struct Job {
    text: String,
    answer: SyncSender<Result<Program, Fault>>,
}

fn on_parser_thread(text: &str) -> Result<Program, Fault> {
    let gone = || Fault::new("the parser's thread is gone, try again");
    let (answer, result) = sync_channel(1);
    let mut job = Job { text: text.to_owned(), answer };
    let mut parser = lock(&PARSER);
    if let Some(jobs) = parser.as_ref() {
        match jobs.send(job) {
            Ok(()) => {
                drop(parser);
                return result.recv().map_err(|_| gone())?;
            }
            Err(unsent) => job = unsent.0,
        }
    }
    let jobs = start_parser()?;
    jobs.send(job).map_err(|_| gone())?;
    *parser = Some(jobs);
    drop(parser);
    result.recv().map_err(|_| gone())?
}

fn start_parser() -> Result<Sender<Job>, Fault> {
    let (jobs, inbox) = channel::<Job>();
    thread::Builder::new()
        .name("expression-parser".into())
        .stack_size(PARSER_STACK_BYTES)
        .spawn(move || {
            for job in inbox {
                let parsed = without_panic(|| parse(&job.text));
                // A caller that has gone away needs no answer.
                let _ = job.answer.send(parsed);
            }
        })
        .map_err(|error| Fault::new(format!("the parser's thread does not start: {error}")))?;
    Ok(jobs)
}

fn parse(text: &str) -> Result<Program, Fault> {
    // An environment without macros leaves `has`, `map` and the like as calls, which are lowered
    // here: expanded, they would be loops over accumulators.
    let env = Env::default().with_optional_support(false);
    let parser = env.parser().error_recovery_limit(1).max_recursion_depth(RECURSION_MAX);
    let parsed = parser.parse(text);
    lower(&parsed.map_err(|errors| syntax_fault(&errors))?)
}

fn syntax_fault(errors: &cel::ParseErrors) -> Fault {
    let Some(first) = errors.errors.first() else {
        return Fault::new("expected an expression");
    };
    let message = first.msg.strip_prefix("Syntax error: ").unwrap_or(&first.msg);
    // What could have come instead is a list of nearly all tokens there are.
    let message = message.split(" expecting {").next().unwrap_or(message);
    let cut: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    let (line, column) = first.pos;
    Fault::new(format!("expected an expression, found at line {line}, column {column}: {cut}"))
}

/// Runs what may panic inside `cel`, and makes a fault of it.
pub(crate) fn without_panic<T>(run: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(panic_fault(&*panic)))
}

fn panic_fault(panic: &(dyn Any + Send)) -> Fault {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Fault::new(format!("the cel library failed over this expression: {text}"))
}

/// A panic while the lock was held leaves a whole cache or sender behind, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_stays_cached_and_the_cache_is_bounded() {
        let program = program("1").expect("a literal parses");
        let mut cache = Cache { young: BTreeMap::new(), old: BTreeMap::new() };
        cache.insert("used", Arc::clone(&program));
        for n in 0..5 * PROGRAMS_MAX {
            cache.insert(&n.to_string(), Arc::clone(&program));
            assert!(cache.find("used").is_some());
            assert!(cache.young.len() + cache.old.len() <= 2 * PROGRAMS_MAX);
        }
        assert!(cache.find("0").is_none());
    }

    #[test]
    fn a_panic_becomes_a_fault() {
        let result: Result<(), Fault> = without_panic(|| panic!("index {}", 3));
        let message = result.expect_err("it panicked").message;
        assert_eq!(message, "the cel library failed over this expression: index 3");
    }
}

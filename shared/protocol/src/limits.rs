//! Limits of the wire. Each is answered with a problem that names it when it is passed.

/// Bytes of a plan: room for 10,000 short steps, small enough to read in one go.
pub const PLAN_BYTES_MAX: usize = 1 << 20;
/// Bytes of a request that carries no plan, output or artifact.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Bytes of a completion over HTTP: an output and the steps it adds. What is larger belongs into
/// an artifact.
pub const COMPLETE_BYTES_MAX: usize = 2 << 20;
/// Bytes of an output kept within the step's record; a larger one is kept by reference.
pub const OUTPUT_INLINE_BYTES_MAX: usize = 256 << 10;
/// Bytes of one artifact put by a worker outside.
pub const ARTIFACT_BYTES_MAX: usize = 64 << 20;
/// Bytes of log text in one append, and of the text in one page of a log.
pub const LOG_BYTES_MAX: usize = 64 << 10;
/// Nesting of JSON, so that no reader runs out of stack.
pub const JSON_DEPTH_MAX: usize = 64;
/// Bytes of an idempotency key, correlation id or message id: an AMQP short string.
pub const KEY_BYTES_MAX: usize = 255;
/// Bytes of a note or a reason: a person's sentence or two, kept in the history. Longer ones are
/// refused.
pub const NOTE_BYTES_MAX: usize = 1 << 10;
/// Bytes of a failure's message; longer ones are cut, because what failed must be told all the
/// same.
pub const MESSAGE_BYTES_MAX: usize = 2 << 10;
/// Bytes of what a heartbeat tells of the progress; longer ones are cut.
pub const DETAILS_BYTES_MAX: usize = 4 << 10;
/// Artifacts of one attempt.
pub const ARTIFACTS_MAX: usize = 100;
/// Entries of one page.
pub const PAGE_LIMIT_MAX: u32 = 200;
/// Entries of one page when the caller names no limit.
pub const PAGE_LIMIT_DEFAULT: u32 = 50;
/// Longest wait of a long poll, in milliseconds: below the idle time-outs of common proxies.
pub const WAIT_MS_MAX: u64 = 30_000;
/// Label filters of one query.
pub const LABEL_FILTERS_MAX: usize = 8;
/// Queues or handlers a worker may announce at once.
pub const ANNOUNCED_MAX: usize = 200;
/// Bytes of artifacts that one attempt may put, those that it put in vain included: they stay in
/// the blobs until their task is removed, and a worker in a loop must not fill the disk.
pub const ARTIFACTS_PUT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

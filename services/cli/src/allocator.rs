//! The allocator of the program.

/// A third of a step's processor time was the system allocator's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

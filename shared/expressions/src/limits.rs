//! The limits of expressions, each with its reason. Breaking one is a fault that names it.

/// Longest expression, in bytes: what a person can still read in an approval card. It also bounds
/// everything that grows with the text (parse time, literals, the tree).
pub const EXPRESSION_BYTES_MAX: usize = 1024;

/// Deepest nesting of parentheses, brackets, braces, `? :` within one group and runs of `!` or
/// `-`. People stay below 5; `cel`'s parser takes about 170 KiB of stack a level in a debug build.
pub const DEPTH_MAX: usize = 12;

/// Most operators, field accesses, indexes and calls in one expression: chains such as `a+a+a…`
/// make trees as deep as they are long, and `cel` walks them by recursion.
pub const LINKS_MAX: usize = 200;

/// Deepest tree after parsing, counted in nodes. The evaluator recurses once a node on the
/// caller's stack, so this keeps it to about a quarter of a 2 MiB thread in a debug build. A run
/// of `&&` or of `||` counts as one node.
pub const TREE_DEPTH_MAX: usize = 80;

/// Stack of the thread that parses, in bytes: sixteen times what the deepest and longest texts of
/// the tests take in a debug build. Pages that are not touched cost nothing.
pub const PARSER_STACK_BYTES: usize = 64 * 1024 * 1024;

/// Deepest nesting of `all`, `exists`, `exists_one`, `map` and `filter`: a list against a list is
/// the most that has had a use.
pub const LOOPS_DEEP_MAX: usize = 2;

/// Budget of one evaluation, and of one [`crate::resolve`] over a whole value: one unit a node
/// visited or list element copied, one per [`BYTES_PER_COST`] bytes of text copied, compared or
/// searched. A filter over 10,000 items takes a tenth; spending all of it takes 30 to 70 ms in
/// a release build (measured), and up to 0.4 s where it goes into compiling patterns.
pub const COST_MAX: u64 = 1_000_000;

/// Bytes of text that cost one unit: a cache line, about what a node's visit costs.
pub const BYTES_PER_COST: usize = 64;

/// Largest result of one expression, and largest text of one template, in bytes: as much as an
/// output that is kept inline.
pub const RESULT_BYTES_MAX: usize = 256 * 1024;

/// Most bytes that all templates of one value may produce together: as much as a plan may have,
/// since the resolved value is stored.
pub const RESOLVED_BYTES_MAX: usize = 1024 * 1024;

/// Deepest JSON that is walked or built: twice what the API lets in, so only a caller's mistake
/// meets it, and then as a fault instead of a stack overflow.
pub const JSON_DEPTH_MAX: usize = 128;

/// Longest pattern of `matches()`, in bytes: a longer one is a parser, which is a step's work.
pub const PATTERN_BYTES_MAX: usize = 256;

/// Most a pattern may weigh: characters, with classes as [`PATTERN_CLASS_WEIGHT`], times the
/// counted repetitions. It is compiled anew at each call, and this much takes about 10 ms.
pub const PATTERN_WEIGHT_MAX: u64 = 4_000;

/// Weight of a class such as `\w` or `\pL`: compiled, Unicode classes are hundreds of states.
pub const PATTERN_CLASS_WEIGHT: u64 = 400;

/// Longest name of a secret, in characters: as for every id that a user chooses.
pub const SECRET_NAME_CHARS_MAX: usize = 64;

/// Parsed programs kept, for each of two generations: a busy installation has a few hundred
/// distinct expressions live. At 4 KiB each this is below 10 MiB.
pub const PROGRAMS_MAX: usize = 1024;

//! How long ended tasks are kept.

use clap::Args;
use standfast_domain::time::Span;

/// Says how long ended tasks are kept.
#[derive(Args, Clone, Copy, Debug)]
pub struct RetainArgs {
    /// How long an ended task is kept, with all its records, unless its plan says otherwise
    #[arg(long, env = "STANDFAST_RETAIN", value_name = "SPAN", hide_env_values = true)]
    #[arg(value_parser = retain, default_value = "30d")]
    pub retain: Span,
}

fn retain(text: &str) -> Result<Span, String> {
    Span::parse(text).ok_or_else(|| "expected a span such as 12h or 30d".to_owned())
}

#[cfg(test)]
mod tests {
    use standfast_engine::submission::RETENTION_DEFAULT;

    use super::*;

    #[test]
    fn the_default_is_the_engines() {
        assert_eq!(retain("30d"), Ok(RETENTION_DEFAULT));
        assert!(retain("soon").is_err());
    }
}

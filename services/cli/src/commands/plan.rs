//! `standfast plan`: looks at plans without running them or asking anyone.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use serde_json::Value;
use standfast_domain::ids::Principal;
use standfast_domain::plan::schema::plan_schema;
use standfast_domain::record::EffectClass;
use standfast_engine::submission::{Handlers, RETENTION_DEFAULT, Submitted, prepare};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::plan_file::PlanArgs;
use crate::show::quantities::count;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast plan check examples/release-notes.yaml
  standfast plan schema > plan.schema.json")]
pub struct PlanCommandArgs {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// Read a plan and list its faults
    Check(CheckArgs),
    /// Print the JSON Schema of a plan
    Schema,
}

#[derive(Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    plan: PlanArgs,
    /// A handler of your own workers that the plan may use; may be repeated
    #[arg(long = "handler", value_name = "NAME")]
    handlers: Vec<String>,
    /// Print the plan as JSON, as it would be submitted
    #[arg(long)]
    json: bool,
}

/// Checks a plan, or prints the schema.
pub fn execute(args: PlanCommandArgs) -> Result<Exit, Failure> {
    match args.command {
        PlanCommand::Check(args) => check(&args)?,
        PlanCommand::Schema => look::json(&plan_schema())?,
    }
    Ok(Exit::Completed)
}

fn check(args: &CheckArgs) -> Result<(), Failure> {
    let file = args.plan.read()?;
    let announced: BTreeSet<String> = args.handlers.iter().cloned().collect();
    let submitted = Submitted {
        body: file.plan.clone(),
        plan_dir: Some(file.dir),
        by: Principal::local(),
        key: None,
        traceparent: None,
    };
    let prepared = prepare(submitted, RETENTION_DEFAULT, &BuiltIn, &announced);
    let submission = prepared.map_err(|faults| {
        let number = count(faults.len() as u64, "fault");
        let faults = faults.into_iter().map(|fault| (fault.pointer, fault.message));
        let file = args.plan.file.display();
        Failure::new(format!("the plan {file} has {number}")).with_faults(faults)
    })?;
    if args.json {
        return look::json(&file.plan);
    }
    let plan = submission.plan;
    let steps = count((plan.steps.len() + plan.finally.len()) as u64, "step");
    look::line(&format!("✓ {}: {steps}, no faults", args.plan.file.display()))
}

/// The built-in handlers.
struct BuiltIn;

impl Handlers for BuiltIn {
    fn check(&self, handler: &str, with: &Value) -> Option<Vec<(String, String)>> {
        crate::wiring::handlers::check(handler, with)
    }

    fn effect_class(&self, handler: &str, with: &Value) -> Result<EffectClass, String> {
        crate::wiring::handlers::effect_class(handler, with)
    }
}

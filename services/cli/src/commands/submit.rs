//! `standfast submit`: gives a plan to whoever holds the state.

use clap::Args;
use serde_json::Value;
use standfast_protocol::tasks::{SubmitRequest, Submitted};

use crate::connect::{Connection, Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::plan_file::{PlanArgs, PlanFile};
use crate::progress::{Screen, Watch, follow, head};

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast submit examples/release-notes.yaml --wait
  standfast submit plan.yaml --key nightly-2026-11-29 --url https://standfast.example

The same key and plan lead to the same task, however often they are submitted.")]
pub struct SubmitArgs {
    #[command(flatten)]
    plan: PlanArgs,
    /// Wait for the task's end; the exit code then says how it ended
    #[arg(long)]
    wait: bool,
    /// With --wait: go on waiting where only a person can move the task
    #[arg(long, requires = "wait")]
    wait_for_people: bool,
    /// Idempotency key; one is made when neither this nor the plan names one
    #[arg(long)]
    key: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Submits, and with `--wait` follows the task to its end.
pub async fn execute(args: SubmitArgs) -> Result<Exit, Failure> {
    let file = args.plan.read()?;
    let connection = connect(&args.place, Missing::Create).await?;
    if args.wait && connection.own.is_some() {
        let message = format!("nobody works on the state in {}", args.place.data.display());
        let advice = "start `standfast dev` first, or use `standfast run`, which works itself";
        connection.close().await;
        return Err(Failure::new(message).and(advice));
    }
    let submitted = submit(&connection, file, args.key.as_deref()).await?;
    let exit = match args.wait {
        true => wait(&connection, &args, &submitted).await?,
        false => tell(&args, &submitted, connection.own.is_none())?,
    };
    connection.close().await;
    Ok(exit)
}

/// Submits a plan under its own key, the one given, or a new one.
pub async fn submit(
    connection: &Connection,
    file: PlanFile,
    key: Option<&str>,
) -> Result<Submitted, Failure> {
    // The plan's own key must be the request's: the server refuses two that differ.
    let of_plan = file.plan.get("idempotency_key").and_then(Value::as_str).map(str::to_owned);
    let key = key.map(str::to_owned).or(of_plan);
    let key = key.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let plan_dir = (connection.loopback && file.names_its_folder()).then_some(file.dir);
    let request = SubmitRequest { plan: file.plan, plan_dir };
    Ok(connection.client.submit_keyed(&request, &key).await?)
}

fn tell(args: &SubmitArgs, submitted: &Submitted, works: bool) -> Result<Exit, Failure> {
    if args.json {
        look::json(submitted)?;
        return Ok(Exit::Completed);
    }
    look::line(&submitted.id)?;
    let place = args.place.arguments();
    let word = if submitted.created { "accepted" } else { "was here already" };
    let (id, state) = (&submitted.id, submitted.state);
    look::note(&format!("{word}, {state}; see: standfast explain {id}{place}"));
    if !works && !state.is_ended() {
        look::note(&args.place.idle(Some(id)));
    }
    Ok(Exit::Completed)
}

async fn wait(
    connection: &Connection,
    args: &SubmitArgs,
    submitted: &Submitted,
) -> Result<Exit, Failure> {
    let look = Look::of_stdout();
    let watch = Watch {
        client: &connection.client,
        task: &submitted.id,
        fresh: submitted.created,
        wait_for_people: args.wait_for_people,
        look,
    };
    let place = args.place.arguments();
    let screen = Screen::of(&look, args.json);
    let id = &submitted.id;
    let whereabouts = format!("elsewhere: standfast explain {id}{place}");
    for line in head(&connection.client.get(id).await?, &whereabouts, &look) {
        screen.settled(&line)?;
    }
    let ended = tokio::select! {
        ended = follow(&watch, &screen) => ended?,
        _ = tokio::signal::ctrl_c() => {
            screen.finish();
            look::note(&format!("the task goes on; see: standfast explain {id}{place}"));
            return Ok(Exit::Interrupted);
        }
    };
    if args.json {
        look::json(&ended.task)?;
    } else {
        look::line(&ended.summary(&look))?;
        look::lines(ended.reasons(&place, None, &look))?;
    }
    Ok(ended.exit)
}

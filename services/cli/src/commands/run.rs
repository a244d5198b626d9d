//! `standfast run`: a plan from start to end in this process, with nothing else installed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use standfast_domain::ids::{Principal, TaskId};
use standfast_protocol::tasks::{TaskQuery, TaskState, TaskView};
use standfast_sdk::Client;

use crate::commands::submit::submit;
use crate::commands::token::principal;
use crate::connect::{self, Connection, DATA_DEFAULT, Place};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::plan_file::{self, InputArgs};
use crate::progress::{self, Ended, Screen, Watch, follow, keep_artifacts};
use crate::text;
use crate::wiring::embedded::{self, Work};
use crate::wiring::endpoint;
use crate::wiring::signals::Interrupts;

/// How long the end may wait for the word on what is under way outside.
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(1);

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast run examples/release-notes.yaml --input count=5
  standfast run --resume                     goes on with the newest unfinished task
  standfast run --resume t07-4k9v2mq8r5x1c

Ctrl-C stops taking work and hands back what runs; a second one ends at once. Either way
`standfast run --resume` goes on where it was.")]
pub struct RunArgs {
    /// File of the plan, YAML or JSON; `-` reads standard input
    #[arg(value_name = "PLAN", required_unless_present = "resume")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    inputs: InputArgs,
    /// Go on with a task that is there: this one, or the newest unfinished one
    #[arg(long, value_name = "TASK", num_args = 0..=1, value_parser = resumable)]
    #[arg(conflicts_with_all = ["plan", "inputs"])]
    resume: Option<Option<TaskId>>,
    /// Go on waiting where only a person can move the task, instead of ending with code 4
    #[arg(long)]
    wait_for_people: bool,
    /// Answer approvals of plans that say `unattended: true`. This version accepts no plan that
    /// asks for approval, so there is nothing to answer yet
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    work: Work,
    /// Folder of the state
    #[arg(long, env = "STANDFAST_DATA", hide_env_values = true, value_name = "DIR")]
    #[arg(default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// Act for another, such as user:ben, instead of as user:local
    #[arg(long = "as", value_name = "PRINCIPAL", value_parser = principal)]
    acting_as: Option<Principal>,
    /// Print the task as JSON at the end, and nothing before
    #[arg(long)]
    json: bool,
}

/// Reads a task's id: the word behind `--resume` is the flag's, also where a plan was meant.
fn resumable(text: &str) -> Result<TaskId, String> {
    TaskId::parse(text).map_err(|fault| format!("{fault}; a plan is started without --resume"))
}

/// Works on the folder until the task has ended, or only a person can move it.
pub async fn execute(args: RunArgs) -> Result<Exit, Failure> {
    // Read first: a plan that cannot be read should leave no folder behind.
    let file = match &args.plan {
        Some(plan) => Some(plan_file::read(plan, &args.inputs)?),
        None => None,
    };
    if args.resume.is_some() {
        connect::demand_state(&args.data, "a plan to run")?;
    }
    let mut interrupts = Interrupts::listen()?;
    let began = look::now().rfc3339();
    let run = Run { args: &args, look: Look::of_stdout() };
    let mut connection = run.connection().await?;
    let task = match file {
        Some(file) => submit(&connection, file, None).await?.id,
        None => run.resumed(&connection.client, &began).await?,
    };
    let screen = Screen::of(&run.look, args.json);
    run.announce(&connection, &task, &screen).await?;
    let mut fresh = args.resume.is_none();
    loop {
        let went = tokio::select! {
            went = run.to_its_end(&connection, &task, &screen, fresh) => Some(went),
            () = interrupts.next() => None,
        };
        match went {
            Some(Err(_)) if connection.own.is_none() && run.is_left_alone().await => {
                screen.finish();
                let data = args.data.display();
                look::note(&format!(
                    "the process that worked on {data} has ended; this one goes on"
                ));
                connection = run.connection().await?;
                fresh = false;
            }
            Some(went) => {
                connection.close().await;
                return went;
            }
            None => {
                screen.finish();
                let under_way = run.under_way(&connection, &task).await;
                look::note(&ending(&under_way));
                tokio::select! {
                    () = connection.close() => {}
                    () = interrupts.next() => {}
                }
                look::note(&format!("go on with: {}", run.resume_command(&task)));
                return Ok(Exit::Interrupted);
            }
        }
    }
}

/// Says what an end means for what runs, and for what may have been sent already.
fn ending(under_way: &[String]) -> String {
    let sent = match under_way {
        [] => String::new(),
        steps => format!(
            "; `{}` may have changed something outside already, and what became of it `standfast \
             explain` will say",
            text::plain(&steps.join("`, `"))
        ),
    };
    format!("ending: what runs is handed back{sent}; Ctrl-C again ends at once")
}

/// One run, as it was asked for.
struct Run<'a> {
    args: &'a RunArgs,
    look: Look,
}

impl Run<'_> {
    fn place(&self) -> String {
        let acting_as = self.args.acting_as.clone();
        Place { data: self.args.data.clone(), url: None, acting_as }.arguments()
    }

    fn resume_command(&self, task: &str) -> String {
        format!("standfast run --resume {task}{}", self.place())
    }

    /// Finds the task to go on with; `began` is when this process did.
    async fn resumed(&self, client: &Client, began: &str) -> Result<String, Failure> {
        if let Some(Some(named)) = &self.args.resume {
            return Ok(client.get(named.as_str()).await?.id);
        }
        let newest = match newest_unfinished(client).await? {
            Some(task) => Some(task),
            None => newest_ended_since(client, began).await?,
        };
        newest.map(|task| task.id).ok_or_else(|| {
            let message = format!("no task in {} is unfinished", self.args.data.display());
            Failure::new(message).and("start one with: standfast run PLAN")
        })
    }

    /// Works on the folder, or finds the process that does already.
    async fn connection(&self) -> Result<Connection, Failure> {
        let (endpoint, own) = embedded::work_or_join(&self.args.data, self.args.work).await?;
        connect::to(&endpoint, self.args.acting_as.as_ref(), own)
    }

    /// Names the steps whose effects are under way here, if that can be had at once.
    async fn under_way(&self, connection: &Connection, task: &str) -> Vec<String> {
        if connection.own.is_none() {
            return Vec::new(); // nothing is ended: another process works
        }
        let explain = connection.client.explain(task);
        let asked = tokio::time::timeout(PATIENCE_AT_THE_END, explain).await;
        asked.ok().and_then(Result::ok).map(|told| told.open.in_flight).unwrap_or_default()
    }

    /// True if no other process works on the folder any more.
    async fn is_left_alone(&self) -> bool {
        endpoint::answering(&self.args.data).await.is_none()
    }

    /// Says which task it is, and how to find it from elsewhere.
    async fn announce(
        &self,
        connection: &Connection,
        task: &str,
        screen: &Screen,
    ) -> Result<(), Failure> {
        let view = connection.client.get(task).await?;
        let state = text::plain(&self.args.data.display().to_string());
        let place = self.place();
        let whereabouts = format!("state in {state} · elsewhere: standfast explain {task}{place}");
        for line in progress::head(&view, &whereabouts, &self.look) {
            screen.settled(&line)?;
        }
        Ok(())
    }

    /// Follows the task to its end, or to where only a person can move it, and says how it ended;
    /// `fresh`: all that happens to it is news.
    async fn to_its_end(
        &self,
        connection: &Connection,
        task: &str,
        screen: &Screen,
        fresh: bool,
    ) -> Result<Exit, Failure> {
        let watch = Watch {
            client: &connection.client,
            task,
            fresh,
            wait_for_people: self.args.wait_for_people,
            look: self.look,
        };
        let ended = follow(&watch, screen).await?;
        self.show(connection, &ended).await?;
        Ok(ended.exit)
    }

    /// Keeps the artifacts as files and says how it ended.
    async fn show(&self, connection: &Connection, ended: &Ended) -> Result<(), Failure> {
        let client = &connection.client;
        let task = &ended.task.id;
        let files = keep_artifacts(client, task, &self.args.data).await?;
        if self.args.json {
            return look::json(&ended.task);
        }
        let landed = client.explain(task).await?.landed;
        look::line(&ended.summary(&self.look))?;
        look::lines(progress::left(&files, &landed.effects))?;
        let resume = connection.own.is_some().then(|| self.resume_command(task));
        look::lines(ended.reasons(&self.place(), resume.as_deref(), &self.look))
    }
}

/// Finds the newest task that has not ended: one look for each state that it can be in.
async fn newest_unfinished(client: &Client) -> Result<Option<TaskView>, Failure> {
    let mut newest: Option<TaskView> = None;
    for &state in TaskState::ALL.iter().filter(|state| !state.is_ended()) {
        let query = TaskQuery { state: Some(state), limit: Some(1), ..TaskQuery::default() };
        let found = client.list(&query).await?.tasks.pop();
        let age = |task: &TaskView| (task.created_at.clone(), task.id.clone());
        newest = newest.into_iter().chain(found).max_by_key(age);
    }
    Ok(newest)
}

/// Finds the newest task that was not over when this process began: work goes on at once, so
/// it may have moved, even ended, while it was looked for.
async fn newest_ended_since(client: &Client, began: &str) -> Result<Option<TaskView>, Failure> {
    let mut cursor = None;
    loop {
        let query = TaskQuery { limit: Some(200), cursor, ..TaskQuery::default() };
        let page = client.list(&query).await?;
        let late = |task: &TaskView| task.ended_at.as_deref().is_none_or(|ended| ended >= began);
        if let Some(task) = page.tasks.into_iter().find(late) {
            return Ok(Some(task));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(None);
        }
    }
}

//! Takes a `stop` message. It is answered once the stop is stored; one that comes again is
//! answered like the first, since twice is once.

use standfast_domain::decide::Command;
use standfast_domain::ids::TaskId;
use standfast_domain::record::{Gate, Header, Key, Record, StopMode as Mode};
use standfast_domain::rights::{Identity, People, Right};
use standfast_engine::EngineError;
use standfast_engine::ports::Delivery;
use standfast_protocol::amqp::{StopMessage, SubmitReply};
use standfast_protocol::limits::NOTE_BYTES_MAX;
use standfast_protocol::problem::{Fault, Problem, ProblemKind};
use standfast_protocol::tasks::{StopMode, StopView, Stopped};

use super::{Answer, Intake, Refused, body, refusal_problem, refused, shown};

impl Intake {
    pub(super) async fn stop(&self, delivery: &Delivery) -> Result<Answer, Refused> {
        let by = self.identify(delivery).await?;
        let message = read(delivery)?;
        let task = TaskId::parse(&message.task).map_err(|_| unknown(&message.task))?;
        self.demand_stop(&by, &task).await?;
        let command = Command::Stop { reason: message.reason, mode: mode(message.mode) };
        let wants = vec![Key::Header, Key::Gate];
        let done = self.engine.execute(&task, command, by.principal, wants).await;
        let done = done.map_err(|error| match error {
            EngineError::Refused(refusal) => refusal_problem(&refusal),
            EngineError::Store(_) => Refused::Later(error),
        })?;
        let (header, gate) = (done.records.header(), done.records.gate());
        let (Ok(header), Ok(gate)) = (header, gate) else {
            return Err(unknown(task.as_str())); // it was removed meanwhile
        };
        let reply = SubmitReply::Stopped(stopped(&task, header, gate));
        Ok(Answer::Direct(Box::new(reply)))
    }

    /// Demands the right to stop a task; to those who may not see it, it does not exist.
    async fn demand_stop(&self, by: &Identity, task: &TaskId) -> Result<(), Refused> {
        let keys = [Key::Meta, Key::Owner];
        let mut records = self.engine.read(task, &keys).await.map_err(Refused::Later)?;
        let Some(Record::Meta(meta)) = records.remove(&Key::Meta).flatten() else {
            return Err(unknown(task.as_str()));
        };
        let owner = match records.remove(&Key::Owner).flatten() {
            Some(Record::Owner(given)) => given.owner,
            _ => meta.owner.clone(),
        };
        let people = People::of(&owner, &meta);
        if by.may(Right::Stop, &people) {
            return Ok(());
        }
        if by.may(Right::View, &people) {
            let detail = "this needs the right `stop` on the task: its owner, an operator or an \
                          admin";
            return Err(refused(ProblemKind::Forbidden, detail));
        }
        Err(unknown(task.as_str()))
    }
}

fn read(delivery: &Delivery) -> Result<StopMessage, Refused> {
    let message: StopMessage = serde_json::from_value(body(delivery)?).map_err(|error| {
        let detail = format!("the body is not `{{task, mode, reason}}`: {error}");
        refused(ProblemKind::InvalidRequest, detail)
    })?;
    let found = message.reason.as_deref().map_or(0, str::len);
    if found > NOTE_BYTES_MAX {
        let message = format!("expected at most {NOTE_BYTES_MAX} bytes, found {found}");
        let fault = Fault { pointer: "/reason".to_owned(), message };
        let problem = Problem::new(ProblemKind::InvalidRequest, "the reason is too long");
        return Err(Refused::Problem(Box::new(problem.with_errors(vec![fault]))));
    }
    Ok(message)
}

fn unknown(task: &str) -> Refused {
    let shown: String = task.chars().take(40).flat_map(char::escape_default).collect();
    refused(ProblemKind::NotFound, format!("failed to find task {shown}"))
}

fn mode(mode: StopMode) -> Mode {
    match mode {
        StopMode::Drain => Mode::Drain,
        StopMode::Halt => Mode::Halt,
        StopMode::Undo => Mode::Undo,
    }
}

fn stopped(task: &TaskId, header: &Header, gate: Gate) -> Stopped {
    let stop = gate.stop.map(|stop| StopView {
        mode: stop.mode.to_string(),
        reason: stop.reason,
        by: stop.by.to_string(),
        at: stop.at.rfc3339(),
    });
    Stopped {
        id: task.to_string(),
        state: shown(header.state),
        stop: stop.expect("a stop that was taken stands in the gate"),
    }
}

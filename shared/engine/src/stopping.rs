//! Stop plans and settlements: reads a whole task as of one moment, and stops it by a plan.
//!
//! A plan reads everything about a task, in as many loads as that takes. Each load reads the
//! header too: as long as its version stays, all that was logged is of one moment. A task that
//! moves faster than it can be read gets a plan that is right in its parts and has no digest.

use standfast_domain::commit::Scope;
use standfast_domain::decide::Command;
use standfast_domain::ids::{Principal, TaskId};
use standfast_domain::record::{Key, Record, StopMode};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::stop_plan::{self, Basis, Settlement, StopPlan};
use standfast_domain::view::View;

use crate::lane::Done;
use crate::ports::{BATCH_MAX, Load, StoreError};
use crate::{Engine, EngineError};

/// How often a reading begins anew because the task has moved.
const MOVES_MAX: u32 = 8;
/// Loads of one reading: a task of the largest size, with all its effects, takes far fewer.
const LOADS_MAX: u32 = 2_000;
/// How often a stop by a plan is tried anew because something moved that is no item of it.
const TRIES_MAX: u32 = 16;

/// A stop plan as it was read.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan.
    pub plan: StopPlan,
    /// What it was made on; none: the task moved while it was read, so nothing is of one moment.
    pub basis: Option<Basis>,
}

impl Planned {
    /// Gives the digest that a stop may demand.
    pub fn digest(&self) -> Option<&str> {
        self.basis.as_ref().map(|_| self.plan.digest.as_str())
    }
}

/// What a stop by a plan came to.
#[derive(Debug)]
pub enum StoppedBy {
    /// It was stopped, or had been before.
    Stopped(Box<Done>),
    /// Its state has moved; this is the plan now.
    Moved(Box<Planned>),
}

/// A stop that is asked for by a plan.
#[derive(Clone, Debug)]
pub struct ByPlan {
    /// What it does to attempts that run and to what has landed.
    pub mode: StopMode,
    /// In the asker's words.
    pub reason: Option<String>,
    /// How the plan's digest begins.
    pub digest: String,
}

impl Engine {
    /// Says what a stop of each of these modes would do, as of one moment.
    pub async fn stop_plans(
        &self,
        task: &TaskId,
        modes: &[StopMode],
    ) -> Result<Vec<Planned>, EngineError> {
        let read = |view: &View| -> Result<Vec<Planned>, Halt> {
            let plans = stop_plan::plans(view, modes)?.into_iter();
            Ok(plans.map(|(plan, basis)| Planned { plan, basis }).collect())
        };
        let (mut plans, of_one_moment) = self.read_whole(task, read).await?;
        if !of_one_moment {
            plans.iter_mut().for_each(|planned| planned.basis = None);
        }
        Ok(plans)
    }

    /// Says what a stop came to, so far.
    pub async fn settlement(&self, task: &TaskId) -> Result<Settlement, EngineError> {
        Ok(self.read_whole(task, stop_plan::settlement).await?.0)
    }

    /// Stops a task, or strengthens its stop, if its plan is still the one with this digest. What
    /// moves meanwhile and is no item of the plan does not stand against it. One that was stopped
    /// as hard already is answered like the first, whatever the digest.
    pub async fn stop_by_plan(
        &self,
        task: &TaskId,
        by: &ByPlan,
        actor: &Principal,
        wants: &[Key],
    ) -> Result<StoppedBy, EngineError> {
        let mut tries = 0;
        loop {
            let mut plans = match self.stop_plans(task, &[by.mode]).await {
                Ok(plans) => plans,
                Err(EngineError::Refused(Refusal::Stopped)) => {
                    let command = Command::Stop { reason: by.reason.clone(), mode: by.mode };
                    let done = self.execute(task, command, actor.clone(), wants.to_vec()).await?;
                    return Ok(StoppedBy::Stopped(Box::new(done)));
                }
                Err(error) => return Err(error),
            };
            let planned = Box::new(plans.pop().expect("one mode gives one plan"));
            let same = planned.digest().is_some_and(|digest| digest.starts_with(&by.digest));
            let (true, Some(basis)) = (same, planned.basis.clone()) else {
                return Ok(StoppedBy::Moved(planned));
            };
            let (mode, reason, basis) = (by.mode, by.reason.clone(), Box::new(basis));
            let command = Command::StopAsPlanned { reason, mode, basis };
            match self.execute(task, command, actor.clone(), wants.to_vec()).await {
                Ok(done) => return Ok(StoppedBy::Stopped(Box::new(done))),
                Err(EngineError::Refused(Refusal::PlanMoved)) if tries < TRIES_MAX => tries += 1,
                Err(EngineError::Refused(Refusal::PlanMoved)) => {
                    return Ok(StoppedBy::Moved(planned));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Computes over all records that are asked for; says whether they are of one moment.
    async fn read_whole<T>(
        &self,
        task: &TaskId,
        compute: impl Fn(&View) -> Result<T, Halt>,
    ) -> Result<(T, bool), EngineError> {
        let mut view = View::new(task.clone());
        let mut moves = 0;
        for _ in 0..LOADS_MAX {
            let missing = match compute(&view) {
                Ok(value) => return Ok((value, moves < MOVES_MAX)),
                Err(Halt::Refuse(refusal)) => return Err(refusal.into()),
                Err(Halt::Need(keys)) => keys,
            };
            for keys in missing.chunks(BATCH_MAX - 1) {
                if self.read_part(&mut view, keys, moves < MOVES_MAX).await? {
                    moves += 1;
                    break; // what was asked for may be another by now
                }
            }
        }
        Err(StoreError::Corrupt("its records do not end".to_owned()).into())
    }

    /// Reads records behind the header. Gives true if the task has moved since the last reading;
    /// unless it is to go on all the same, the view then forgets what may have changed.
    async fn read_part(
        &self,
        view: &mut View,
        keys: &[Key],
        strict: bool,
    ) -> Result<bool, EngineError> {
        let rest = keys.iter().filter(|key| **key != Key::Header).cloned();
        let keys: Vec<Key> = std::iter::once(Key::Header).chain(rest).collect();
        let scope = Scope::Task(view.task().clone());
        let load = Load { scope, fields: keys.iter().map(Key::field).collect() };
        let loaded = self.core.load(&[load], crate::engine::READ_PATIENCE).await?;
        let (knows, known) = (view.knows(&Key::Header), view.version(&Key::Header));
        let mut moved = false;
        for (key, stored) in keys.into_iter().zip(loaded.into_iter().flatten()) {
            let version = stored.as_ref().map(|record| record.version);
            if key == Key::Header && knows {
                moved = version != known;
                if moved && strict {
                    view.forget_mutable();
                } else if moved {
                    continue; // the first header stays, so that it names what was read by it
                }
            }
            let record = stored
                .map(|stored| Record::decode(&key, &stored.bytes))
                .transpose()
                .map_err(|error| StoreError::Corrupt(error.to_string()))?;
            view.load(key, record, version);
        }
        Ok(moved && strict)
    }
}

//! The engine: the only way in which state changes, for api, scheduler and workers alike.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use standfast_domain::commit::{Commit, Home, IndexChange, Scope};
use standfast_domain::decide::{Command, Submission};
use standfast_domain::evolve::header_todo;
use standfast_domain::ids::{Principal, Queue, StepId, TaskId};
use standfast_domain::index;
use standfast_domain::record::{Gate, Key, Record, Status};
use standfast_domain::refusal::Halt;
use standfast_domain::stage::Wake;
use standfast_domain::time::Time;
use standfast_domain::view::{Todo, View};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::batch::{Stay, command_for};
use crate::birth;
use crate::core::{Core, Counters, Later};
use crate::lane::{self, Done, Input, Request};
use crate::ports::{BATCH_MAX, Broker, Clock, Ids, Load, Range, Store, StoreError};
use crate::{EngineError, Standing};

/// Lanes of a process: a few, so that each has many commands to put into one commit.
const LANES: usize = 4;
/// Payload records that a birth may carry in its own commit; more are written ahead.
const BIRTH_RECORDS_MAX: usize = 150;
/// The index of queues in which steps have ever become ready.
const QUEUES: &str = "queues";
/// How long a submission waits for the broker to declare a queue that is new to the process:
/// a broker that is away refuses no task.
const DECLARE_BOUND: Duration = Duration::from_secs(1);
/// How long a read goes on trying when the store does not answer.
pub(crate) const READ_PATIENCE: Duration = Duration::from_secs(5);

/// Queues that this process has noted in the installation's list, for as long as the store has
/// answered since: one that came back may be older and not know them.
#[derive(Default)]
struct KnownQueues {
    names: BTreeSet<Queue>,
    outages: u64,
}

/// Loads, decides, commits, and sends what follows. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
    queues: Arc<Mutex<KnownQueues>>,
    lanes: Arc<Vec<mpsc::UnboundedSender<Input>>>,
}

/// An engine for its own tasks: it ends with the last [`Engine`].
struct WeakEngine {
    core: Weak<Core>,
    queues: Arc<Mutex<KnownQueues>>,
    lanes: Weak<Vec<mpsc::UnboundedSender<Input>>>,
}

impl WeakEngine {
    fn upgrade(&self) -> Option<Engine> {
        let (core, lanes) = (self.core.upgrade()?, self.lanes.upgrade()?);
        Some(Engine { core, queues: self.queues.clone(), lanes })
    }
}

impl Engine {
    /// Starts the engine's lanes on the current runtime.
    pub fn start(
        store: Arc<dyn Store>,
        broker: Arc<dyn Broker>,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
    ) -> Self {
        let (core, later) = Core::start(store, broker, clock, ids);
        let lanes = (0..LANES).map(|_| lane::start(core.clone())).collect();
        let engine = Self { core, queues: Arc::default(), lanes: Arc::new(lanes) };
        tokio::spawn(follow(engine.downgrade(), later));
        engine
    }

    /// Carries out a command on a task; `wants` names records to give back with the answer.
    /// An `Unavailable` store leaves the outcome unknown: asking again is always right.
    pub async fn execute(
        &self,
        task: &TaskId,
        command: Command,
        actor: Principal,
        wants: Vec<Key>,
    ) -> Result<Done, EngineError> {
        self.execute_staying(task, command, actor, wants, None).await
    }

    /// Carries out a command, and claims a step that it releases for a worker who stays.
    pub(crate) async fn execute_staying(
        &self,
        task: &TaskId,
        command: Command,
        actor: Principal,
        wants: Vec<Key>,
        stay: Option<Stay>,
    ) -> Result<Done, EngineError> {
        let (reply, answer) = oneshot::channel();
        let (task_id, reply) = (task.clone(), Some(reply));
        let request = Request { task: task_id, command, actor, wants, stay, reply };
        let gone = || EngineError::Store(StoreError::Unavailable("the engine is ending".into()));
        self.lane(task).send(Input::Ask(Box::new(request))).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    fn downgrade(&self) -> WeakEngine {
        let (core, lanes) = (Arc::downgrade(&self.core), Arc::downgrade(&self.lanes));
        WeakEngine { core, queues: self.queues.clone(), lanes }
    }

    fn lane(&self, task: &TaskId) -> &mpsc::UnboundedSender<Input> {
        let sum = task
            .as_str()
            .bytes()
            .fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        &self.lanes[sum % self.lanes.len()]
    }

    /// Accepts a task; gives its id and whether it is new.
    pub async fn submit(&self, mut submission: Submission) -> Result<(TaskId, bool), EngineError> {
        self.check_durability(&submission).await?;
        if !submission.outgoing.is_empty() {
            self.core.outbox_has_room().await?;
        }
        let steps = submission.plan.steps.iter().chain(&submission.plan.finally);
        self.know_queues(steps.map(|step| &step.queue)).await?;
        let by = submission.submitted_by.clone();
        let task = match &submission.idempotency_key {
            Some(key) => TaskId::keyed(&by, key),
            None => TaskId::random(self.core.random()),
        };
        if submission.plan.steps.len() + submission.plan.finally.len() > BIRTH_RECORDS_MAX / 3 {
            birth::write_ahead(self, &task, &submission).await?;
            submission.written_ahead = true;
        }
        let command = Command::Submit(Box::new(submission));
        let done = self.execute(&task, command, by, Vec::new()).await?;
        Ok((task, done.acted))
    }

    /// Notes queues in the installation's list before steps become ready in them, so that the
    /// sweep of what is ready looks there.
    pub async fn know_queues(
        &self,
        queues: impl Iterator<Item = &Queue>,
    ) -> Result<(), EngineError> {
        let outages = self.standing().outages();
        let new: BTreeSet<Queue> = {
            let mut known = self.queues.lock().expect("no panic while held");
            if known.outages != outages {
                *known = KnownQueues { names: BTreeSet::new(), outages };
            }
            queues.filter(|queue| !known.names.contains(queue)).cloned().collect()
        };
        let names: Vec<&Queue> = new.iter().collect();
        for part in names.chunks(BATCH_MAX) {
            let entry = |queue: &&Queue| IndexChange {
                index: QUEUES.to_owned(),
                member: queue.to_string(),
                add: true,
            };
            self.change_indexes(Scope::Installation, part.iter().map(entry).collect()).await?;
        }
        for queue in &new {
            // So that the first wake finds its queue; if not, the broker declares it then.
            let declared = self.core.broker.declare(queue);
            match tokio::time::timeout(DECLARE_BOUND, declared).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%queue, %error, "queue not declared"),
                Err(_) => tracing::warn!(%queue, "queue not declared: the broker is silent"),
            }
        }
        let mut known = self.queues.lock().expect("no panic while held");
        if known.outages == outages {
            known.names.extend(new);
        }
        Ok(())
    }

    /// Lists the queues in which steps have ever become ready.
    pub async fn queues(&self) -> Result<Vec<Queue>, EngineError> {
        let mut queues: Vec<Queue> = Vec::new();
        loop {
            let range = Range {
                home: Home::Installation,
                index: QUEUES.to_owned(),
                after: queues.last().map(Queue::to_string).unwrap_or_default(),
                before: None,
                limit: BATCH_MAX,
                reverse: false,
            };
            let page = self.core.store.ranges(&[range]).await?.pop().unwrap_or_default();
            queues.extend(page.iter().filter_map(|name| Queue::new(name.as_str()).ok()));
            if page.len() < BATCH_MAX {
                return Ok(queues);
            }
        }
    }

    /// Gives the store's time, asking it if it has never answered.
    pub async fn now(&self) -> Result<Time, EngineError> {
        if let Some(now) = self.core.now() {
            return Ok(now);
        }
        let now = self.core.store.now().await?;
        self.core.heard(now);
        Ok(now)
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Gives 16 random bytes.
    pub fn random(&self) -> [u8; 16] {
        self.core.random()
    }

    /// Gives the local clock.
    pub fn clock(&self) -> &dyn Clock {
        self.core.clock()
    }

    /// Gives the store, for reads and for what no task owns.
    pub fn store(&self) -> &dyn Store {
        &*self.core.store
    }

    /// Says how the store stands with this process.
    pub fn standing(&self) -> &Standing {
        &self.core.standing
    }

    /// Gives the broker.
    pub fn broker(&self) -> &dyn Broker {
        &*self.core.broker
    }

    /// Gives counts for metrics.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// Hears of tasks that this process has changed.
    pub fn listen(&self) -> broadcast::Receiver<TaskId> {
        self.core.listen()
    }

    /// Makes an id for a commit outside of tasks.
    pub fn commit_id(&self) -> standfast_domain::commit::CommitId {
        self.core.commit_id()
    }

    /// Reads records of a task as they are stored.
    pub async fn read(
        &self,
        task: &TaskId,
        keys: &[Key],
    ) -> Result<BTreeMap<Key, Option<Record>>, EngineError> {
        let mut records = BTreeMap::new();
        for part in keys.chunks(BATCH_MAX) {
            let scope = Scope::Task(task.clone());
            let load = Load { scope, fields: part.iter().map(Key::field).collect() };
            let loaded = self.core.load(&[load], READ_PATIENCE).await?;
            for (key, stored) in part.iter().zip(loaded.into_iter().flatten()) {
                let record = stored
                    .map(|stored| Record::decode(key, &stored.bytes))
                    .transpose()
                    .map_err(|error| StoreError::Corrupt(error.to_string()))?;
                records.insert(key.clone(), record);
            }
        }
        Ok(records)
    }

    /// Reads records into a view, for computations of the domain.
    pub async fn view(&self, task: &TaskId, keys: &[Key]) -> Result<View, EngineError> {
        let mut view = View::new(task.clone());
        for (key, record) in self.read(task, keys).await? {
            if key != Key::Header || record.is_some() {
                view.load(key, record, None);
            }
        }
        Ok(view)
    }

    /// Wakes workers again for steps that may still be ready; says of each message whether the
    /// broker has it.
    pub async fn wake_again(&self, wakes: &[Wake]) -> Vec<bool> {
        self.core.publish_steps(wakes).await
    }

    /// Carries out what a `work` entry calls for. Gives false if it was stale.
    pub async fn follow_up(
        &self,
        task: &TaskId,
        step: Option<&StepId>,
    ) -> Result<bool, EngineError> {
        let Some(step) = step else { return self.settle(task).await };
        let keys = [Key::Header, Key::Definition(step.clone()), Key::Step(step.clone())];
        let records = self.read(task, &keys).await?;
        let Some(Some(Record::Step(state))) = records.get(&keys[2]) else { return Ok(false) };
        let todo = match state.telling {
            Some(_) => Todo::Tell(step.clone()),
            None => Todo::Release(step.clone()),
        };
        self.carry_out(task, &todo).await
    }

    /// Loads what a follow-up needs, evaluates, and gives the command to the task's lane.
    async fn carry_out(&self, task: &TaskId, todo: &Todo) -> Result<bool, EngineError> {
        let now = self.now().await?;
        let mut view = View::new(task.clone());
        loop {
            match command_for(&view, todo, now) {
                Ok(command) => {
                    let done = self.execute(task, command, Principal::system(), Vec::new()).await?;
                    return Ok(done.acted);
                }
                Err(Halt::Refuse(refusal)) => return Err(refusal.into()),
                Err(Halt::Need(keys)) => {
                    for (key, record) in self.read(task, &keys).await? {
                        view.load(key, record, None);
                    }
                }
            }
        }
    }

    /// Goes on with what a header calls for: opening, checking, ending, clearing.
    pub async fn settle(&self, task: &TaskId) -> Result<bool, EngineError> {
        let records = self.read(task, &[Key::Header]).await?;
        let Some(Some(Record::Header(header))) = records.get(&Key::Header) else {
            return Ok(false);
        };
        if header.state.is_final() {
            return match header.uncleared {
                true => self.clear(task, header.order_chunks).await.map(|()| true),
                false => Ok(false),
            };
        }
        match header_todo(header) {
            Some(Todo::Advance) => {
                let claimed = self.claimed(task).await?;
                let command = Command::Advance { claimed };
                let done = self.execute(task, command, Principal::system(), Vec::new()).await?;
                Ok(done.acted)
            }
            Some(todo) => self.carry_out(task, &todo).await,
            None => Ok(false),
        }
    }

    /// Lists the steps of a task that have a claim.
    pub async fn claimed(&self, task: &TaskId) -> Result<Vec<StepId>, EngineError> {
        let mut steps = Vec::new();
        let mut after = index::step_member(task, None);
        let before = format!("{task}{}", char::from(index::SEPARATOR.as_bytes()[0] + 1));
        loop {
            let range = Range {
                home: Home::Partition(task.partition()),
                index: index::CLAIMS.to_owned(),
                after: after.clone(),
                before: Some(before.clone()),
                limit: BATCH_MAX,
                reverse: false,
            };
            let page = self.core.store.ranges(&[range]).await?.pop().unwrap_or_default();
            let Some(last) = page.last() else { return Ok(steps) };
            after.clone_from(last);
            let entries = page.iter().filter_map(|member| index::ClaimEntry::parse(member));
            steps.extend(entries.map(|entry| entry.step));
        }
    }

    /// Wakes workers for all ready steps of a task that nobody has claimed.
    async fn wake_task(&self, task: &TaskId) -> Result<(), EngineError> {
        let records = self.read(task, &[Key::Header, Key::Gate]).await?;
        let Some(Some(Record::Header(header))) = records.get(&Key::Header) else { return Ok(()) };
        let epoch = match records.get(&Key::Gate) {
            Some(Some(Record::Gate(gate))) => gate.epoch,
            _ => Gate::default().epoch,
        };
        for chunk in 0..header.order_chunks {
            let names = self.names(task, &Key::Order(chunk)).await?;
            let steps: Vec<Key> = names.iter().cloned().map(Key::Step).collect();
            let claims: Vec<Key> = names.into_iter().map(Key::Claim).collect();
            let claims = self.read(task, &claims).await?;
            let mut wakes = Vec::new();
            for (key, record) in self.read(task, &steps).await? {
                if let (Key::Step(step), Some(Record::Step(state))) = (key, record)
                    && let Status::Ready { queue, .. } = state.status
                    && !claims.get(&Key::Claim(step.clone())).is_some_and(Option::is_some)
                {
                    let (task, attempt) = (task.clone(), state.attempt);
                    wakes.push(Wake { queue, task, step, epoch, attempt });
                }
            }
            self.core.wake(wakes);
        }
        Ok(())
    }

    async fn names(&self, task: &TaskId, key: &Key) -> Result<Vec<StepId>, EngineError> {
        Ok(match self.read(task, std::slice::from_ref(key)).await?.remove(key) {
            Some(Some(Record::Names(names))) => names,
            _ => Vec::new(),
        })
    }

    /// Removes index entries of steps that never settled in a task that has ended.
    async fn clear(&self, task: &TaskId, order_chunks: u32) -> Result<(), EngineError> {
        for chunk in 0..order_chunks {
            let names = self.names(task, &Key::Order(chunk)).await?;
            let keys: Vec<Key> = names.into_iter().map(Key::Step).collect();
            let records = self.read(task, &keys).await?;
            let stale: Vec<IndexChange> = records
                .iter()
                .filter_map(|(key, record)| Some((key, record.as_ref()?)))
                .flat_map(|(key, record)| index::entries(task, key, record))
                .map(|(index, member)| IndexChange { index, member, add: false })
                .collect();
            for part in stale.chunks(BATCH_MAX) {
                self.change_indexes(Scope::Task(task.clone()), part.to_vec()).await?;
            }
        }
        self.execute(task, Command::EntriesCleared, Principal::system(), Vec::new()).await?;
        Ok(())
    }

    /// Changes index entries alone: clearing what is stale, announcing what no task owns.
    pub async fn change_indexes(
        &self,
        scope: Scope,
        indexes: Vec<IndexChange>,
    ) -> Result<(), EngineError> {
        if indexes.is_empty() {
            return Ok(());
        }
        let commit = Commit {
            id: self.core.commit_id(),
            scope,
            guards: Vec::new(),
            writes: Vec::new(),
            first_event: 0,
            events: Vec::new(),
            indexes,
            returns: Vec::new(),
        };
        self.core.commit(&[commit], READ_PATIENCE).await?;
        Ok(())
    }

    /// Writes to a scope that is no task's, under guards. Gives false if a guard failed.
    pub async fn commit_raw(&self, commit: Commit) -> Result<bool, EngineError> {
        let (_, answers) = self.core.commit(&[commit], READ_PATIENCE).await?;
        Ok(answers.first().is_some_and(|answer| answer.applied))
    }
}

/// Does what commits left to be done. A failure is left to the sweeps of the indexes.
async fn follow(engine: WeakEngine, mut later: mpsc::UnboundedReceiver<Later>) {
    while let Some(next) = later.recv().await {
        let Some(engine) = engine.upgrade() else { return };
        tokio::spawn(async move {
            let done = match &next {
                Later::Settle(task) => engine.settle(task).await.map(|_| ()),
                Later::Wake(task) => engine.wake_task(task).await,
            };
            if let Err(error) = done {
                tracing::debug!(%error, ?next, "left to the sweeps");
            }
        });
    }
}

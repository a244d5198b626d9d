//! What a task has changed outside, or may have: the list of its effects, and what the six
//! answers say of them.
//!
//! Effects stand in one record a step. The header counts them all, so that a task without any
//! costs no walk; each step counts its own, so that a walk reads only the records there are.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde_json::json;
use standfast_domain::canonical::digest_hex;
use standfast_domain::ids::StepId;
use standfast_domain::record::{
    Effect, Key, Landing, Payload, Record, Standing, Status, StepState, StopMode,
};
use standfast_domain::time::Time;
use standfast_protocol::paths;
use standfast_protocol::task_effects::{EffectPage, EffectQuery, EffectStanding, EffectView};

use crate::Api;
use crate::auth::{On, needs};
use crate::cursor::List;
use crate::extract;
use crate::present::effect::{Exchanged, Seen, Touched, standing, view};
use crate::present::explain::Outside;
use crate::problems::Fail;
use crate::reads::{self, Base};

/// Chunks of names that are read at a time: outcomes that add one step each make short ones.
const CHUNKS_AT_ONCE: u32 = 16;
/// Names that one page looks at: a walk over the largest task takes three pages, whatever it
/// finds.
const NAMES_A_PAGE_MAX: usize = 4_000;
/// Bytes of requests and receipts on a page, after which it ends: an effect may have half a
/// mebibyte of them.
const BYTES_A_PAGE_MAX: usize = 4 * 1024 * 1024;
/// Rounds in which the request of an effect is looked for, the newest first.
const ROUNDS_LOOKED_AT: u32 = 8;
/// Effects of each standing that the six answers take in.
const EXPLAINED_MAX: usize = 200;
/// Of each standing, effects whose requests and receipts the six answers read.
const EXCHANGES_MAX: usize = 20;

/// Where a page of effects begins: behind an effect of a step, by its place among the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct From {
    chunk: u32,
    at: usize,
    /// The last effect of that step that was shown; empty: none.
    name: String,
}

impl From {
    fn write(&self) -> String {
        format!("{}.{}.{}", self.chunk, self.at, self.name)
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let (chunk, at) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { chunk, at, name: parts.next()?.to_owned() })
    }
}

/// Lists the effects of a task, in the order of the plan and by name.
#[utoipa::path(get, path = paths::TASK_EFFECTS, tag = "tasks",
    params(("id" = String, Path, description = "the task"), EffectQuery),
    responses((status = 200, body = EffectPage)))]
pub(crate) async fn effects(
    State(api): State<Api>,
    On { base, .. }: On<needs::View>,
    uri: Uri,
) -> Result<Json<EffectPage>, Fail> {
    let query: EffectQuery = extract::query(&uri)?;
    let limit = extract::page_limit(query.limit)?;
    let list = List::new(&json!(["effects", base.task]));
    let from = match &query.cursor {
        Some(cursor) => From::read(&list.place(cursor)?).ok_or_else(Fail::bad_cursor)?,
        None => From::default(),
    };
    let (effects, next) = page(&api, &base, from, limit).await?;
    let next_cursor = next.map(|next| list.cursor(&next.write()));
    Ok(Json(EffectPage { effects, next_cursor }))
}

/// Reads up to `limit` effects behind a place, and where to go on.
async fn page(
    api: &Api,
    base: &Base,
    from: From,
    limit: usize,
) -> Result<(Vec<EffectView>, Option<From>), Fail> {
    let (mut effects, mut looked, mut bytes) = (Vec::new(), 0, 0);
    let (now, undone) = (api.engine().now().await?, Undone::read(api, base).await?);
    let mut chunk = from.chunk;
    while let Some(part) = part(api, base, chunk).await? {
        for (place, found) in part.touched {
            let after = match place.cmp(&(from.chunk, from.at)) {
                std::cmp::Ordering::Less => continue,
                std::cmp::Ordering::Equal => from.name.as_str(),
                std::cmp::Ordering::Greater => "",
            };
            for (name, effect) in found.effects.iter().filter(|(name, _)| name.as_str() > after) {
                if effects.len() == limit || bytes > BYTES_A_PAGE_MAX {
                    return Ok((effects, Some(last(place, &found, name))));
                }
                let exchanged = exchanged(api, base, &found.step, name, effect).await?;
                bytes += size(&exchanged.request) + size(&exchanged.receipt);
                let undone_at = undone.at(&found.step, name, effect);
                let view = view(base, now, &found, name, effect, exchanged);
                effects.push(EffectView { undone_at: undone_at.map(Time::rfc3339), ..view });
            }
        }
        looked += part.names;
        chunk = part.next;
        if looked >= NAMES_A_PAGE_MAX && chunk < base.header.order_chunks {
            return Ok((effects, Some(From { chunk, ..From::default() })));
        }
    }
    Ok((effects, None))
}

/// Gives the place just before an effect.
fn last((chunk, at): (u32, usize), found: &Touched, name: &str) -> From {
    let before = found.effects.keys().map(String::as_str).rfind(|other| *other < name);
    From { chunk, at, name: before.unwrap_or_default().to_owned() }
}

fn size(payload: &Option<Payload>) -> usize {
    match payload {
        Some(Payload::Inline(value)) => serde_json::to_vec(value).map_or(0, |bytes| bytes.len()),
        Some(Payload::Blob { .. }) | None => 0,
    }
}

/// Part of a walk over a task's names.
struct Part {
    /// Steps with effects, by chunk and place in it.
    touched: Vec<((u32, usize), Touched)>,
    /// Names that were looked at.
    names: usize,
    /// The chunk to go on with.
    next: u32,
}

/// Reads the steps with effects of some chunks; nothing behind the last, or if there are none.
async fn part(api: &Api, base: &Base, chunk: u32) -> Result<Option<Part>, Fail> {
    let next = base.header.order_chunks.min(chunk.saturating_add(CHUNKS_AT_ONCE));
    let keys: Vec<Key> = (chunk..next).map(Key::Order).collect();
    if base.header.effects == 0 || keys.is_empty() {
        return Ok(None);
    }
    let mut found = reads::of_task(api.engine(), &base.task, keys.clone()).await?;
    let mut names = Vec::new();
    for (number, key) in (chunk..next).zip(keys) {
        let Some(Record::Names(part)) = found.remove(&key) else { continue };
        names.extend(part.into_iter().enumerate().map(|(at, name)| ((number, at), name)));
    }
    let keys = names.iter().map(|(_, step)| Key::Step(step.clone())).collect();
    let states = reads::of_task(api.engine(), &base.task, keys).await?;
    let looked = names.len();
    let state = |step: &StepId| match states.get(&Key::Step(step.clone())) {
        Some(Record::Step(state)) if state.effects > 0 => Some(state),
        _ => None,
    };
    names.retain(|(_, step)| state(step).is_some());
    let keys = |step: &StepId| [Key::Effects(step.clone()), Key::Claim(step.clone())];
    let wants = names.iter().flat_map(|(_, step)| keys(step)).collect();
    let mut found = reads::of_task(api.engine(), &base.task, wants).await?;
    let mut touched = Vec::with_capacity(names.len());
    for (place, step) in names {
        let [effects, claim] = keys(&step);
        let running = found.remove(&claim).is_some();
        let Some(Record::Effects(effects)) = found.remove(&effects) else { continue };
        let past = base.header.phase.is_past(base.meta.part(&step));
        let over = past || state(&step).is_some_and(StepState::is_settled);
        touched.push((place, Touched { step, effects, running, over }));
    }
    Ok(Some(Part { touched, names: looked, next }))
}

/// Reads what was sent, and what came back.
async fn exchanged(
    api: &Api,
    base: &Base,
    step: &StepId,
    name: &str,
    effect: &Effect,
) -> Result<Exchanged, Fail> {
    let receipt = match &effect.standing {
        Standing::Landed { output_round: Some(round), .. } => {
            Some(Key::Output(step.clone(), *round))
        }
        Standing::Landed { output_round: None, .. } => {
            Some(Key::Receipt(step.clone(), name.to_owned(), effect.generation))
        }
        Standing::InFlight | Standing::Uncertain { .. } | Standing::NotLanded { .. } => None,
    };
    let stored =
        effect.request_attempt.map(|attempt| Key::Request(step.clone(), name.to_owned(), attempt));
    let wants = receipt.iter().chain(&stored).cloned().collect();
    let mut records = reads::of_task(api.engine(), &base.task, wants).await?;
    let mut take = |key: Option<Key>| match records.remove(&key?) {
        Some(Record::Payload(payload)) => Some(payload),
        _ => None,
    };
    let receipt = take(receipt);
    let request = match stored {
        Some(stored) => take(Some(stored)),
        None => input(api, base, step, &effect.request_sha256).await?.map(Payload::Inline),
    };
    Ok(Exchanged { request, receipt })
}

/// When which effects were undone, by step, name and generation.
struct Undone(BTreeMap<(StepId, String, u32), Time>);

impl Undone {
    /// Reads the runs of the stop that undoes; without one nothing was undone.
    async fn read(api: &Api, base: &Base) -> Result<Self, Fail> {
        let stop = base.gate.stop.as_ref();
        if stop.is_none_or(|stop| stop.mode != StopMode::Undo) {
            return Ok(Self(BTreeMap::new()));
        }
        let keys = (1..=base.header.landings).map(Key::Landing).collect();
        let landings = reads::of_task(api.engine(), &base.task, keys).await?;
        let landings: Vec<(u32, Landing)> = landings
            .into_iter()
            .filter_map(|entry| match entry {
                (Key::Landing(number), Record::Landing(landing)) => Some((number, landing)),
                _ => None,
            })
            .collect();
        let run = |(number, landing): &(u32, Landing)| Key::Step(landing.step.undo(*number));
        let keys = landings.iter().map(run).collect();
        let runs = reads::of_task(api.engine(), &base.task, keys).await?;
        let done = landings.into_iter().filter_map(|landing| match runs.get(&run(&landing)) {
            Some(Record::Step(StepState { status: Status::Succeeded { at }, .. })) => {
                let Landing { step, name, generation, .. } = landing.1;
                Some(((step, name, generation), *at))
            }
            _ => None,
        });
        Ok(Self(done.collect()))
    }

    fn at(&self, step: &StepId, name: &str, effect: &Effect) -> Option<Time> {
        self.0.get(&(step.clone(), name.to_owned(), effect.generation)).copied()
    }
}

/// Finds the resolved input that was the request, by its digest: a `redo` may have made others.
async fn input(
    api: &Api,
    base: &Base,
    step: &StepId,
    sha256: &str,
) -> Result<Option<serde_json::Value>, Fail> {
    let keys = vec![Key::Definition(step.clone()), Key::Step(step.clone())];
    let mut records = reads::of_task(api.engine(), &base.task, keys).await?;
    let plain = match records.remove(&Key::Definition(step.clone())) {
        Some(Record::Definition(definition)) => Some(definition.plan.with.clone()),
        _ => None,
    };
    let round = match records.remove(&Key::Step(step.clone())) {
        Some(Record::Step(state)) => state.round,
        _ => 1,
    };
    let rounds = (1..=round).rev().take(ROUNDS_LOOKED_AT as usize);
    let keys: Vec<Key> = rounds.map(|round| Key::Resolution(step.clone(), round)).collect();
    let mut records = reads::of_task(api.engine(), &base.task, keys.clone()).await?;
    let resolved = keys.iter().filter_map(|key| match records.remove(key) {
        Some(Record::Value(with)) => Some(with),
        _ => None,
    });
    Ok(resolved.chain(plain).find(|with| digest_hex(with) == sha256))
}

/// Gathers what the six answers say of a task's effects: the open ones, and the landed ones
/// oldest first; the first of each with what was sent and what came back.
pub(crate) async fn outside(api: &Api, base: &Base, now: Time) -> Result<Outside, Fail> {
    let (mut open, mut landed) = (Vec::new(), Vec::new());
    let undone = Undone::read(api, base).await?;
    let mut chunk = 0;
    while let Some(part) = part(api, base, chunk).await? {
        for (_, found) in part.touched {
            for (name, effect) in &found.effects {
                let answers = found.answers(base, now, name, effect);
                let undone_at = undone.at(&found.step, name, effect);
                let (step, name, effect) = (found.step.clone(), name.clone(), effect.clone());
                let known = standing(&effect);
                let exchanged = Exchanged::default();
                let seen = Seen { step, name, effect, undone_at, answers, exchanged };
                match known {
                    (EffectStanding::InFlight | EffectStanding::Uncertain, _) => open.push(seen),
                    (EffectStanding::Landed, at) => landed.push((at, seen)),
                    (EffectStanding::NotLanded, _) => {}
                }
            }
        }
        landed.sort_by_key(|(at, _)| *at);
        landed.truncate(EXPLAINED_MAX);
        open.truncate(EXPLAINED_MAX);
        chunk = part.next;
    }
    let mut outside = Outside { open, landed: landed.into_iter().map(|(_, seen)| seen).collect() };
    let Outside { open, landed } = &mut outside;
    let first = open.iter_mut().take(EXCHANGES_MAX).chain(landed.iter_mut().take(EXCHANGES_MAX));
    for seen in first {
        seen.exchanged = exchanged(api, base, &seen.step, &seen.name, &seen.effect).await?;
    }
    Ok(outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back() {
        for (chunk, at, name) in [(0, 0, ""), (12, 399, "main"), (1, 2, "a.b.c")] {
            let from = From { chunk, at, name: name.to_owned() };
            assert_eq!(From::read(&from.write()), Some(from));
        }
        for text in ["", "1", "1.2", "x.1.a", "1.-1.a"] {
            assert_eq!(From::read(text), None, "{text}");
        }
    }
}

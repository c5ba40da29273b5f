//! Acceptance: idempotency, the session, the place in its line, limits, and the start of a run whose worker is there.

use std::sync::Arc;

use cadre_protocol::ids::{ComponentRef, Epoch, RunId};
use cadre_protocol::journal::Progress;
use cadre_protocol::run::{RunMetrics, RunStatus, Uploads};
use serde_json::{Map, Value};

use crate::db::{Db, DbError, vals};
use crate::ops::allowances::Allowances;
use crate::ops::depth::{self, Full, Wish};
use crate::ops::leases::Joined;
use crate::ops::snapshots::{self, Snapshots};
use crate::ops::{columns, keys, leases, slots, start, uploads};
use crate::rows::{AcceptOutcome, Claim, IdempotencyKey, Lineage, NewRun, Origin, RunRow, StartedRun};

/// All that acceptance must know, in one row.
const FIND: &str = "select (select 1 from runs where run_id = ?1), s.principal, coalesce(s.kind, 'agent'), s.namespace, \
     s.name, s.next_seq, s.state, case when s.title = '' or s.name is null then 1 else 0 end, \
     (select o.run_id from runs o where o.session_id = ?2 and o.finished_at_ms is null order by o.seq desc limit 1), \
     (select 1 from runs f where f.session_id = ?2 and f.files is not null limit 1), \
     l.worker_id, l.registration, l.epoch, l.connected from (select 1 as one) as here \
     left join sessions s on s.session_id = ?2 left join session_leases l on l.session_id = ?2";
const INSERT_SESSION: &str = "insert into sessions (session_id, kind, namespace, name, principal, user_id, title, state, \
     metadata, next_seq, created_at_ms, updated_at_ms) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, '{}', 2, ?9, ?9)";
const ADVANCE_SESSION: &str = "update sessions set next_seq = next_seq + 1, updated_at_ms = ?2 where session_id = ?1";
/// What a session that was made without a run still lacks.
const ADOPT: &str = "update sessions set title = case when title = '' then ?2 else title end, \
     namespace = case when name is null then ?3 else namespace end, kind = case when name is null then ?6 else kind end, \
     name = coalesce(name, ?4), user_id = coalesce(user_id, ?5) where session_id = ?1";
const SET_STATE: &str = "update sessions set state = ?2 where session_id = ?1";
const HEAD: &str = "select run_id from runs where session_id = ?1 and finished_at_ms is null order by seq limit 1";
const INSERT_RUN: &str = "insert into runs (run_id, session_id, seq, kind, namespace, name, principal, user_id, object_uid, \
     object_name, status, revision, attempt, epoch, timeout_seconds, created_at_ms, started_at_ms, cancel_requested, \
     metadata, input, files, max_sessions, slot, trace_parent) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, \
     ?17, 0, ?18, ?19, ?20, ?21, ?22, ?23)";

/// Longest name that a session gets from its first input, in characters.
const MAX_TITLE_CHARS: usize = 80;

/// A run to accept, with its texts written before a writer has to wait for them.
pub struct Accept {
    run: NewRun,
    input: String,
    /// Its files once more, where the next runs of the session find them.
    files: Option<String>,
    metadata: String,
    /// The snapshot, unless it is known to be stored.
    snapshot: Option<String>,
    depths: Arc<Allowances>,
}

/// A session as acceptance finds it, with its lease.
struct Place {
    seq: u64,
    state: Map<String, Value>,
    before: Option<RunId>,
    /// Whether a file has ever come with one of its runs.
    has_files: bool,
    is_new: bool,
    /// Whether it was made without a run and lacks a name or a component.
    is_bare: bool,
    lease: Joined,
}

/// What is found of a run that is to be.
enum Found {
    RunExists,
    ForeignSession,
    OtherComponent(ComponentRef),
    Place(Place),
}

impl Accept {
    /// The run.
    pub fn run(&self) -> &NewRun {
        &self.run
    }

    /// Serializes what will be stored.
    pub fn prepare(run: NewRun, snapshots: &Snapshots, depths: &Arc<Allowances>) -> Result<Self, DbError> {
        let snapshot = match snapshots.cached(&run.revision) {
            Some(_) => None,
            None => Some(serde_json::to_string(&*run.agent)?),
        };
        Ok(Self {
            input: serde_json::to_string(&run.input)?,
            files: uploads::column(&run.input)?,
            metadata: serde_json::to_string(&run.metadata)?,
            snapshot,
            depths: Arc::clone(depths),
            run,
        })
    }

    /// Whether it may get a slot in the same commit.
    pub fn may_take_slot(&self) -> bool {
        self.run.claim.is_some() && slots::is_limited(&self.run)
    }
}

/// Accepts a run. One that is to end at once takes no worker and no place in the queue.
pub fn accept(db: &mut dyn Db, accept: &Accept, ends_at_once: bool) -> Result<AcceptOutcome, DbError> {
    let run = &accept.run;
    if let Some(key) = &run.idempotency
        && let Some(outcome) = replay(db, run, key)?
    {
        return Ok(outcome);
    }
    db.lock_session(run.session_id.as_str())?;
    let place = match find(db, run)? {
        Found::RunExists => return Ok(AcceptOutcome::RunExists),
        Found::ForeignSession => return Ok(AcceptOutcome::ForeignSession),
        Found::OtherComponent(component) => return Ok(AcceptOutcome::OtherComponent(component)),
        Found::Place(place) => place,
    };
    if run.refuse_if_busy && place.before.is_some() {
        let head = first_id(db, HEAD, run.session_id.as_str())?;
        return Ok(AcceptOutcome::SessionBusy(head.unwrap_or_else(|| run.run_id.clone())));
    }
    let epoch = if ends_at_once { None } else { claimed(db, run, &place)? };
    if epoch.is_none()
        && !ends_at_once
        && let Some(full) = depth::full(db, &accept.depths, &wish(run))?
    {
        return Ok(match full {
            Full::Queue => AcceptOutcome::QueueFull,
            Full::Namespace => AcceptOutcome::NamespaceFull(run.component.namespace.clone()),
        });
    }
    let state = write_session(db, run, &place)?;
    if let Some(json) = &accept.snapshot {
        snapshots::insert(db, &run.revision, &run.agent, json, run.at_ms)?;
    }
    insert_run(db, accept, place.seq, epoch)?;
    if let Some(key) = &run.idempotency {
        keys::insert(db, keys::Scope::of(run), key, (&run.run_id, &run.session_id), run.at_ms)?;
    }
    let row = row(run, epoch);
    let started = match epoch {
        Some(epoch) => Some(Box::new(started(db, run, &place, row.clone(), epoch, state)?)),
        None => None,
    };
    Ok(AcceptOutcome::Accepted { run: Box::new(row), waiting_on: place.before, started })
}

fn replay(db: &mut dyn Db, run: &NewRun, key: &IdempotencyKey) -> Result<Option<AcceptOutcome>, DbError> {
    Ok(keys::find(db, keys::Scope::of(run), key)?.map(|found| match found {
        keys::Found::Run(run) => AcceptOutcome::Replayed(run),
        keys::Found::Conflict => AcceptOutcome::IdempotencyConflict,
    }))
}

fn first_id(db: &mut dyn Db, sql: &str, session_id: &str) -> Result<Option<RunId>, DbError> {
    db.first(sql, vals![session_id])?.map(|mut row| row.id()).transpose()
}

fn find(db: &mut dyn Db, run: &NewRun) -> Result<Found, DbError> {
    let found = db.first(FIND, vals![run.run_id.as_str(), run.session_id.as_str()])?;
    let mut row = found.ok_or_else(|| DbError::Corrupt("a statement that always answers did not".into()))?;
    if row.opt_int()?.is_some() {
        return Ok(Found::RunExists);
    }
    let (principal, component) = (row.opt_text()?, columns::opt_component(&mut row)?);
    let (seq, state, is_bare) = (row.opt_u64()?, row.opt_json()?, row.bool()?);
    if principal.as_ref().is_some_and(|principal| *principal != run.principal.0) {
        return Ok(Found::ForeignSession);
    }
    if let Some(component) = component.filter(|component| *component != run.component) {
        return Ok(Found::OtherComponent(component));
    }
    let is_new = principal.is_none();
    let (before, has_files) = (row.opt_id()?, row.opt_int()?.is_some());
    Ok(Found::Place(Place {
        seq: seq.unwrap_or(1),
        state: state.unwrap_or_default(),
        before,
        has_files,
        is_new,
        is_bare: is_bare && !is_new,
        lease: leases::joined(&mut row)?,
    }))
}

/// The epoch under which the run starts at once.
fn claimed(db: &mut dyn Db, run: &NewRun, place: &Place) -> Result<Option<Epoch>, DbError> {
    let Some(claim) = run.claim.as_ref().filter(|_| place.before.is_none()) else { return Ok(None) };
    if slots::is_limited(run) && !slots::is_free(db, run)? {
        return Ok(None);
    }
    match claim {
        Claim::Held(wanted) => {
            let is_current = matches!(&place.lease, Joined::Current(lease) if lease == wanted);
            Ok(is_current.then_some(wanted.epoch))
        }
        Claim::New { worker_id, registration } => match &place.lease {
            Joined::None => leases::acquire_first(db, &run.session_id, worker_id, registration, run.at_ms).map(Some),
            // Another worker may still have the session.
            Joined::Current(lease) if lease.worker_id != *worker_id || lease.registration != *registration => Ok(None),
            Joined::Released | Joined::Current(_) => {
                leases::acquire(db, &run.session_id, worker_id, registration, run.at_ms).map(Some)
            }
        },
    }
}

/// What a run that has to wait asks of the queue. One that starts at once does not wait, so it asks nothing.
fn wish(run: &NewRun) -> Wish<'_> {
    Wish {
        agent: &run.agent,
        max_depth: run.max_queue_depth,
        of_namespace: run.shares.max_queue_depth,
        at_ms: run.at_ms,
    }
}

struct ComponentRefText<'a> {
    kind: &'static str,
    namespace: &'a str,
    name: &'a str,
}

fn component_text(run: &NewRun) -> ComponentRefText<'_> {
    let component = &run.component;
    ComponentRefText { kind: component.kind.as_str(), namespace: &component.namespace, name: &component.name }
}

/// Creates the session or moves its line on; answers its state.
fn write_session(db: &mut dyn Db, run: &NewRun, place: &Place) -> Result<Map<String, Value>, DbError> {
    let mut state = place.state.clone();
    state.extend(run.session_state.clone());
    let session_id = run.session_id.as_str();
    if place.is_new {
        let ComponentRefText { kind, namespace, name } = component_text(run);
        let (title, text) = (title(&run.input.text), serde_json::to_string(&state)?);
        let values =
            vals![session_id, kind, namespace, name, &run.principal.0, run.user_id.as_ref(), &title, &text, run.at_ms];
        db.write(INSERT_SESSION, values)?;
        return Ok(state);
    }
    db.write(ADVANCE_SESSION, vals![session_id, run.at_ms])?;
    if place.is_bare {
        let ComponentRefText { kind, namespace, name } = component_text(run);
        db.write(ADOPT, vals![session_id, &title(&run.input.text), namespace, name, run.user_id.as_ref(), kind])?;
    }
    if !run.session_state.is_empty() {
        db.write(SET_STATE, vals![session_id, &serde_json::to_string(&state)?])?;
    }
    Ok(state)
}

fn title(text: &str) -> String {
    let line = text.trim_start().lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(MAX_TITLE_CHARS).collect::<String>().trim_end().to_owned()
}

fn insert_run(db: &mut dyn Db, accept: &Accept, seq: u64, epoch: Option<Epoch>) -> Result<(), DbError> {
    let run = &accept.run;
    let (object_uid, object_name) = match &run.origin {
        Origin::Http => (None, None),
        Origin::RunObject { uid, name } => (Some(uid), Some(name)),
    };
    let ComponentRefText { kind, namespace, name } = component_text(run);
    let values = vals![
        run.run_id.as_str(),
        run.session_id.as_str(),
        seq,
        kind,
        namespace,
        name,
        &run.principal.0,
        run.user_id.as_ref(),
        object_uid,
        object_name,
        status(epoch).as_str(),
        run.revision.as_str(),
        u32::from(epoch.is_some()),
        epoch.unwrap_or_default().0,
        run.timeout_seconds,
        run.at_ms,
        epoch.map(|_| run.at_ms),
        &accept.metadata,
        &accept.input,
        accept.files.as_ref(),
        run.agent.max_concurrent_sessions,
        slots::is_limited(run).then_some(if epoch.is_some() { slots::TAKEN } else { slots::WAITING }),
        run.trace_parent.as_ref()
    ];
    db.write(INSERT_RUN, values)
}

fn status(epoch: Option<Epoch>) -> RunStatus {
    if epoch.is_some() { RunStatus::Running } else { RunStatus::Pending }
}

fn row(run: &NewRun, epoch: Option<Epoch>) -> RunRow {
    RunRow {
        run_id: run.run_id.clone(),
        session_id: run.session_id.clone(),
        component: run.component.clone(),
        principal: run.principal.clone(),
        user_id: run.user_id.clone(),
        origin: run.origin.clone(),
        status: status(epoch),
        revision: run.revision.clone(),
        attempt: u32::from(epoch.is_some()),
        next_index: 0,
        input: run.input.clone(),
        content: None,
        content_type: None,
        failure: None,
        cancellation_stage: None,
        cancel_requested: false,
        metadata: run.metadata.clone(),
        metrics: RunMetrics::default(),
        timeout_seconds: run.timeout_seconds,
        created_at_ms: run.at_ms,
        started_at_ms: epoch.map(|_| run.at_ms),
        finished_at_ms: None,
        paused_ms: 0,
        lineage: Lineage::default(),
    }
}

fn started(
    db: &mut dyn Db,
    run: &NewRun,
    place: &Place,
    row: RunRow,
    epoch: Epoch,
    session_state: Map<String, Value>,
) -> Result<StartedRun, DbError> {
    let (history, effects) = if place.is_new {
        (Vec::new(), Vec::new())
    } else {
        let runs = run.agent.history.runs;
        (start::history(db, &run.session_id, place.seq, runs)?, start::effects(db, &run.session_id)?)
    };
    Ok(StartedRun {
        run: row,
        epoch,
        first: true,
        agent: Arc::clone(&run.agent),
        history,
        progress: Progress::default(),
        effects,
        uploads: match place.has_files {
            true => uploads::earlier(db, &run.session_id, place.seq)?,
            false => Uploads::default(),
        },
        session_state,
    })
}

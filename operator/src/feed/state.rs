//! What the feed has told, and who must look again when it changes.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use cadre_protocol::feed::{AgentReport, CredentialReport, FeedItem, IsolationReport, RunReport};
use tokio::sync::broadcast;

/// Changes that a slow listener may miss; it then looks at everything.
const CHANGES: usize = 4096;

/// An object that a change speaks of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A Model.
    Model(Name),
    /// An Agent.
    Agent(Name),
    /// A Run.
    Run(Name),
    /// A Sandbox.
    Sandbox(Name),
}

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Name {
    /// Of two texts.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// All reports.
#[derive(Debug, Clone, Default, PartialEq)]
struct Reports {
    runs: HashMap<String, Arc<RunReport>>,
    credentials: HashMap<Name, CredentialReport>,
    agents: HashMap<Name, AgentReport>,
    isolation: HashMap<Name, IsolationReport>,
}

/// The latest reports.
#[derive(Debug)]
pub struct FeedState {
    inner: RwLock<Inner>,
    changes: broadcast::Sender<Subject>,
}

#[derive(Debug, Default)]
struct Inner {
    reports: Reports,
    /// What a connection tells before it is in step; it replaces everything older.
    incoming: Option<Reports>,
    synced: bool,
}

impl Default for FeedState {
    fn default() -> Self {
        Self { inner: RwLock::default(), changes: broadcast::channel(CHANGES).0 }
    }
}

impl FeedState {
    /// Changes from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Subject> {
        self.changes.subscribe()
    }

    /// Whether everything has been told at least once.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.read(|inner| inner.synced)
    }

    /// The run of a Run object.
    #[must_use]
    pub fn run(&self, uid: &str) -> Option<Arc<RunReport>> {
        self.read(|inner| inner.reports.runs.get(uid).cloned())
    }

    /// A Model's credential.
    #[must_use]
    pub fn credential(&self, namespace: &str, model: &str) -> Option<CredentialReport> {
        self.read(|inner| inner.reports.credentials.get(&Name::new(namespace, model)).cloned())
    }

    /// An agent's load.
    #[must_use]
    pub fn agent(&self, namespace: &str, name: &str) -> Option<AgentReport> {
        self.read(|inner| inner.reports.agents.get(&Name::new(namespace, name)).cloned())
    }

    /// A Sandbox's network.
    #[must_use]
    pub fn isolation(&self, namespace: &str, sandbox: &str) -> Option<IsolationReport> {
        self.read(|inner| inner.reports.isolation.get(&Name::new(namespace, sandbox)).cloned())
    }

    /// Runs that have not ended.
    #[must_use]
    pub fn unfinished(&self) -> Vec<Arc<RunReport>> {
        self.read(|inner| inner.reports.runs.values().filter(|run| !run.status.is_terminal()).cloned().collect())
    }

    fn read<T>(&self, look: impl FnOnce(&Inner) -> T) -> T {
        look(&self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A connection begins: what it tells until it is in step replaces everything.
    pub fn begin(&self) {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).incoming = Some(Reports::default());
    }

    /// Takes a line.
    pub fn take(&self, item: FeedItem) {
        let changed = {
            let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
            inner.take(item)
        };
        for subject in changed {
            // No listener is no error: this replica may not lead yet.
            let _ = self.changes.send(subject);
        }
    }

    /// Takes the answer of a submission, unless the feed was faster.
    pub fn submitted(&self, report: RunReport) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.reports.runs.entry(report.uid.clone()).or_insert_with(|| Arc::new(report));
    }

    /// Forgets those of the runs that have ended of which nobody needs to know any more.
    pub fn forget_ended(&self, is_superfluous: impl Fn(&RunReport) -> bool) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.reports.runs.retain(|_, run| !run.status.is_terminal() || !is_superfluous(run));
    }

    /// Forgets a run that has ended, once its object is gone or says so.
    pub fn forget_run(&self, uid: &str) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if inner.reports.runs.get(uid).is_some_and(|run| run.status.is_terminal()) {
            inner.reports.runs.remove(uid);
        }
    }
}

impl Inner {
    fn take(&mut self, item: FeedItem) -> Vec<Subject> {
        match item {
            FeedItem::KeepAlive {} => Vec::new(),
            FeedItem::Synced {} => self.replace(),
            item => {
                if let Some(incoming) = &mut self.incoming {
                    incoming.put(item.clone());
                }
                self.reports.put(item).into_iter().collect()
            }
        }
    }

    fn replace(&mut self) -> Vec<Subject> {
        self.synced = true;
        match self.incoming.take() {
            Some(incoming) => {
                let old = std::mem::replace(&mut self.reports, incoming);
                self.reports.absent_from_new(&old)
            }
            None => Vec::new(),
        }
    }
}

impl Reports {
    /// Puts a report; the subject if it says something new.
    fn put(&mut self, item: FeedItem) -> Option<Subject> {
        match item {
            FeedItem::Run(run) => {
                let subject = Subject::Run(Name::new(&run.namespace, &run.name));
                let run = Arc::new(*run);
                (self.runs.insert(run.uid.clone(), run.clone()).as_ref() != Some(&run)).then_some(subject)
            }
            FeedItem::Credential(report) => {
                let name = Name::new(&report.namespace, &report.model);
                put(&mut self.credentials, name, report, Subject::Model)
            }
            FeedItem::Agent(report) => {
                let name = Name::new(&report.namespace, &report.name);
                put(&mut self.agents, name, report, Subject::Agent)
            }
            FeedItem::Isolation(report) => {
                let name = Name::new(&report.namespace, &report.sandbox);
                put(&mut self.isolation, name, report, Subject::Sandbox)
            }
            FeedItem::Synced {} | FeedItem::KeepAlive {} => None,
        }
    }

    /// Subjects of which `old` had a report and `self` has none.
    fn absent_from_new(&self, old: &Self) -> Vec<Subject> {
        let runs = old.runs.values().filter(|run| !self.runs.contains_key(&run.uid));
        let runs = runs.map(|run| Subject::Run(Name::new(&run.namespace, &run.name)));
        runs.chain(gone(&old.credentials, &self.credentials, Subject::Model))
            .chain(gone(&old.agents, &self.agents, Subject::Agent))
            .chain(gone(&old.isolation, &self.isolation, Subject::Sandbox))
            .collect()
    }
}

fn put<V: PartialEq>(
    map: &mut HashMap<Name, V>,
    name: Name,
    value: V,
    subject: fn(Name) -> Subject,
) -> Option<Subject> {
    let changed = map.get(&name) != Some(&value);
    map.insert(name.clone(), value);
    changed.then(|| subject(name))
}

fn gone<V>(
    old: &HashMap<Name, V>,
    new: &HashMap<Name, V>,
    subject: fn(Name) -> Subject,
) -> impl Iterator<Item = Subject> {
    old.keys().filter(|name| !new.contains_key(*name)).cloned().map(subject)
}

#[cfg(test)]
mod tests {
    use cadre_protocol::feed::CredentialState;
    use cadre_protocol::run::RunStatus;

    use super::*;

    fn credential(model: &str, state: CredentialState) -> FeedItem {
        FeedItem::Credential(CredentialReport {
            namespace: "team".into(),
            model: model.into(),
            generation: 1,
            state,
            message: String::new(),
        })
    }

    fn run(uid: &str, status: RunStatus) -> FeedItem {
        let report = serde_json::json!({
            "uid": uid, "namespace": "team", "name": uid, "run_id": uid, "session_id": "s", "status": status,
            "attempts": 1,
        });
        FeedItem::Run(serde_json::from_value(report).unwrap())
    }

    #[test]
    fn ended_runs_are_forgotten_and_open_ones_are_not() {
        let state = FeedState::default();
        for (uid, status) in [
            ("a", RunStatus::Completed),
            ("b", RunStatus::Running),
            ("c", RunStatus::Error),
            ("d", RunStatus::Cancelled),
        ] {
            state.take(run(uid, status));
        }
        state.forget_run("a");
        state.forget_run("b");
        state.forget_ended(|run| run.uid != "d");
        let left = ["a", "b", "c", "d"].map(|uid| state.run(uid).is_some());
        assert_eq!(left, [false, true, false, true]);
    }

    fn drain(changes: &mut broadcast::Receiver<Subject>) -> Vec<Subject> {
        std::iter::from_fn(|| changes.try_recv().ok()).collect()
    }

    #[test]
    fn only_news_is_announced() {
        let state = FeedState::default();
        let mut changes = state.subscribe();
        state.begin();
        state.take(credential("a", CredentialState::Missing));
        state.take(credential("a", CredentialState::Missing));
        state.take(FeedItem::Synced {});
        assert_eq!(drain(&mut changes), [Subject::Model(Name::new("team", "a"))]);
        assert!(state.is_synced());
    }

    #[test]
    fn a_new_connection_replaces_what_an_old_one_told() {
        let state = FeedState::default();
        state.begin();
        state.take(credential("a", CredentialState::Present));
        state.take(credential("b", CredentialState::Present));
        state.take(FeedItem::Synced {});
        let mut changes = state.subscribe();
        state.begin();
        state.take(credential("a", CredentialState::Present));
        assert!(state.credential("team", "b").is_some(), "old reports hold until the new connection is in step");
        state.take(FeedItem::Synced {});
        assert!(state.credential("team", "b").is_none());
        assert_eq!(drain(&mut changes), [Subject::Model(Name::new("team", "b"))]);
    }
}

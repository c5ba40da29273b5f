//! The catalog of `cadre dev`: manifests of a folder, watched. A change that is wrong leaves the last good picture.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cadre_gateway::ModelConfig;
use cadre_protocol::ids::ComponentRef;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::manifest::{self, Manifests, Problem};
use super::table::Table;
use super::{Catalog, CatalogAgent};

/// Quiet time after a change before the folder is read: editors write in several steps.
const SETTLE: Duration = Duration::from_millis(150);
/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Deepest folder that is looked into.
const MAX_DEPTH: usize = 8;

/// Why a folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It can't be read.
    #[error("{path} can't be read")]
    Io {
        /// Path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It can't be watched.
    #[error("changes can't be watched")]
    Watch(#[from] notify::Error),
    /// Its manifests are wrong.
    #[error("{}", list(.0))]
    Problems(Vec<Problem>),
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The catalog.
pub struct FolderCatalog {
    folder: PathBuf,
    default_namespace: String,
    table: Table,
    manifests: Mutex<Arc<Manifests>>,
    generation: Mutex<i64>,
    problems: watch::Sender<Vec<Problem>>,
}

impl FolderCatalog {
    /// Reads a folder.
    ///
    /// # Errors
    /// When it can't be read or its manifests are wrong.
    pub fn open(folder: &Path, default_namespace: &str) -> Result<Arc<Self>, FolderError> {
        let catalog = Self {
            folder: folder.to_owned(),
            default_namespace: default_namespace.to_owned(),
            table: Table::new(default_namespace),
            manifests: Mutex::default(),
            generation: Mutex::new(0),
            problems: watch::Sender::new(Vec::new()),
        };
        catalog.reload()?;
        Ok(Arc::new(catalog))
    }

    /// Reads the folder again.
    ///
    /// # Errors
    /// As [`Self::open`]; the last good picture stays.
    pub fn reload(&self) -> Result<(), FolderError> {
        let files = match files(&self.folder) {
            Ok(files) => files,
            Err(error) => return Err(self.unreadable(error)),
        };
        let generation = {
            let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
            *generation += 1;
            *generation
        };
        match manifest::read(&files, &self.default_namespace, generation) {
            Ok(manifests) => {
                self.table.show(&manifests.specs);
                *self.manifests.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(manifests);
                self.problems.send_replace(Vec::new());
                Ok(())
            }
            Err(problems) => {
                self.problems.send_replace(problems.clone());
                Err(FolderError::Problems(problems))
            }
        }
    }

    /// A file that can't be read is a problem like one with a wrong manifest: whoever follows them is told.
    fn unreadable(&self, error: FolderError) -> FolderError {
        let problems = match error {
            FolderError::Io { path, source } if path != self.folder => {
                vec![Problem { file: path, line: 1, message: format!("can't be read: {source}") }]
            }
            FolderError::Problems(problems) => problems,
            other => return other,
        };
        self.problems.send_replace(problems.clone());
        FolderError::Problems(problems)
    }

    /// Reads the folder again whenever it changes, until `stop` fires.
    ///
    /// # Errors
    /// When it can't be watched.
    pub fn watch(self: &Arc<Self>, stop: CancellationToken) -> Result<impl Future<Output = ()> + use<>, FolderError> {
        let (sender, mut events) = mpsc::unbounded_channel();
        let root = self.folder.clone();
        let mut watcher: RecommendedWatcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // Reading the folder is itself an access event, and databases lie in hidden folders: only changes count.
                if event
                    .is_ok_and(|event| !event.kind.is_access() && event.paths.iter().any(|path| matters(&root, path)))
                {
                    let _ = sender.send(());
                }
            })?;
        watch_folders(&mut watcher, &self.folder)?;
        let catalog = self.clone();
        Ok(async move {
            loop {
                tokio::select! {
                    Some(()) = events.recv() => {}
                    () = stop.cancelled() => return,
                    else => return,
                }
                while tokio::time::timeout(SETTLE, events.recv()).await.is_ok_and(|event| event.is_some()) {}
                if let Err(error) = watch_folders(&mut watcher, &catalog.folder) {
                    tracing::error!(error = %error, "changes of some folders can't be watched");
                }
                match catalog.reload() {
                    Ok(()) => tracing::info!(agents = catalog.table.agents().len(), "manifests read again"),
                    Err(error) => tracing::error!(error = %error, "manifests are wrong; the last good ones stay"),
                }
            }
        })
    }

    /// The manifests as last read without a problem.
    #[must_use]
    pub fn manifests(&self) -> Arc<Manifests> {
        self.manifests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is wrong with the folder now.
    #[must_use]
    pub fn problems(&self) -> watch::Receiver<Vec<Problem>> {
        self.problems.subscribe()
    }
}

impl Catalog for FolderCatalog {
    fn agent(&self, component: &ComponentRef) -> Option<CatalogAgent> {
        self.table.agent(component)
    }

    fn agents(&self) -> Vec<CatalogAgent> {
        self.table.agents()
    }

    fn model(&self, namespace: &str, name: &str) -> Option<Arc<ModelConfig>> {
        self.table.model(namespace, name)
    }

    fn models(&self) -> Vec<Arc<ModelConfig>> {
        self.table.models()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.table.changes()
    }

    fn synced(&self) -> bool {
        true
    }
}

/// Watches all folders, also those that have come since. Not the hidden ones: the database of `cadre dev` is in one, and
/// would tell of every write.
fn watch_folders(watcher: &mut RecommendedWatcher, root: &Path) -> Result<(), FolderError> {
    let mut folders = Vec::new();
    collect_folders(root, 0, &mut folders);
    Ok(folders.iter().try_for_each(|folder| watcher.watch(folder, RecursiveMode::NonRecursive))?)
}

fn collect_folders(path: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    found.push(path.to_owned());
    let Some(entries) = std::fs::read_dir(path).ok().filter(|_| depth < MAX_DEPTH) else { return };
    for entry in entries.flatten() {
        let is_folder = std::fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir());
        if is_folder && !entry.file_name().to_string_lossy().starts_with('.') {
            collect_folders(&entry.path(), depth + 1, found);
        }
    }
}

/// Whether a changed path may be a manifest, or a folder with some.
fn matters(root: &Path, path: &Path) -> bool {
    let below = path.strip_prefix(root).unwrap_or(path);
    let hidden = below.components().any(|part| part.as_os_str().to_string_lossy().starts_with('.'));
    !hidden && path.extension().is_none_or(|extension| extension == "yaml" || extension == "yml")
}

/// All YAML files below a folder, without hidden ones, in order. A single file is a folder of one.
fn files(folder: &Path) -> Result<Vec<(PathBuf, String)>, FolderError> {
    let mut found = Vec::new();
    collect(folder, 0, &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(path: &Path, depth: usize, found: &mut Vec<(PathBuf, String)>) -> Result<(), FolderError> {
    let failed = |source| FolderError::Io { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.is_file() {
        let yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if yaml && metadata.len() > MAX_FILE_BYTES {
            let message = format!("is larger than {} MiB, which no manifest is", MAX_FILE_BYTES >> 20);
            return Err(FolderError::Problems(vec![Problem { file: path.to_owned(), line: 1, message }]));
        }
        if yaml {
            found.push((path.to_owned(), std::fs::read_to_string(path).map_err(failed)?));
        }
        return Ok(());
    }
    if !metadata.is_dir() || depth > MAX_DEPTH {
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        match collect(&entry.path(), depth + 1, found) {
            // Editors' temporary files come and go.
            Err(FolderError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;

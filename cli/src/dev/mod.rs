//! `cadre dev DIR`: a folder of manifests, served from this machine. The same API, the same engine; no cluster.
//!
//! Owns the choice of parts (folder catalog, process placement, SQLite) and what the developer is told. The parts
//! themselves are the API server's and the agent pod's.

mod credentials;
pub mod processes;
mod report;

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use cadre_api::auth::key::Authentication;
use cadre_api::auth::pod::LocalAuth;
use cadre_api::catalog::Catalog as _;
use cadre_api::catalog::folder::{FolderCatalog, FolderError};
use cadre_api::catalog::manifest::Problem;
use cadre_api::catalog::secrets::FolderSecrets;
use cadre_api::cluster;
use cadre_api::config::{Database, DurabilityArg};
use cadre_api::domain::Limits;
use cadre_api::placement::process::ProcessPlacement;
use cadre_api::routes::state::UserSettings;
use cadre_api::run::{self, Listeners, ServerParts, WorkerListener};
use cadre_api::telemetry::Traces;
use cadre_api::worker::binding::LocalBindings;
use cadre_gateway::{EgressPolicy, Gateway};
use cadre_store::Store;
use clap::Args;
use secrecy::SecretString;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::render::terminal;
use credentials::DevCredentials;

/// Namespace of manifests that name none.
const NAMESPACE: &str = "default";

/// Serve a folder of manifests from this machine, without a cluster
///
/// Agents' tools run as you, without a sandbox. Keys of models come from Secret manifests in the folder, or from
/// OPENAI_API_KEY and ANTHROPIC_API_KEY. Manifests are read again when they change.
#[derive(Debug, Args)]
pub struct DevArgs {
    /// The folder.
    dir: PathBuf,
    /// Address. One that others can reach needs a key.
    #[arg(long, default_value = "127.0.0.1:7777")]
    listen: SocketAddr,
    /// Where the database and the workspaces are. Default: DIR/.cadre
    #[arg(long)]
    data: Option<PathBuf>,
    /// What a power cut may take of the SQLite file: nothing that was answered (full), or the last moments (normal), which
    /// waits less for the disk. A crash of this program alone takes nothing either way.
    #[arg(long, value_enum, default_value_t = DurabilityArg::Full)]
    durability: DurabilityArg,
    /// Variable with the URL of another database: postgres://user:password@host/database. Without it: SQLite below --data.
    #[arg(long, value_name = "VARIABLE")]
    database_env: Option<String>,
    /// Variable with the API's bearer key: at least 32 random bytes. Without it only local programs are let in.
    #[arg(long, default_value = "OS_SECURITY_KEY", value_name = "VARIABLE")]
    token_env: String,
    /// Worker processes. Each executes any number of sessions at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
}

/// Serves until Ctrl-C or SIGTERM.
///
/// # Errors
/// When a part can't be started: wrong manifests, a port in use, a short key.
pub async fn dev(args: DevArgs) -> anyhow::Result<()> {
    // Tools run as the same user and could else read this process's memory, keys and all.
    nix::sys::prctl::set_dumpable(false).context("this process can't be made private")?;
    logs();
    let key = std::env::var(&args.token_env).ok().filter(|key| !key.is_empty()).map(SecretString::from);
    let authentication = Authentication::new(key.as_ref(), args.listen, true)?;
    let (asked, stop) = (stop_signal()?, CancellationToken::new());
    let catalog = FolderCatalog::open(&args.dir, NAMESPACE).map_err(wrong)?;
    let watch = catalog.watch(stop.clone())?;
    // What changed before the watch began would otherwise be seen at the next change only.
    catalog.reload().map_err(wrong)?;
    let data = Data::open(&args).await?;
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("{} can't be listened on", args.listen))?;
    let listen = listener.local_addr()?;

    let sockets = tempfile::Builder::new().prefix("cadre-dev-").tempdir().context("no folder for sockets")?;
    let link = sockets.path().join("link");
    let worker = UnixListener::bind(&link).context("the workers' socket can't be made")?;
    let auth = LocalAuth::generate();
    let options = processes::options(std::env::current_exe()?, sockets.path(), &link, &data.workspaces, args.workers);
    let placement = Arc::new(ProcessPlacement::start(options, auth.clone()));
    // Workers first: what their tools have just done is still recorded.
    let (workers, stopping) = (placement.clone(), stop.clone());
    tokio::spawn(async move {
        asked.cancelled().await;
        workers.stop().await;
        stopping.cancel();
    });

    let key_variable = key.is_some().then_some(args.token_env.as_str());
    let telling = tokio::spawn(tell(catalog.clone(), catalog.changes(), catalog.problems(), stop.clone()));
    let started = report::Started { listen, workspaces: &data.workspaces, key_variable };
    terminal::answer(&report::started(&started, &catalog.agents(), &catalog.manifests().runs))?;
    let watching = [tokio::spawn(watch), telling];

    let credentials = DevCredentials::new(FolderSecrets(catalog.clone()), |name| std::env::var(name).ok());
    let policy = EgressPolicy { allow_private: true, ..EgressPolicy::default() };
    let parts = ServerParts {
        store: data.store,
        catalog,
        placement: placement.clone(),
        gateway: Arc::new(Gateway::new(policy, Arc::new(credentials))?),
        authenticate: Arc::new(auth),
        bindings: Arc::new(LocalBindings),
        limits: Limits::default(),
        default_namespace: NAMESPACE.to_owned(),
        traces: Traces::default(),
        user: UserSettings { os_id: "cadre-dev".to_owned(), ..UserSettings::new(authentication, stop.clone()) },
    };
    let listeners = Listeners { user: listener, worker: WorkerListener::Unix(worker), admin: None };
    let served = run::serve(parts, listeners, stop.clone()).await;
    stop.cancel();
    placement.stop().await;
    for task in watching {
        task.await?;
    }
    served
}

fn wrong(error: FolderError) -> anyhow::Error {
    match error {
        FolderError::Problems(problems) => {
            anyhow::anyhow!("these manifests are wrong:\n{}", report::problems(&problems).trim_end())
        }
        other => other.into(),
    }
}

/// Says what is there whenever the manifests changed, and what is wrong with them.
async fn tell(
    catalog: Arc<FolderCatalog>,
    mut changes: watch::Receiver<u64>,
    mut problems: watch::Receiver<Vec<Problem>>,
    stop: CancellationToken,
) {
    loop {
        let text = tokio::select! {
            () = stop.cancelled() => return,
            Ok(()) = changes.changed() => format!("Manifests read again. {}", report::state(&catalog.agents())),
            Ok(()) = problems.changed() => {
                let found = problems.borrow_and_update().clone();
                if found.is_empty() {
                    continue;
                }
                format!("These manifests are wrong; the last good ones stay:\n{}", report::problems(&found))
            }
        };
        if terminal::answer(&text).is_err() {
            return;
        }
    }
}

/// What outlives the process.
struct Data {
    store: Arc<dyn Store>,
    workspaces: PathBuf,
    /// Locked: two servers on one record would take each other's runs.
    _lock: std::fs::File,
}

impl Data {
    async fn open(args: &DevArgs) -> anyhow::Result<Self> {
        let beside = if args.dir.is_dir() { args.dir.as_path() } else { args.dir.parent().unwrap_or(Path::new(".")) };
        let folder = args.data.clone().unwrap_or_else(|| beside.join(".cadre"));
        let workspaces = folder.join("workspaces");
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&workspaces)
            .with_context(|| format!("{} can't be made", workspaces.display()))?;
        let lock = std::fs::File::create(folder.join("lock"))?;
        if lock.try_lock().is_err() {
            anyhow::bail!("{} is in use by another cadre dev: stop that one, or name another --data", folder.display());
        }
        // What agents make is no part of the folder that the manifests are versioned in.
        std::fs::write(folder.join(".gitignore"), "*\n")?;
        let workspaces = workspaces.canonicalize()?;
        let database = match &args.database_env {
            Some(variable) => {
                let url = std::env::var(variable).with_context(|| format!("there is no variable {variable}"))?;
                url.parse::<Database>().with_context(|| format!("the variable {variable} is wrong"))?
            }
            None => Database::Sqlite(folder.canonicalize()?.join("cadre.db")),
        };
        Ok(Self { store: cluster::open(database, args.durability.into()).await?, workspaces, _lock: lock })
    }
}

/// Warnings, for people. `CADRE_LOG` asks for more. The catalog's are told by [`tell`].
fn logs() {
    let filter = EnvFilter::try_from_env("CADRE_LOG").unwrap_or_else(|_| EnvFilter::new("warn,cadre_api::catalog=off"));
    let _ = tracing_subscriber::fmt().compact().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

/// Fires at the first Ctrl-C or SIGTERM. The second one ends this process at once: workers follow it.
fn stop_signal() -> anyhow::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let fired = stop.clone();
    tokio::spawn(async move {
        for is_first in [true, false] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if is_first {
                fired.cancel();
            }
        }
        std::process::exit(130);
    });
    Ok(stop)
}

//! The server's parts in a cluster: the record, the informers, Sandboxes, TokenReview.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use cadre_gateway::{EgressPolicy, Gateway};
use cadre_store::postgres::{PostgresOptions, PostgresStore};
use cadre_store::sqlite::{Durability, SqliteStore};
use cadre_store::{Store, StoreError};
use kube::Client;
use secrecy::ExposeSecret as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::key::Authentication;
use crate::auth::pod::PodAuth;
use crate::auth::review::Cluster;
use crate::catalog::kube::KubeCatalog;
use crate::catalog::secrets::ClusterSecrets;
use crate::config::{Config, Database};
use crate::placement::manifest::Proof;
use crate::placement::sandbox::SandboxPlacement;
use crate::routes::state::UserSettings;
use crate::run::{self, Listeners, ServerParts, WorkerListener};
use crate::telemetry::Traces;

/// Time for traces that wait when the server stops.
const LAST_TRACES: Duration = Duration::from_secs(5);
/// Time for a database to come back when the server starts; its pod's startup probe allows for more.
const DATABASE_WAIT: Duration = Duration::from_secs(40);

/// Brings the schema up to date.
///
/// # Errors
/// When the database can't be opened or migrated.
pub async fn migrate(config: &Config) -> anyhow::Result<()> {
    let store = connect(config.database()?, config.durability.into()).await?;
    let migrated = store.migrate().await.context("the database can't be migrated");
    store.close().await;
    migrated
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When a part can't be started: no key, no database, no cluster, a port in use.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    // Everything that can be refused is refused before anything is touched.
    let authentication = Authentication::new(config.security_key.as_ref(), config.listen_user, false)?;
    let operator = config.operator_user()?;
    let database = config.database()?;
    let stop = stop_signal()?;
    let (exports, exports_end) = (TaskTracker::new(), CancellationToken::new());
    let traces = match config.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()) {
        Some(endpoint) => Traces::to(endpoint, &exports, exports_end.clone())?,
        None => Traces::default(),
    };
    let client = Client::try_default().await.context("the cluster can't be reached")?;
    let store = open_when_there(database, config.durability.into(), &stop).await?;

    let namespaces: Vec<String> = config.namespaces.iter().filter(|name| !name.is_empty()).cloned().collect();
    let catalog = KubeCatalog::start(client.clone(), &namespaces, &config.default_namespace, stop.clone());
    let key = config.security_key.as_ref().context("OS_SECURITY_KEY is not set")?;
    let proof = Proof::new(key)?;
    let most = config.namespace_max_sandboxes;
    let placement = SandboxPlacement::start(client.clone(), &namespaces, catalog.clone(), proof, most, stop.clone());
    let policy = EgressPolicy {
        allow_private: false,
        allowed_cidrs: config.egress_allow_cidrs.clone(),
        cluster_cidrs: config.cluster_cidrs.clone(),
    };
    let gateway = Gateway::new(policy, Arc::new(ClusterSecrets::new(client.clone())))?;
    let cluster = Arc::new(Cluster(client));
    let user = UserSettings {
        os_id: config.os_id.clone(),
        wait: config.wait(),
        ..UserSettings::new(authentication, stop.clone())
    };
    let parts = ServerParts {
        store,
        catalog,
        placement: placement.clone(),
        gateway: Arc::new(gateway),
        authenticate: Arc::new(PodAuth::new(cluster.clone(), cluster, operator)),
        bindings: placement,
        limits: config.limits(),
        default_namespace: config.default_namespace.clone(),
        traces,
        user,
    };
    let listeners = Listeners {
        user: bind(config.listen_user).await?,
        worker: WorkerListener::Tcp(bind(config.listen_worker).await?),
        admin: Some(bind(config.listen_admin).await?),
    };
    tracing::info!(user = %config.listen_user, worker = %config.listen_worker, "serving");
    let served = run::serve(parts, listeners, stop).await;
    exports_end.cancel();
    exports.close();
    if tokio::time::timeout(LAST_TRACES, exports.wait()).await.is_err() {
        tracing::warn!(seconds = LAST_TRACES.as_secs(), "traces were still to be sent");
    }
    served
}

async fn bind(address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{address} can't be listened on"))
}

/// Opens the record and brings its schema up to date; several servers that start at once do it one after the other. A schema
/// that is newer than this program stays as it is: the server starts, says so, and answers nothing that needs the record.
///
/// # Errors
/// When the database can't be opened or migrated.
pub async fn open(database: Database, durability: Durability) -> anyhow::Result<Arc<dyn Store>> {
    let store = connect(database, durability).await?;
    match store.migrate().await {
        Ok(()) | Err(StoreError::SchemaTooNew { .. }) => Ok(store),
        Err(error) => Err(error).context("the database can't be migrated"),
    }
}

/// The same, and waits a while for a database that does not answer: one that is lost together with the server is back
/// sooner than kubelet would try the server again.
///
/// # Errors
/// As [`open`], when the database can't be reached for that long or `stop` fires.
pub async fn open_when_there(
    database: Database,
    durability: Durability,
    stop: &CancellationToken,
) -> anyhow::Result<Arc<dyn Store>> {
    let until = tokio::time::Instant::now() + DATABASE_WAIT;
    loop {
        let error = match open(database.clone(), durability).await {
            Err(error) if matches!(error.downcast_ref(), Some(StoreError::Unavailable(_))) => error,
            opened => return opened,
        };
        if tokio::time::Instant::now() >= until || stop.is_cancelled() {
            return Err(error);
        }
        tracing::warn!("the database does not answer: the server waits for it");
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stop.cancelled() => return Err(error),
        }
    }
}

async fn connect(database: Database, durability: Durability) -> anyhow::Result<Arc<dyn Store>> {
    // Connecting blocks.
    let opened = tokio::task::spawn_blocking(move || -> Result<Arc<dyn Store>, StoreError> {
        Ok(match database {
            Database::Sqlite(path) => Arc::new(SqliteStore::open(&path, durability)?),
            Database::Postgres(url) => Arc::new(PostgresStore::open(&PostgresOptions::new(url.expose_secret()))?),
        })
    });
    opened.await?.context("the database can't be opened")
}

/// Fires at SIGTERM and SIGINT.
fn stop_signal() -> anyhow::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let fired = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        fired.cancel();
    });
    Ok(stop)
}

//! What handlers of the user port share.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::auth::key::Authentication;
use crate::domain::Service;
use crate::streams::shares::StreamShares;

/// How the user port presents itself.
#[derive(Clone)]
pub struct UserSettings {
    /// How callers are authenticated.
    pub authentication: Authentication,
    /// `os_id` of `/info` and `/config`.
    pub os_id: String,
    /// Name for people.
    pub name: String,
    /// When the server was started.
    pub started_at: Timestamp,
    /// How long a request with `stream=false` waits for its run; after that it gets 202 and the run goes on.
    pub wait: Duration,
    /// Ends the streams when the server stops, so that clients go to another replica.
    pub shutdown: CancellationToken,
}

impl UserSettings {
    /// Settings of a server that starts now.
    #[must_use]
    pub fn new(authentication: Authentication, shutdown: CancellationToken) -> Self {
        Self {
            authentication,
            os_id: "cadre".to_owned(),
            name: "Cadre".to_owned(),
            started_at: Timestamp::now(),
            wait: Duration::from_secs(3600),
            shutdown,
        }
    }
}

/// State of the router. Clones share everything.
#[derive(Clone)]
pub struct UserState {
    /// The domain.
    pub service: Service,
    /// How the port presents itself.
    pub settings: Arc<UserSettings>,
    /// Open streams.
    pub streams: Arc<StreamShares>,
}

impl UserState {
    /// State of a router.
    #[must_use]
    pub fn new(service: Service, settings: UserSettings) -> Self {
        let streams = StreamShares::new(service.limits().shares.max_streams);
        Self { service, settings: Arc::new(settings), streams }
    }
}

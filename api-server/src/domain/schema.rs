//! Whether the record's schema is this program's. Until it is, nothing but the health of the server is served.
//!
//! Looked at until it once was right. From then on a newer schema is no reason to stop: migrations only add, so that a
//! program goes on while the next one starts.

use std::sync::atomic::{AtomicBool, Ordering};

use cadre_store::StoreError;

use super::{DomainError, Service};

/// What is known of the schema.
#[derive(Debug, Default)]
pub(crate) struct SchemaState(AtomicBool);

impl Service {
    /// Whether data can be served. A record that is away is no answer: whoever asks it will hear.
    ///
    /// # Errors
    /// The record's schema is too old or too new.
    pub async fn check_schema(&self) -> Result<(), DomainError> {
        if self.0.schema.0.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.0.store.check().await {
            Ok(()) => self.0.schema.0.store(true, Ordering::Release),
            Err(error @ (StoreError::MigrationRequired { .. } | StoreError::SchemaTooNew { .. })) => {
                return Err(error.into());
            }
            Err(error) => tracing::debug!(%error, "the schema can't be looked at now"),
        }
        Ok(())
    }

    /// The same after something has gone wrong that should not: perhaps an older record was put in place of this one.
    ///
    /// # Errors
    /// As [`Self::check_schema`].
    pub async fn check_schema_again(&self) -> Result<(), DomainError> {
        self.0.schema.0.store(false, Ordering::Release);
        self.check_schema().await
    }

    /// Brings the schema up to date. Several callers and replicas may do so at once.
    ///
    /// # Errors
    /// The record's.
    pub async fn migrate(&self) -> Result<(), DomainError> {
        self.0.store.migrate().await?;
        self.check_schema().await
    }

    /// [`Self::start`], as soon as the schema is right.
    pub async fn start_when_current(&self) {
        if self.is_current().await {
            self.start();
            return;
        }
        let service = self.clone();
        self.spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(service.0.limits.sweep_every) => {}
                    () = service.0.stopping.cancelled() => return,
                }
                if service.is_current().await {
                    return service.start();
                }
            }
        });
    }

    async fn is_current(&self) -> bool {
        let checked = self.check_schema().await;
        if let Err(error) = &checked {
            tracing::error!(%error, "nothing is served until the schema is right");
        }
        checked.is_ok()
    }
}

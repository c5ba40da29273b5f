//! Workers go: for a moment, to another replica, or for good. The record decides which.

use cadre_protocol::ids::WorkerId;
use cadre_store::workers::Departure;

use super::Service;
use super::lease::TELL_AGAIN;
use super::scope::Writer;
use super::seat::Orphan;

impl Service {
    /// A connection has ended. `gone` when its worker said that it goes, or was silent for too long: then nobody waits
    /// for it to come back.
    pub fn disconnected(&self, writer: Writer, link: u64, gone: bool) {
        if !self.board().disconnected(&writer.worker_id, link) {
            return;
        }
        tracing::info!(worker_id = %writer.worker_id, gone, "worker disconnected");
        let service = self.clone();
        self.spawn(async move {
            if !gone {
                tokio::select! {
                    () = tokio::time::sleep(service.0.limits.reconnect_grace) => {}
                    () = service.0.stopping.cancelled() => return,
                }
            }
            service.lost_if_away(&writer).await;
        });
    }

    /// The worker takes no further run.
    pub fn drain(&self, worker_id: &WorkerId) {
        self.board().draining(worker_id);
    }

    /// The record decides whether a worker that does not come back here is lost: it may be at another replica.
    async fn lost_if_away(&self, writer: &Writer) {
        while self.board().is_away(writer) {
            let Writer { worker_id, registration } = writer;
            match self.0.store.leave(worker_id, registration, &self.0.replica).await {
                Ok(departure) => {
                    // It may have come back meanwhile: its registration has then gone with the leave.
                    return self.left(writer, departure).await;
                }
                Err(error) => {
                    tracing::warn!(worker_id = %worker_id, category = error.category(), "its loss can't be recorded now");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(TELL_AGAIN) => {}
                () = self.0.stopping.cancelled() => return,
            }
        }
    }

    /// The maker of workers says that one has ended.
    pub(crate) async fn worker_ended(&self, worker_id: &WorkerId) {
        let process = self.board().process(worker_id);
        let Some(writer) = process else {
            // Another replica's, or one that never came: what waits for it here asks again.
            self.0.placement.lost(worker_id);
            self.place_wanted();
            return;
        };
        match self.0.store.leave(worker_id, &writer.registration, &self.0.replica).await {
            Ok(departure) => self.left(&writer, departure).await,
            Err(error) => {
                // A sweep finds its runs: nobody has it any more once its row can be removed.
                tracing::warn!(worker_id = %worker_id, category = error.category(), "its end can't be recorded now");
                self.0.placement.lost(worker_id);
                self.board().dismiss(&writer);
                self.leave_later(writer);
            }
        }
    }

    /// Another replica has this worker now, if the record says so.
    pub(crate) async fn moved(&self, worker_id: &WorkerId) {
        let process = self.board().process(worker_id);
        let Some(writer) = process else { return };
        if !self.board().is_registered(&writer) {
            return;
        }
        match self.0.store.is_at(worker_id, &writer.registration, &self.0.replica).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(worker_id = %worker_id, category = error.category(), "its move can't be looked up now");
                return;
            }
        }
        match self.0.store.leave(worker_id, &writer.registration, &self.0.replica).await {
            Ok(departure) => {
                self.left(&writer, departure).await;
            }
            Err(error) => {
                tracing::warn!(worker_id = %worker_id, category = error.category(), "its move can't be recorded now");
            }
        }
    }

    fn leave_later(&self, writer: Writer) {
        let service = self.clone();
        self.spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(TELL_AGAIN) => {}
                    () = service.0.stopping.cancelled() => return,
                }
                let Writer { worker_id, registration } = &writer;
                if service.board().process(worker_id).is_some() {
                    return;
                }
                if service.0.store.leave(worker_id, registration, &service.0.replica).await.is_ok() {
                    service.0.sweep_now.notify_one();
                    return;
                }
            }
        });
    }

    /// The record says that a process is not here any more.
    async fn left(&self, writer: &Writer, departure: Departure) {
        let worker_id = &writer.worker_id;
        let orphans = self.board().dismiss(writer);
        let Some(orphans) = orphans else { return };
        tracing::info!(worker_id = %worker_id, sessions = orphans.len(), ?departure, "worker left");
        self.forget_isolation(worker_id);
        if departure == Departure::Lost {
            self.0.placement.lost(worker_id);
        }
        for Orphan { session_id, waiting } in orphans {
            let Some(waiting) = waiting else { continue };
            if departure == Departure::Moved {
                // Its run is with it.
                self.board().vacate(&session_id, &waiting.run_id, false);
            } else {
                self.0.metrics.replaced();
                self.place_soon(waiting);
            }
        }
        self.place_wanted();
    }

    /// Runs that wait for a worker ask again.
    fn place_wanted(&self) {
        let wanted = self.board().wanted();
        for waiting in wanted {
            self.place_soon(waiting);
        }
    }
}

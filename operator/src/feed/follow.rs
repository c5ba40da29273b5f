//! Follows the feed for ever: connects, reads lines, and connects again.

use std::time::Duration;

use cadre_protocol::feed::FeedItem;
use futures::{StreamExt, TryStreamExt};
use tokio::time::{sleep, timeout};
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;

use super::client::{ApiClient, FeedError};
use super::state::FeedState;
use crate::metrics::Metrics;

/// Longest line.
const MAX_LINE: usize = 1 << 20;
/// Silence after which a connection counts as dead; the API server speaks every 15 s.
const SILENCE: Duration = Duration::from_secs(45);
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LAST_DELAY: Duration = Duration::from_secs(10);

/// Follows the feed until told to stop.
pub async fn follow(client: &ApiClient, state: &FeedState, metrics: &Metrics, stop: CancellationToken) {
    let mut delay = FIRST_DELAY;
    loop {
        let ended = stop.run_until_cancelled(connection(client, state, metrics)).await;
        metrics.feed(false);
        match ended {
            None => return,
            Some(Ok(())) => delay = FIRST_DELAY,
            Some(Err(error)) => {
                tracing::warn!(error = %chain(&error), delay_ms = delay.as_millis(), "the API server's feed is not open");
            }
        }
        if stop.run_until_cancelled(sleep(delay)).await.is_none() {
            return;
        }
        delay = (delay * 2).min(LAST_DELAY);
    }
}

/// One connection; returns without error if it had come into step before it ended.
async fn connection(client: &ApiClient, state: &FeedState, metrics: &Metrics) -> Result<(), FeedError> {
    let response = client.feed().await?;
    metrics.feed(true);
    state.begin();
    let bytes = response.bytes_stream().map_err(std::io::Error::other);
    let mut lines = FramedRead::new(StreamReader::new(bytes), LinesCodec::new_with_max_length(MAX_LINE));
    let mut in_step = false;
    while let Ok(Some(line)) = timeout(SILENCE, lines.next()).await {
        let Ok(line) = line else { break };
        match serde_json::from_str::<FeedItem>(&line) {
            Ok(item) => {
                in_step |= item == FeedItem::Synced {};
                state.take(item);
            }
            // A newer API server may say more than this operator knows.
            Err(error) => tracing::debug!(%error, "a line of the feed was not understood"),
        }
    }
    tracing::info!("the API server's feed has ended");
    if in_step { Ok(()) } else { Err(FeedError::Refused { status: 0, detail: "the feed ended early".into() }) }
}

/// An error with its causes, for a log line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

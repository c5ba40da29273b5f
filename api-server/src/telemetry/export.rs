//! Batches of spans to the collector.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

/// Spans of one request.
const BATCH: usize = 512;
/// Longest time that a span waits for company.
const LINGER: Duration = Duration::from_secs(2);
/// Time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An endpoint that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the OTLP endpoint must be an http:// URL, for example http://collector.observability:4318")]
pub struct InvalidEndpoint;

/// The exporter of an endpoint.
pub fn exporter(endpoint: &str) -> Result<OtlpExporter, InvalidEndpoint> {
    let mut url = Url::parse(endpoint).map_err(|_| InvalidEndpoint)?;
    if url.scheme() != "http" || url.host_str().is_none() {
        return Err(InvalidEndpoint);
    }
    url.set_path(&format!("{}/v1/traces", url.path().trim_end_matches('/')));
    let built = OtlpExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url.to_string())
        .with_timeout(TIMEOUT)
        .build();
    let mut exporter = built.map_err(|_| InvalidEndpoint)?;
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    exporter.set_resource(&Resource::builder().with_service_name("cadre").with_attribute(version).build());
    Ok(exporter)
}

/// Sends until nobody hands over spans any more, or `stop` has fired and what waits is sent.
pub async fn run(exporter: OtlpExporter, mut spans: mpsc::Receiver<SpanData>, stop: CancellationToken) {
    let mut batch = Vec::new();
    loop {
        let more = tokio::select! {
            biased;
            count = spans.recv_many(&mut batch, BATCH) => count,
            () = tokio::time::sleep(LINGER), if !batch.is_empty() => {
                send(&exporter, &mut batch).await;
                continue;
            }
            () = stop.cancelled() => 0,
        };
        if more == 0 {
            break;
        }
        if batch.len() >= BATCH {
            send(&exporter, &mut batch).await;
        }
    }
    if !batch.is_empty() {
        send(&exporter, &mut batch).await;
    }
}

async fn send(exporter: &OtlpExporter, batch: &mut Vec<SpanData>) {
    let spans = std::mem::take(batch);
    let count = spans.len();
    if let Err(error) = exporter.export(spans).await {
        tracing::warn!(spans = count, error = %error, "spans are lost: the collector can't be reached");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn endpoints_are_plain_http() {
        for good in ["http://collector:4318", "http://127.0.0.1:4318/base/"] {
            assert!(exporter(good).is_ok(), "{good}");
        }
        for bad in ["https://collector", "collector:4318", "", "http://", "grpc://c"] {
            assert_eq!(exporter(bad).err(), Some(InvalidEndpoint), "{bad}");
        }
    }
}

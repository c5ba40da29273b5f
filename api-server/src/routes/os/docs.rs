//! `GET /openapi.json` and `GET /docs`.

use std::sync::LazyLock;

use axum::response::{Html, IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, header};

use crate::openapi;

/// Both are made once: anybody may ask for them, and making them takes longer than most requests.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| openapi::document().into());
static PAGE: LazyLock<Bytes> = LazyLock::new(|| page(&openapi::api()).into());

/// The OpenAPI document.
pub async fn openapi_json() -> Response {
    let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (json, DOCUMENT.clone()).into_response()
}

/// A plain page that lists the operations: no script, nothing from elsewhere.
pub async fn docs() -> Response {
    let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'");
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(PAGE.clone())).into_response()
}

fn page(api: &utoipa::openapi::OpenApi) -> String {
    let mut rows = String::new();
    for (path, item) in &api.paths.paths {
        let operations = [("GET", &item.get), ("POST", &item.post), ("PATCH", &item.patch), ("DELETE", &item.delete)];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            let summary = operation.summary.as_deref().unwrap_or_default();
            rows.push_str(&format!("<tr><td>{method}<td><code>{path}</code><td>{summary}\n"));
        }
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Cadre API</title>\
         <style>body{{font:16px sans-serif;margin:2em}}td{{padding:.2em 1em .2em 0}}</style>\
         <h1>Cadre API</h1><p>The whole description: <a href=/openapi.json>openapi.json</a>.\n<table>\n{rows}</table></html>"
    )
}

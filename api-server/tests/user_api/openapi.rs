//! The committed OpenAPI document is what the server answers. `CADRE_UPDATE=1` writes it anew.

use cadre_api::openapi;
use serde_json::Value;

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

#[test]
fn the_committed_document_is_the_servers() {
    let document = openapi::document();
    if std::env::var_os("CADRE_UPDATE").is_some() {
        std::fs::write(COMMITTED, &document).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap();
    assert!(document == committed, "openapi.json is stale: run this test with CADRE_UPDATE=1 and commit it");
}

#[test]
fn every_operation_has_an_id_a_summary_and_its_errors() {
    let document: Value = serde_json::from_str(&openapi::document()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let named = operation["operationId"].is_string() && operation["summary"].is_string();
            assert!(named, "{method} {path} has no id or summary");
            assert!(operation["responses"].get("500").is_some(), "{method} {path} does not name its errors");
            let text = serde_json::to_string(operation).unwrap();
            for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
                let name = reference.split('"').next().unwrap();
                assert!(document["components"]["schemas"].get(name).is_some(), "{name} of {path} is not there");
            }
        }
    }
}

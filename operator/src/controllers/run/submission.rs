//! A Run object as the API server takes it.

use cadre_crds::run::{InputPart, Run, RunInput};
use cadre_protocol::feed::{InlineFile, SubmitRun};
use kube::ResourceExt;
use serde_json::Value;

/// Builds it.
#[must_use]
pub fn build(run: &Run) -> SubmitRun {
    let spec = &run.spec;
    let schema = &spec.output_schema;
    SubmitRun {
        namespace: run.namespace().unwrap_or_default(),
        name: run.name_any(),
        uid: run.uid().unwrap_or_default(),
        agent: spec.target.name.clone(),
        text: text(&spec.input),
        files: files(&spec.input),
        session_id: spec.session.as_ref().map(|session| session.id.clone()),
        metadata: spec.metadata.clone(),
        output_schema: (!schema.is_empty()).then(|| Value::Object(schema.clone())),
        dependencies: spec.dependencies.clone(),
        session_state: spec.session_state.clone(),
        timeout_seconds: spec.timeout_seconds,
        retries: spec.retries,
    }
}

/// The schema lets exactly one of the members be there.
fn text(input: &RunInput) -> String {
    let RunInput { kind: _, text, parts, json } = input;
    let from_parts = || parts.as_ref().map(|parts| texts(parts).collect::<Vec<_>>().join("\n\n"));
    let from_json = || json.as_ref().map(|json| Value::Object(json.clone()).to_string());
    text.clone().or_else(from_parts).or_else(from_json).unwrap_or_default()
}

fn texts(parts: &[InputPart]) -> impl Iterator<Item = &str> {
    parts.iter().filter_map(|part| part.text.as_deref())
}

fn files(input: &RunInput) -> Vec<InlineFile> {
    let parts = input.parts.iter().flatten();
    let files = parts.filter_map(|part| part.file.as_ref());
    files
        .map(|file| InlineFile {
            name: file.name.clone(),
            media_type: file.media_type.clone(),
            content: file.content.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(input: &Value) -> Run {
        serde_json::from_value(json!({
            "apiVersion": "cadre.dev/v1alpha1", "kind": "Run",
            "metadata": {"name": "r", "namespace": "team", "uid": "u"},
            "spec": {"target": {"name": "a"}, "input": input, "session": {"id": "s"}},
        }))
        .unwrap()
    }

    #[test]
    fn every_kind_of_input_becomes_text_and_files() {
        let parts = json!({"type": "Parts", "parts": [
            {"type": "Text", "text": "look"},
            {"type": "File", "file": {"name": "a.csv", "content": "1"}},
            {"type": "Text", "text": "here"},
        ]});
        for (input, text, files) in [
            (json!({"type": "Text", "text": "hello"}), "hello", 0),
            (json!({"type": "Json", "json": {"a": 1}}), "{\"a\":1}", 0),
            (parts, "look\n\nhere", 1),
        ] {
            let submission = build(&run(&input));
            assert_eq!((submission.text.as_str(), submission.files.len()), (text, files));
            assert_eq!(submission.session_id.as_deref(), Some("s"));
            assert_eq!(submission.output_schema, None);
        }
    }
}

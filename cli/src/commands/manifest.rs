//! A Run manifest as a request of the HTTP API. Pure.

use bytes::Bytes;
use cadre_crds::run::{InputPart, InputType, PartType, RunInput, RunSpec};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::request::Request;
use crate::multipart::FormFile;

/// Why a manifest can't be run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidManifest {
    /// YAML or fields are wrong.
    #[error("line {line}: {message}")]
    Syntax {
        /// From 1.
        line: usize,
        /// What.
        message: String,
    },
    /// None or several Runs.
    #[error("there are {0} Runs in it; one is wanted")]
    Count(usize),
    /// A union without its member.
    #[error("spec.input: type {0} needs its member")]
    Member(&'static str),
}

#[derive(Deserialize)]
struct Head {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
    spec: RunSpec,
}

#[derive(Default, Deserialize)]
struct Metadata {
    namespace: Option<String>,
}

/// A Run to make.
#[derive(Debug)]
pub struct Wanted {
    /// The agent's `metadata.name`.
    pub agent: String,
    /// `metadata.namespace`.
    pub namespace: Option<String>,
    /// The request.
    pub request: Request,
    /// Fields that only Run objects have.
    pub ignored: Vec<&'static str>,
}

/// Reads the one Run of a file; other kinds may be in it.
///
/// # Errors
/// See [`InvalidManifest`].
pub fn read(text: &str) -> Result<Wanted, InvalidManifest> {
    let mut runs = Vec::new();
    for (line, document) in documents(text) {
        let head: Option<Head> = parse(document, line)?;
        if head.is_some_and(|head| head.kind == "Run" && head.api_version.starts_with("cadre.dev/")) {
            runs.push(parse::<Object>(document, line)?);
        }
    }
    let count = runs.len();
    match (runs.pop(), count) {
        (Some(run), 1) => wanted(run),
        _ => Err(InvalidManifest::Count(count)),
    }
}

/// Documents with the number of their first line.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut start, mut first, mut at) = (Vec::new(), 0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            found.push((first, &text[start..at]));
            (start, first) = (at + line.len(), number + 2);
        }
        at += line.len();
    }
    found.push((first, &text[start..]));
    found
}

fn parse<T: serde::de::DeserializeOwned>(document: &str, first: usize) -> Result<T, InvalidManifest> {
    serde_yaml::from_str(document).map_err(|error| {
        let line = first + error.location().map_or(0, |location| location.line().saturating_sub(1));
        InvalidManifest::Syntax { line, message: error.to_string() }
    })
}

fn wanted(run: Object) -> Result<Wanted, InvalidManifest> {
    let Object { metadata, spec } = run;
    let RunSpec {
        target,
        input,
        session,
        metadata: run_metadata,
        output_schema,
        dependencies,
        session_state,
        timeout_seconds,
        retries,
        cancel: _,
        ttl_seconds_after_finished: _,
    } = spec;
    let (text, files) = asked(input)?;
    let json = |name: &'static str, value: Map<String, Value>| {
        (!value.is_empty()).then(|| (name, Value::Object(value).to_string()))
    };
    let fields = [
        json("metadata", run_metadata),
        json("output_schema", output_schema),
        json("dependencies", dependencies),
        json("session_state", session_state),
    ];
    let ignored = [timeout_seconds.map(|_| "timeoutSeconds"), retries.map(|_| "retries")];
    Ok(Wanted {
        agent: target.name,
        namespace: metadata.namespace,
        request: Request {
            text,
            files,
            session: session.map(|session| session.id),
            user: None,
            fields: fields.into_iter().flatten().collect(),
        },
        ignored: ignored.into_iter().flatten().collect(),
    })
}

/// Text and files, as the operator sends them.
fn asked(input: RunInput) -> Result<(String, Vec<FormFile>), InvalidManifest> {
    let RunInput { kind, text, parts, json } = input;
    match kind {
        InputType::Text => Ok((text.ok_or(InvalidManifest::Member("Text"))?, Vec::new())),
        InputType::Json => Ok((Value::Object(json.ok_or(InvalidManifest::Member("Json"))?).to_string(), Vec::new())),
        InputType::Parts => {
            let (mut texts, mut files) = (Vec::new(), Vec::new());
            for InputPart { kind, text, file } in parts.ok_or(InvalidManifest::Member("Parts"))? {
                match kind {
                    PartType::Text => texts.push(text.ok_or(InvalidManifest::Member("Text"))?),
                    PartType::File => {
                        let file = file.ok_or(InvalidManifest::Member("File"))?;
                        let bytes = Bytes::from(file.content);
                        files.push(FormFile { name: file.name, media_type: Some(file.media_type), bytes });
                    }
                }
            }
            Ok((texts.join("\n\n"), files))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickstart_can_be_run_without_a_cluster() {
        let wanted = read(include_str!("../../../examples/quickstart/30-run.yaml")).unwrap();
        assert_eq!((wanted.agent.as_str(), wanted.namespace.as_deref()), ("analyst", None));
        assert!(wanted.request.text.contains("region"));
        let [file] = wanted.request.files.as_slice() else { panic!("one file") };
        assert_eq!((file.name.as_str(), file.media_type.as_deref()), ("sales.csv", Some("text/csv")));
        assert!(file.bytes.starts_with(b"date,region"));
    }

    #[test]
    fn all_that_the_api_knows_is_sent() {
        let text = "apiVersion: v1\nkind: ConfigMap\n---\napiVersion: cadre.dev/v1alpha1\nkind: Run\nmetadata: {namespace: team-a}\n\
                    spec:\n  target: {name: a}\n  input: {type: Json, json: {b: 1}}\n  session: {id: s}\n  retries: 2\n\
                    \x20 metadata: {m: 1}\n  outputSchema: {type: object}\n";
        let wanted = read(text).unwrap();
        assert_eq!(wanted.request.text, r#"{"b":1}"#);
        assert_eq!(wanted.request.session.as_deref(), Some("s"));
        let fields = [("metadata", r#"{"m":1}"#.to_owned()), ("output_schema", r#"{"type":"object"}"#.to_owned())];
        assert_eq!(wanted.request.fields, fields);
        assert_eq!((wanted.namespace.as_deref(), wanted.ignored.as_slice()), (Some("team-a"), &["retries"][..]));
    }

    #[test]
    fn errors_say_the_line() {
        let run = "apiVersion: cadre.dev/v1alpha1\nkind: Run\nspec:\n  target: {name: a}\n";
        let Err(InvalidManifest::Syntax { line, .. }) = read(&format!("a: 1\n---\n{run}  inputs: {{}}\n")) else {
            panic!("it must not be read")
        };
        assert!((6..=7).contains(&line), "{line}");
        assert_eq!(read("a: 1\n").err(), Some(InvalidManifest::Count(0)));
        assert_eq!(read("").err(), Some(InvalidManifest::Count(0)));
        let whole = format!("{run}  input: {{type: Text, text: x}}\n");
        assert_eq!(read(&format!("{whole}---\n{whole}")).err(), Some(InvalidManifest::Count(2)));
    }
}

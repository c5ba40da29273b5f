//! Manifests of a folder: multi-document YAML, read as a kube-apiserver would read them. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cadre_crds::agent::AgentSpec;
use cadre_crds::model::ModelSpec;
use cadre_crds::run::RunSpec;
use cadre_crds::schema::SPECS;
use cadre_gateway::scripted;
use secrecy::SecretString;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::table::{Key, Specs, Versioned};
use super::{rules, schema};

/// What is wrong and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// File.
    pub file: PathBuf,
    /// Line, from 1; where the document begins if nothing more exact is known.
    pub line: usize,
    /// What.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.message)
    }
}

/// A Secret of a folder.
#[derive(Debug, Clone)]
pub struct SecretManifest {
    /// Values by key.
    pub values: BTreeMap<String, SecretString>,
    /// Label `cadre.dev/credential: "true"`.
    pub labelled: bool,
    /// Annotation `cadre.dev/hosts`.
    pub hosts: Option<Vec<String>>,
}

/// A Run of a folder: not submitted, only known.
#[derive(Debug, Clone)]
pub struct RunManifest {
    /// Namespace.
    pub namespace: String,
    /// `metadata.name`, or `metadata.generateName`.
    pub name: String,
    /// Spec.
    pub spec: RunSpec,
    /// File that it is in.
    pub file: PathBuf,
}

/// All that a folder says.
#[derive(Debug, Clone, Default)]
pub struct Manifests {
    /// Agents and Models.
    pub specs: Specs,
    /// Secrets.
    pub secrets: BTreeMap<Key, SecretManifest>,
    /// Runs.
    pub runs: Vec<RunManifest>,
}

/// `kind` and `metadata`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    generate_name: String,
    namespace: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Object<T> {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    spec: T,
    #[serde(default, rename = "status")]
    _status: serde::de::IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecretObject {
    #[serde(default)]
    string_data: BTreeMap<String, String>,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

/// A document of a file.
struct Document<'a> {
    file: &'a Path,
    line: usize,
    text: &'a str,
}

impl Document<'_> {
    fn problem(&self, message: impl Into<String>) -> Problem {
        Problem { file: self.file.to_owned(), line: self.line, message: message.into() }
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_yaml::from_str(self.text).map_err(|error| {
            let line = error.location().map_or(0, |location| location.line().saturating_sub(1));
            Problem { file: self.file.to_owned(), line: self.line + line, message: error.to_string() }
        })
    }
}

/// Reads files; their order does not matter.
///
/// # Errors
/// Everything that is wrong, by file and line.
pub fn read(files: &[(PathBuf, String)], default_namespace: &str, generation: i64) -> Result<Manifests, Vec<Problem>> {
    let mut manifests = Manifests::default();
    let mut problems = Vec::new();
    for (file, text) in files {
        for document in documents(file, text) {
            if let Err(more) = take(&document, default_namespace, generation, &mut manifests) {
                problems.extend(more);
            }
        }
    }
    if problems.is_empty() { Ok(manifests) } else { Err(problems) }
}

/// Splits at lines that begin with `---`.
fn documents<'a>(file: &'a Path, text: &'a str) -> Vec<Document<'a>> {
    let mut found = Vec::new();
    let (mut start, mut line, mut at, mut number) = (0, 1, 0, 1);
    for text_line in text.split_inclusive('\n') {
        if text_line.trim_end() == "---" || text_line.starts_with("--- ") {
            found.push(Document { file, line, text: &text[start..at] });
            (start, line) = (at + text_line.len(), number + 1);
        }
        at += text_line.len();
        number += 1;
    }
    found.push(Document { file, line, text: &text[start..] });
    found.retain(|document| document.text.lines().any(|line| !line.trim().is_empty() && !line.trim().starts_with('#')));
    found
}

fn take(
    document: &Document<'_>,
    default_namespace: &str,
    generation: i64,
    manifests: &mut Manifests,
) -> Result<(), Vec<Problem>> {
    let one = |problem: Problem| vec![problem];
    let head: Head = document.read().map_err(one)?;
    let name = if head.metadata.name.is_empty() { &head.metadata.generate_name } else { &head.metadata.name };
    let namespace = head.metadata.namespace.clone().unwrap_or_else(|| default_namespace.to_owned());
    let key = (namespace, name.clone());
    match (head.api_version.as_str(), head.kind.as_str()) {
        ("cadre.dev/v1alpha1", "Agent") => {
            let spec: AgentSpec = spec(document, "agents", &key.1)?;
            all(document, rules::agent(&spec))?;
            let agent = Versioned { generation, spec: Arc::new(spec) };
            unique(document, "Agent", manifests.specs.agents.insert(key.clone(), agent).is_some(), &key)
        }
        ("cadre.dev/v1alpha1", "Model") => {
            let spec: ModelSpec = spec(document, "models", &key.1)?;
            all(document, rules::model(&spec))?;
            script(document, &spec)?;
            let model = Versioned { generation, spec: Arc::new(spec) };
            unique(document, "Model", manifests.specs.models.insert(key.clone(), model).is_some(), &key)
        }
        ("cadre.dev/v1alpha1", "Run") => {
            let spec: RunSpec = spec(document, "runs", key.1.trim_end_matches('-'))?;
            all(document, rules::run(&spec))?;
            let run = RunManifest { namespace: key.0, name: key.1, spec, file: document.file.to_owned() };
            manifests.runs.push(run);
            Ok(())
        }
        ("v1", "Secret") => {
            let secret = secret(document, &head.metadata).map_err(one)?;
            unique(document, "Secret", manifests.secrets.insert(key.clone(), secret).is_some(), &key)
        }
        // A pod that somebody keeps for a session: here sessions have none.
        ("cadre.dev/v1alpha1", "Sandbox") => Ok(()),
        // Manifests of an application often have others beside Cadre's.
        (version, _) if !version.is_empty() && !version.starts_with("cadre.dev/") => Ok(()),
        (version, kind) => Err(one(document.problem(format!("kind {kind:?} of {version:?} is not known here")))),
    }
}

/// A script that can't be read would only fail the first run.
fn script(document: &Document<'_>, spec: &ModelSpec) -> Result<(), Vec<Problem>> {
    let Some(text) = &spec.script else { return Ok(()) };
    scripted::check(text).map_err(|error| vec![document.problem(format!("spec.script: {error}"))])
}

static SCHEMAS: OnceLock<Result<Value, String>> = OnceLock::new();

fn spec<T: DeserializeOwned>(document: &Document<'_>, plural: &str, name: &str) -> Result<T, Vec<Problem>> {
    if !is_name(name) {
        let message = format!("metadata.name {name:?} must be a DNS label of at most 52 characters, without dots");
        return Err(vec![document.problem(message)]);
    }
    let object: Object<T> = document.read().map_err(|problem| vec![problem])?;
    let value: Value = document.read().map_err(|problem| vec![problem])?;
    let schemas = SCHEMAS.get_or_init(|| serde_json::from_str(SPECS).map_err(|error| error.to_string()));
    let schemas = schemas.as_ref().map_err(|error| vec![document.problem(error)])?;
    let problems = schema::problems(&schemas[plural], &value["spec"]);
    all(document, problems.into_iter().map(|problem| format!("spec.{problem}")).collect())?;
    Ok(object.spec)
}

fn secret(document: &Document<'_>, metadata: &Metadata) -> Result<SecretManifest, Problem> {
    let object: SecretObject = document.read()?;
    let mut values = BTreeMap::new();
    for (key, text) in object.data {
        let bytes = STANDARD.decode(text.trim()).map_err(|_| document.problem(format!("data.{key} is no base64")))?;
        let text = String::from_utf8(bytes).map_err(|_| document.problem(format!("data.{key} is no text")))?;
        values.insert(key, SecretString::from(text));
    }
    values.extend(object.string_data.into_iter().map(|(key, text)| (key, SecretString::from(text))));
    Ok(SecretManifest {
        values,
        labelled: metadata.labels.get(super::secrets::LABEL).is_some_and(|value| value == "true"),
        hosts: metadata.annotations.get(super::secrets::HOSTS).map(|hosts| super::secrets::split_hosts(hosts)),
    })
}

fn all<T: Into<String>>(document: &Document<'_>, messages: Vec<T>) -> Result<(), Vec<Problem>> {
    if messages.is_empty() {
        return Ok(());
    }
    Err(messages.into_iter().map(|message| document.problem(message)).collect())
}

fn unique(document: &Document<'_>, kind: &str, twice: bool, (namespace, name): &Key) -> Result<(), Vec<Problem>> {
    if twice { Err(vec![document.problem(format!("{kind} {namespace}/{name} is there twice"))]) } else { Ok(()) }
}

fn is_name(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 52
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && edge(name.chars().next())
        && edge(name.chars().last())
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;

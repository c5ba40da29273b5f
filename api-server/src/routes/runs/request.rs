//! A run request: the form's fields, declared and undeclared, as AgentOS reads them.

use cadre_protocol::ids::{BlobDigest, ComponentRef, hex_sha256};
use cadre_store::rows::{IdempotencyKey, Origin, Principal};
use http::{HeaderMap, HeaderName};
use serde_json::{Map, Value, json};

use super::media;
use crate::domain::{NewFile, Submit};
use crate::routes::error::{ApiError, FieldError};
use crate::routes::fields::{Fields, parse_bool};
use crate::routes::form::ApiForm;
use crate::routes::state::UserState;
use crate::streams::shares::StreamSeat;
use crate::telemetry::TraceParent;

/// The header that makes a request safe to send again.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Longest idempotency key, in characters.
const MAX_KEY_CHARS: usize = 512;
/// Longest user id, in bytes.
const MAX_USER_ID_BYTES: usize = 512;
/// Fields that say how to answer, not what to do: a repeated request may change them.
const DELIVERY_FIELDS: [&str; 3] = ["stream", "background", "stream_events"];

/// How the caller wants the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// As events.
    pub stream: bool,
    /// Without waiting for the end.
    pub background: bool,
    /// Only pieces of the answer among the events.
    pub content_only: bool,
}

impl Delivery {
    /// A seat for whoever waits for the run here; none for an answer at once.
    ///
    /// # Errors
    /// 429 when the namespace has as many as it may.
    pub fn seat(self, state: &UserState, namespace: &str) -> Result<Option<StreamSeat>, ApiError> {
        if self.background && !self.stream {
            return Ok(None);
        }
        Ok(Some(state.streams.enter(namespace)?))
    }
}

/// What was asked for.
#[derive(Debug)]
pub struct RunRequest {
    /// The run.
    pub submit: Submit,
    /// The answer.
    pub delivery: Delivery,
}

/// Reads a form. Fields that nobody knows are accepted, as AgentOS does.
///
/// # Errors
/// 422 with all wrong fields; 400 for metadata that is no object and files that are not taken.
pub fn parse(
    form: ApiForm,
    headers: &HeaderMap,
    component: ComponentRef,
    principal: Principal,
) -> Result<RunRequest, ApiError> {
    let ApiForm { mut fields, files } = form;
    let mut files = media::uploads(files)?;
    let text = fields.required("message");
    let delivery = delivery(&mut fields);
    // Accepted for clients that pin versions: a run always uses the newest revision.
    fields.integer("version");
    files.extend(media::objects(&mut fields)?);
    let user_id = user_id(&mut fields);
    let submit = Submit {
        run_id: fields.run_id("run_id"),
        session_id: fields.session_id("session_id"),
        user_id,
        metadata: metadata(&fields)?,
        session_state: object_or_dropped(&fields, "session_state"),
        dependencies: object_or_dropped(&fields, "dependencies"),
        output_schema: output_schema(&mut fields),
        origin: Origin::Http,
        idempotency: idempotency(headers, &fields, &files, None)?,
        trace_parent: trace_parent(headers),
        files,
        ..Submit::text(component, principal, text)
    };
    fields.finish()?;
    Ok(RunRequest { submit, delivery })
}

/// How the caller wants the answer.
pub(super) fn delivery(fields: &mut Fields) -> Delivery {
    Delivery {
        stream: fields.boolean("stream", true),
        background: fields.boolean("background", false),
        // Undeclared in AgentOS, so what is no boolean is no error.
        content_only: fields.text("stream_events").and_then(parse_bool) == Some(false),
    }
}

/// The user that the caller names.
pub fn user_id(fields: &mut Fields) -> Option<String> {
    let user_id = fields.text("user_id")?.to_owned();
    if user_id.len() > MAX_USER_ID_BYTES || user_id.chars().any(char::is_control) {
        let message = format!("Value error, at most {MAX_USER_ID_BYTES} bytes without control characters");
        fields.fail("value_error", "user_id", &message, Value::Null, None);
    }
    Some(user_id)
}

/// Bad JSON is dropped with a warning and the run goes on.
fn object_or_dropped(fields: &Fields, name: &'static str) -> Map<String, Value> {
    let Some(text) = fields.text(name) else { return Map::new() };
    if let Ok(Value::Object(object)) = serde_json::from_str(text) {
        return object;
    }
    tracing::warn!(field = name, "a form field is no JSON object and is ignored");
    Map::new()
}

fn metadata(fields: &Fields) -> Result<Map<String, Value>, ApiError> {
    match fields.text("metadata").map(serde_json::from_str) {
        None => Ok(Map::new()),
        Some(Ok(Value::Object(object))) => Ok(object),
        Some(Ok(_)) => Err(ApiError::bad_request("metadata must be a JSON object")),
        Some(Err(_)) => Ok(object_or_dropped(fields, "metadata")),
    }
}

/// A schema that was dropped would change the answer's shape without a word, so a bad one is an error.
fn output_schema(fields: &mut Fields) -> Option<Value> {
    let schema = serde_json::from_str(fields.text("output_schema")?).ok().filter(Value::is_object);
    if schema.is_none() {
        fields.fail("json_type", "output_schema", "Input should be a JSON Schema object", Value::Null, None);
    }
    schema
}

/// The caller's span; a malformed one is none.
pub(super) fn trace_parent(headers: &HeaderMap) -> Option<TraceParent> {
    TraceParent::parse(headers.get("traceparent")?.to_str().ok()?.trim())
}

/// The request's key. `continued` is the run that it goes on from.
pub(super) fn idempotency(
    headers: &HeaderMap,
    fields: &Fields,
    files: &[NewFile],
    continued: Option<&str>,
) -> Result<Option<IdempotencyKey>, ApiError> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = std::str::from_utf8(value.as_bytes()).unwrap_or_default().trim();
    if key.is_empty() && value.as_bytes().trim_ascii().is_empty() {
        return Ok(None);
    }
    if key.is_empty() || key.chars().count() > MAX_KEY_CHARS {
        return Err(bad_key());
    }
    Ok(Some(IdempotencyKey { key: key.to_owned(), body_sha256: body_sha256(fields, files, continued) }))
}

/// Hash of what is asked for, independent of the form's encoding and of the order of its fields.
fn body_sha256(fields: &Fields, files: &[NewFile], continued: Option<&str>) -> String {
    let asked = |(name, _): &&(String, String)| !DELIVERY_FIELDS.contains(&name.as_str());
    let mut pairs: Vec<_> = fields.pairs().iter().filter(asked).collect();
    pairs.sort();
    let files: Vec<_> =
        files.iter().map(|file| json!([file.name, file.media_type, BlobDigest::of(&file.bytes).as_str()])).collect();
    let asked = match continued {
        None => json!([pairs, files]),
        Some(run_id) => json!([pairs, files, "continue", run_id]),
    };
    hex_sha256(asked.to_string().as_bytes())
}

fn bad_key() -> ApiError {
    ApiError::validation(vec![FieldError {
        kind: "string_too_long",
        loc: vec!["header".to_owned(), IDEMPOTENCY_KEY.as_str().to_owned()],
        msg: format!("String should have at most {MAX_KEY_CHARS} characters"),
        input: Value::Null,
        ctx: Some(json!({ "max_length": MAX_KEY_CHARS })),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)], key: Option<&str>) -> Result<RunRequest, ApiError> {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let form = ApiForm { fields: Fields::of_body(pairs), files: Vec::new() };
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert(IDEMPOTENCY_KEY, key.parse().unwrap());
        }
        parse(form, &headers, ComponentRef::agent("default", "a"), Principal("key:default".into()))
    }

    #[test]
    fn a_bare_message_streams() {
        let request = read(&[("message", "hi"), ("unknown_field", "7")], None).unwrap();
        assert_eq!(request.delivery, Delivery { stream: true, background: false, content_only: false });
        assert_eq!(request.submit.text, "hi");
        assert!(request.submit.session_id.is_none() && request.submit.idempotency.is_none());
    }

    #[test]
    fn json_fields_follow_their_own_rules() {
        let bad = read(&[("message", "m"), ("session_state", "{"), ("dependencies", "[]"), ("metadata", "nope")], None);
        let bad = bad.unwrap().submit;
        assert!(bad.session_state.is_empty() && bad.dependencies.is_empty() && bad.metadata.is_empty());
        assert_eq!(read(&[("message", "m"), ("metadata", "[1]")], None).unwrap_err().status(), 400);
        assert_eq!(read(&[("message", "m"), ("output_schema", "[1]")], None).unwrap_err().status(), 422);
        let good = read(&[("message", "m"), ("session_state", r#"{"a":1}"#), ("output_schema", "{}")], None).unwrap();
        assert_eq!(good.submit.session_state["a"], 1);
        assert_eq!(good.submit.output_schema, Some(json!({})));
    }

    #[test]
    fn wrong_fields_are_422() {
        for pairs in [
            &[("message", "")][..],
            &[][..],
            &[("message", "m"), ("stream", "maybe")][..],
            &[("message", "m"), ("version", "new")][..],
            &[("message", "m"), ("run_id", "a\u{7}")][..],
            &[("message", "m"), ("images", "{}")][..],
        ] {
            assert_eq!(read(pairs, None).unwrap_err().status(), 422, "{pairs:?}");
        }
    }

    #[test]
    fn an_idempotency_key_covers_what_is_asked_not_how_it_is_answered() {
        let key = |pairs: &[(&str, &str)]| read(pairs, Some("k")).unwrap().submit.idempotency.unwrap();
        let first = key(&[("message", "m"), ("session_id", "s"), ("stream", "false")]);
        assert_eq!(first, key(&[("session_id", "s"), ("message", "m"), ("background", "true")]));
        assert_ne!(first, key(&[("session_id", "s"), ("message", "other")]));
        assert!(read(&[("message", "m")], Some("")).unwrap().submit.idempotency.is_none());
        assert!(read(&[("message", "m")], Some(&"k".repeat(512))).is_ok());
        assert_eq!(read(&[("message", "m")], Some(&"k".repeat(513))).unwrap_err().status(), 422);
    }
}

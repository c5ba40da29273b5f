//! Objects that stories are made of. Pure.

use serde_json::{Value, json};

/// A Model that answers from a script.
#[must_use]
pub fn scripted(name: &str, turns: &Value) -> Value {
    model(name, &json!({"provider": "Scripted", "model": "scripted", "script": turns.to_string()}))
}

/// A Model.
#[must_use]
pub fn model(name: &str, spec: &Value) -> Value {
    object("Model", name, spec)
}

/// An Agent with shell and files.
#[must_use]
pub fn worker(name: &str, model: &str, more: &Value) -> Value {
    let tool = |name: &str| json!({"type": "Builtin", "builtin": {"name": name}, "timeoutSeconds": 600});
    let mut spec = json!({"modelRef": {"name": model}, "tools": [tool("Shell"), tool("Files")]});
    extend(&mut spec, more);
    object("Agent", name, &spec)
}

/// An Agent with a shell whose every call needs a person's yes.
#[must_use]
pub fn careful(name: &str, model: &str) -> Value {
    let tool = json!({"type": "Builtin", "builtin": {"name": "Shell"}, "requireApproval": ["shell"]});
    object("Agent", name, &json!({"modelRef": {"name": model}, "tools": [tool]}))
}

/// An Agent without tools.
#[must_use]
pub fn talker(name: &str, model: &str) -> Value {
    object("Agent", name, &json!({"modelRef": {"name": model}}))
}

/// A Run of an Agent.
#[must_use]
pub fn run(name: &str, agent: &str, text: &str, more: &Value) -> Value {
    let mut spec = json!({"target": {"kind": "Agent", "name": agent}, "input": {"type": "Text", "text": text}});
    extend(&mut spec, more);
    object("Run", name, &spec)
}

/// An object of Cadre's.
#[must_use]
pub fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "cadre.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// A Secret.
#[must_use]
pub fn secret(name: &str, key: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: value}})
}

/// A turn of a script that runs a command.
#[must_use]
pub fn shell(command: &str) -> Value {
    json!({"tools": [{"name": "shell", "arguments": {"command": command}}]})
}

fn extend(spec: &mut Value, more: &Value) {
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
}

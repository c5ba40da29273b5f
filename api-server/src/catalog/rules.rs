//! The rules that the CRDs state in CEL, for manifests that no kube-apiserver has checked. Same messages.

use cadre_crds::agent::{AgentSpec, BuiltinName, BuiltinTool, ToolSpec};
use cadre_crds::model::{ModelApi, ModelSpec, Provider};
use cadre_crds::run::{InputPart, InputType, PartType, RunSpec};
use cadre_crds::sandbox::{NetworkMode, Persistence, SandboxTemplateSpec};
use cadre_protocol::agent::Builtin;

/// Header names that carry credentials.
const SECRET_HEADERS: [&str; 7] =
    ["authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "proxy-authorization", "host"];

/// What is wrong with a Model.
#[must_use]
pub fn model(spec: &ModelSpec) -> Vec<&'static str> {
    let scripted = spec.provider == Provider::Scripted;
    let rules = [
        (
            spec.provider == Provider::OpenAICompatible && spec.base_url.is_none(),
            "provider OpenAICompatible needs baseUrl, for example https://models.example.com/v1",
        ),
        (
            !scripted && spec.script.is_some(),
            "script belongs to provider Scripted: remove it or set provider: Scripted",
        ),
        (
            scripted && (spec.auth.is_some() || spec.base_url.is_some() || spec.api.is_some()),
            "provider Scripted answers by itself: remove auth, baseUrl and api",
        ),
        (
            spec.provider == Provider::Anthropic && spec.api.is_some_and(|api| api != ModelApi::Messages),
            "provider Anthropic speaks api Messages",
        ),
        (
            spec.provider != Provider::Anthropic && spec.api == Some(ModelApi::Messages),
            "api Messages belongs to provider Anthropic; OpenAI and OpenAICompatible speak Responses or ChatCompletions",
        ),
        (
            spec.base_url.as_deref().is_some_and(|url| !is_plain_url(url)),
            "baseUrl must be an http or https URL without user, query or fragment",
        ),
        (
            spec.headers.iter().any(|header| SECRET_HEADERS.contains(&header.name.to_ascii_lowercase().as_str())),
            "a header here is readable by everyone who can read this Model: put credentials into auth.secretRef",
        ),
        (
            spec.budget.is_some() && spec.pricing.is_none(),
            "budget needs pricing: without prices nobody knows what a call costs",
        ),
    ];
    broken(rules)
}

/// What is wrong with an Agent.
#[must_use]
pub fn agent(spec: &AgentSpec) -> Vec<&'static str> {
    let mut found = Vec::new();
    for tool in &spec.tools {
        match &tool.builtin {
            Some(builtin) => {
                found.extend(self::builtin(builtin));
                found.extend(gates(tool, builtin.name));
            }
            None => found.push("type Builtin needs the member builtin, for example builtin: {name: Shell}"),
        }
    }
    if let Some(sandbox) = &spec.sandbox {
        found.extend(template(&sandbox.template));
    }
    found
}

/// What is wrong with a Run.
#[must_use]
pub fn run(spec: &RunSpec) -> Vec<&'static str> {
    let input = &spec.input;
    let of_parts = input.parts.iter().flatten().flat_map(part);
    let own = broken([
        (input.text.is_some() != (input.kind == InputType::Text), "type Text needs the member text, and only it"),
        (input.parts.is_some() != (input.kind == InputType::Parts), "type Parts needs the member parts, and only it"),
        (input.json.is_some() != (input.kind == InputType::Json), "type Json needs the member json, and only it"),
    ]);
    own.into_iter().chain(of_parts).collect()
}

fn part(part: &InputPart) -> Vec<&'static str> {
    let is_folder = part.file.as_ref().is_some_and(|file| file.name == "." || file.name == "..");
    broken([
        (part.text.is_some() != (part.kind == PartType::Text), "type Text needs the member text, and only it"),
        (part.file.is_some() != (part.kind == PartType::File), "type File needs the member file, and only it"),
        (is_folder, "a file can't be called . or .."),
    ])
}

fn builtin(tool: &BuiltinTool) -> Vec<&'static str> {
    let http = tool.name == BuiltinName::Http;
    broken([
        (!http && tool.http.is_some(), "http belongs to name Http: remove it or set name: Http"),
        (http && tool.http.is_none(), "name Http needs http.hosts: the hosts that the tool may reach"),
    ])
}

fn gates(tool: &ToolSpec, name: BuiltinName) -> Vec<&'static str> {
    let builtin = match name {
        BuiltinName::Shell => Builtin::Shell,
        BuiltinName::Files => Builtin::Files,
        BuiltinName::Http => Builtin::Http,
    };
    let ToolSpec { require_approval, require_user_input, external_execution, .. } = tool;
    let set = [require_approval, require_user_input, external_execution].into_iter().filter(|list| !list.is_empty());
    let unknown = |tools: &[String]| tools.iter().any(|tool| tool != "*" && !builtin.tools().contains(&tool.as_str()));
    broken([
        (
            set.count() > 1,
            "set only one of requireApproval, requireUserInput and externalExecution: a call waits for one kind of answer",
        ),
        (
            unknown(require_approval),
            "requireApproval names tools of this entry as the model sees them: shell; list_files, read_file, write_file, edit_file, search_files; http; or '*' for all",
        ),
        (
            unknown(external_execution),
            "externalExecution names tools of this entry as the model sees them: shell; list_files, read_file, write_file, edit_file, search_files; http; or '*' for all",
        ),
        (
            require_user_input.iter().any(|argument| !builtin.arguments().contains(&argument.as_str())),
            "requireUserInput names arguments of this entry's tools: command, cwd, timeout_seconds of Shell; content, first_line, glob, max_lines, new, old, path, pattern, recursive, replace_all of Files; body, headers, method, url of Http",
        ),
    ])
}

fn template(template: &SandboxTemplateSpec) -> Vec<&'static str> {
    let network = &template.network;
    let labels = template.pod_template.iter().flat_map(|pod| &pod.labels);
    let reserved = |name: &str| name.starts_with("cadre.dev/") || name.starts_with("app.kubernetes.io/");
    broken([
        (
            network.allow.is_empty() == (network.mode == NetworkMode::Allowlist),
            "mode Allowlist needs allow, and only it",
        ),
        (
            template.workspace.storage_class_name.is_some() && template.workspace.persistence != Persistence::Volume,
            "storageClassName belongs to persistence Volume",
        ),
        (
            labels.into_iter().any(|label| reserved(&label.name)),
            "labels of cadre.dev and app.kubernetes.io are the operator's",
        ),
    ])
}

fn is_plain_url(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', '?', '#']))
}

fn broken<const N: usize>(rules: [(bool, &'static str); N]) -> Vec<&'static str> {
    rules.into_iter().filter(|(broken, _)| *broken).map(|(_, message)| message).collect()
}

use secrecy::ExposeSecret as _;

use super::*;

fn read_text(text: &str) -> Result<Manifests, Vec<String>> {
    let files = [(PathBuf::from("a.yaml"), text.to_owned())];
    read(&files, "default", 1).map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn a_file_may_hold_many_documents() {
    let manifests = read_text(
        "# models first
apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {name: m}
spec: {provider: Scripted, model: x}
---
apiVersion: cadre.dev/v1alpha1
kind: Agent
metadata: {name: a, namespace: team}
spec: {modelRef: {name: m}}
---
# nothing but a comment
---
apiVersion: v1
kind: Secret
metadata: {name: s, labels: {cadre.dev/credential: 'true'}, annotations: {cadre.dev/hosts: 'a.example, b.example'}}
stringData: {key: plain}
data: {other: aGk=}
---
apiVersion: cadre.dev/v1alpha1
kind: Run
metadata: {generateName: report-}
spec: {target: {kind: Agent, name: a}, input: {type: Text, text: hi}}
---
apiVersion: apps/v1
kind: Deployment
",
    )
    .unwrap();
    assert_eq!(manifests.specs.agents.len() + manifests.specs.models.len(), 2);
    assert!(manifests.specs.agents.contains_key(&("team".to_owned(), "a".to_owned())));
    let secret = &manifests.secrets[&("default".to_owned(), "s".to_owned())];
    assert_eq!((secret.values["key"].expose_secret(), secret.values["other"].expose_secret()), ("plain", "hi"));
    assert!(secret.labelled && secret.hosts.as_deref() == Some(&["a.example".to_owned(), "b.example".to_owned()][..]));
    assert_eq!(manifests.runs[0].name, "report-");
}

#[test]
fn a_sandbox_is_nothing_to_serve_here() {
    let text = "apiVersion: cadre.dev/v1alpha1\nkind: Sandbox\nmetadata: {name: s}\nspec: {}\n";
    assert_eq!(read_text(text).unwrap().runs.len(), 0);
}

#[test]
fn what_the_cluster_would_refuse_is_refused() {
    let run = |input: &str| {
        let spec = format!("spec: {{target: {{name: a}}, input: {input}}}");
        read_text(&format!("apiVersion: cadre.dev/v1alpha1\nkind: Run\nmetadata: {{name: r}}\n{spec}\n"))
    };
    assert_eq!(run("{type: Text, text: hi}").unwrap().runs.len(), 1);
    for (input, problem) in [
        ("{type: Text, json: {a: 1}}", "type Text needs the member text, and only it"),
        ("{type: Parts, parts: [{type: File, text: hi}]}", "type File needs the member file, and only it"),
        ("{type: Parts, parts: [{type: File, file: {name: .., content: x}}]}", "a file can't be called . or .."),
    ] {
        let problems = run(input).unwrap_err().join("\n");
        assert!(problems.contains(problem), "{input}: {problems}");
    }
    let model = "apiVersion: cadre.dev/v1alpha1\nkind: Model\nmetadata: {name: m}\n\
                 spec: {provider: Scripted, model: x, script: '- {chunk: 0}'}\n";
    assert_eq!(read_text(model).unwrap_err(), ["a.yaml:1: spec.script: turn 1: chunk must be at least 1"]);
}

#[test]
fn mistakes_are_told_with_file_and_line() {
    let problems = read_text(
        "apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {name: m}
spec:
  provider: Scripted
  model: x
  modell: y
---
apiVersion: cadre.dev/v1alpha1
kind: Modle
metadata: {name: m}
---
apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {name: big}
spec: {provider: Scripted, model: x, retries: 99, baseUrl: 'https://x'}
---
apiVersion: cadre.dev/v1alpha1
kind: Agent
metadata: {name: With.Dots}
spec: {modelRef: {name: m}}
",
    )
    .unwrap_err();
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(problems[0].starts_with("a.yaml:") && problems[0].contains("modell"), "{}", problems[0]);
    assert_eq!(problems[1], "a.yaml:9: kind \"Modle\" of \"cadre.dev/v1alpha1\" is not known here");
    assert_eq!(problems[2], "a.yaml:13: spec.retries: must be at most 10");
    assert!(problems[3].starts_with("a.yaml:18: metadata.name"), "{}", problems[3]);
}

#[test]
fn what_the_crds_refuse_in_cel_is_refused_here() {
    let cases = [
        ("Model", "{provider: Scripted, model: x, baseUrl: 'https://x'}", "provider Scripted answers by itself"),
        ("Model", "{provider: OpenAICompatible, model: x}", "needs baseUrl"),
        ("Model", "{provider: OpenAI, model: x, script: y}", "script belongs to provider Scripted"),
        ("Model", "{provider: OpenAI, model: x, headers: [{name: Authorization, value: y}]}", "auth.secretRef"),
        ("Agent", "{modelRef: {name: m}, tools: [{type: Builtin}]}", "needs the member builtin"),
        ("Agent", "{modelRef: {name: m}, tools: [{type: Builtin, builtin: {name: Http}}]}", "needs http.hosts"),
        (
            "Agent",
            "{modelRef: {name: m}, sandbox: {template: {network: {mode: Allowlist}}}}",
            "mode Allowlist needs allow",
        ),
        (
            "Agent",
            "{modelRef: {name: m}, tools: [{type: Builtin, builtin: {name: Shell}, requireApproval: ['*'], requireUserInput: [command]}]}",
            "set only one of requireApproval, requireUserInput and externalExecution",
        ),
        (
            "Agent",
            "{modelRef: {name: m}, tools: [{type: Builtin, builtin: {name: Shell}, requireApproval: [http]}]}",
            "requireApproval names tools of this entry",
        ),
        (
            "Agent",
            "{modelRef: {name: m}, tools: [{type: Builtin, builtin: {name: Files}, externalExecution: [shell]}]}",
            "externalExecution names tools of this entry",
        ),
        (
            "Agent",
            "{modelRef: {name: m}, tools: [{type: Builtin, builtin: {name: Shell}, requireUserInput: [path]}]}",
            "requireUserInput names arguments of this entry's tools",
        ),
    ];
    for (kind, spec, expected) in cases {
        let text = format!("apiVersion: cadre.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n");
        let problems = read_text(&text).unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(expected), "{spec}: {problems:?}");
    }
}

#[test]
fn two_of_a_name_are_a_mistake() {
    let one =
        "apiVersion: cadre.dev/v1alpha1\nkind: Model\nmetadata: {name: m}\nspec: {provider: Scripted, model: x}\n";
    let problems = read_text(&format!("{one}---\n{one}")).unwrap_err();
    assert_eq!(problems, ["a.yaml:6: Model default/m is there twice"]);
}

//! Wrong objects, and a part of what the kube-apiserver must say to them.

/// An object that must be refused.
pub struct Case {
    /// What is wrong with it.
    pub why: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Name.
    pub name: &'static str,
    /// Spec as YAML.
    pub spec: String,
    /// Part of the answer.
    pub message: &'static str,
}

const AGENT: &str = "modelRef: {name: m}";
const LONG_NAME: &str = "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabc";

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = agents();
    cases.extend(models());
    cases.extend(runs());
    cases.extend(sandboxes());
    cases
}

fn case(why: &'static str, kind: &'static str, spec: impl Into<String>, message: &'static str) -> Case {
    Case { why, kind, name: "wrong", spec: spec.into(), message }
}

fn agent(why: &'static str, more: &str, message: &'static str) -> Case {
    case(why, "Agent", format!("{AGENT}\n{more}"), message)
}

fn agents() -> Vec<Case> {
    vec![
        case("no model", "Agent", "instructions: hi", "spec.modelRef: Required value"),
        agent("a number as text", "retries: many", "spec.retries"),
        agent("an unknown field", "instruction: hi", "unknown field \"spec.instruction\""),
        agent("an unknown enum value", "toolChoice: Sometimes", "supported values: \"Auto\", \"None\", \"Required\""),
        agent("a union without its member", "tools: [{type: Builtin}]", "type Builtin needs the member builtin"),
        agent(
            "a member of another name",
            "tools: [{type: Builtin, builtin: {name: Shell, http: {hosts: [a.b]}}}]",
            "http belongs to name Http",
        ),
        agent("http without hosts", "tools: [{type: Builtin, builtin: {name: Http}}]", "name Http needs http.hosts"),
        agent("an end that is not to be kept", "events: {skip: [RunCompleted]}", "supported values: \"RunStarted\""),
        agent(
            "a tool that needs two kinds of answers",
            "tools: [{type: Builtin, builtin: {name: Shell}, requireApproval: [shell], externalExecution: [shell]}]",
            "set only one of requireApproval, requireUserInput and externalExecution",
        ),
        agent(
            "an approval of another entry's tool",
            "tools: [{type: Builtin, builtin: {name: Shell}, requireApproval: [read_file]}]",
            "requireApproval names tools of this entry",
        ),
        agent(
            "an unknown tool for the caller",
            "tools: [{type: Builtin, builtin: {name: Files}, externalExecution: ['*', files]}]",
            "externalExecution names tools of this entry",
        ),
        agent(
            "an unknown argument for the user",
            "tools: [{type: Builtin, builtin: {name: Http, http: {hosts: [a.b]}}, requireUserInput: [command]}]",
            "requireUserInput names arguments of this entry's tools",
        ),
        agent("a negative limit", "retries: -1", "spec.retries"),
        agent("a budget that is no amount", "limits: {maxBudgetUsd: '$5'}", "spec.limits.maxBudgetUsd"),
        agent("no tokens at all", "limits: {maxTokens: 0}", "spec.limits.maxTokens"),
        agent(
            "a megabyte of instructions",
            &format!("instructions: {}", "x".repeat(1 << 20)),
            "may not be more than 100000",
        ),
        agent("the engine's user", "sandbox: {template: {runAsUser: 65532}}", "65532 is the engine's own"),
        agent(
            "a template that contradicts itself",
            "sandbox: {template: {network: {mode: Allowlist}}}",
            "mode Allowlist needs allow",
        ),
        Case { name: "a.b", ..case("a name with a dot", "Agent", AGENT, "without dots") },
        Case { name: LONG_NAME, ..case("a name of 53 characters", "Agent", AGENT, "at most 52 characters") },
    ]
}

fn models() -> Vec<Case> {
    vec![
        case("an unknown provider", "Model", "provider: Acme\nmodel: x", "supported values: \"Anthropic\""),
        case(
            "a budget without prices",
            "Model",
            "provider: OpenAI\nmodel: x\nbudget: {usd: '5', window: Day}",
            "budget needs pricing",
        ),
        case(
            "a budget of nobody knows when",
            "Model",
            "provider: OpenAI\nmodel: x\npricing: {input: '1', output: '2'}\nbudget: {usd: '5', window: Week}",
            "supported values: \"Hour\", \"Day\", \"Month\"",
        ),
        case("no model id", "Model", "provider: OpenAI", "spec.model: Required value"),
        case("a compatible provider without address", "Model", "provider: OpenAICompatible\nmodel: x", "needs baseUrl"),
        case(
            "an address with a password",
            "Model",
            "provider: OpenAICompatible\nmodel: x\nbaseUrl: https://u:p@h/v1",
            "without user, query or fragment",
        ),
        case(
            "a script for a real provider",
            "Model",
            "provider: OpenAI\nmodel: x\nscript: s",
            "script belongs to provider Scripted",
        ),
        case(
            "a credential for a script",
            "Model",
            "provider: Scripted\nmodel: x\nauth: {secretRef: {name: s, key: k}}",
            "provider Scripted answers by itself",
        ),
        case(
            "another provider's format",
            "Model",
            "provider: Anthropic\nmodel: x\napi: Responses",
            "Anthropic speaks api Messages",
        ),
        case(
            "Anthropic's format elsewhere",
            "Model",
            "provider: OpenAI\nmodel: x\napi: Messages",
            "api Messages belongs to",
        ),
        case(
            "a credential in a header",
            "Model",
            "provider: OpenAI\nmodel: x\nheaders: [{name: Authorization, value: Bearer t}]",
            "put credentials into auth.secretRef",
        ),
        case(
            "money as a number",
            "Model",
            "provider: OpenAI\nmodel: x\npricing: {input: 1.5, output: '2'}",
            "spec.pricing.input",
        ),
        case(
            "money below zero",
            "Model",
            "provider: OpenAI\nmodel: x\npricing: {input: '-1', output: '2'}",
            "spec.pricing.input",
        ),
    ]
}

fn runs() -> Vec<Case> {
    let run = |why, input: &str, message| case(why, "Run", format!("target: {{name: a}}\ninput: {input}"), message);
    vec![
        case("no target", "Run", "input: {type: Text, text: hi}", "spec.target: Required value"),
        run("the wrong member", "{type: Text, json: {a: 1}}", "type Text needs the member text"),
        run("two members", "{type: Text, text: hi, json: {a: 1}}", "type Json needs the member json"),
        run("a part without its member", "{type: Parts, parts: [{type: File}]}", "type File needs the member file"),
        run(
            "a file that leaves its folder",
            "{type: Parts, parts: [{type: File, file: {name: ../x, content: a}}]}",
            "spec.input.parts[0].file.name",
        ),
        run(
            "a file called ..",
            "{type: Parts, parts: [{type: File, file: {name: .., content: a}}]}",
            "can't be called . or ..",
        ),
        case(
            "an unknown kind",
            "Run",
            "target: {kind: Robot, name: a}\ninput: {type: Text, text: hi}",
            "supported values: \"Agent\"",
        ),
        case(
            "an endless run",
            "Run",
            "target: {name: a}\ninput: {type: Text, text: hi}\ntimeoutSeconds: 0",
            "spec.timeoutSeconds",
        ),
    ]
}

fn sandboxes() -> Vec<Case> {
    vec![
        case("a session without agent", "Sandbox", "sessionId: s", "sessionId and agentRef go together"),
        case("root", "Sandbox", "template: {runAsUser: 0}", "spec.template.runAsUser"),
        case("the engine's user", "Sandbox", "template: {runAsUser: 65532}", "65532 is the engine's own"),
        case("the engine's group", "Sandbox", "template: {fsGroup: 65532}", "65532 is the engine's own"),
        case(
            "a bad address",
            "Sandbox",
            "template: {network: {mode: Allowlist, allow: [{cidr: everywhere}]}}",
            "cidr must be like",
        ),
        case(
            "the operator's labels",
            "Sandbox",
            "template: {podTemplate: {labels: [{name: cadre.dev/sandbox, value: x}]}}",
            "are the operator's",
        ),
        case(
            "a class without a volume",
            "Sandbox",
            "template: {workspace: {storageClassName: fast}}",
            "storageClassName belongs to persistence Volume",
        ),
        case("an amount in words", "Sandbox", "template: {workspace: {size: big}}", "spec.template.workspace.size"),
    ]
}

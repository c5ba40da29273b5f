//! What the CRD's schema can't say about a Sandbox.

use cadre_crds::sandbox::{SandboxResources, SandboxSpec};
use ipnet::IpNet;

use crate::objects::quantity::thousandths;

/// What must be edited, if anything.
#[must_use]
pub fn problem(spec: &SandboxSpec) -> Option<String> {
    resources(spec.template.resources.as_deref()).or_else(|| addresses(spec))
}

fn resources(resources: Option<&SandboxResources>) -> Option<String> {
    let SandboxResources { requests, limits } = resources?;
    let rows = [
        ("cpu", &requests.cpu, &limits.cpu),
        ("memory", &requests.memory, &limits.memory),
        ("ephemeralStorage", &requests.ephemeral_storage, &limits.ephemeral_storage),
    ];
    rows.into_iter().find_map(|(name, request, limit)| {
        let (request, limit) = (request.as_ref()?, limit.as_ref()?);
        let exceeds = thousandths(request)? > thousandths(limit)?;
        exceeds
            .then(|| format!("spec.template.resources: the request of {name} ({request}) exceeds its limit ({limit})"))
    })
}

fn addresses(spec: &SandboxSpec) -> Option<String> {
    let bad = spec.template.network.allow.iter().find(|allow| allow.cidr.parse::<IpNet>().is_err())?;
    Some(format!("spec.template.network.allow: {:?} is no range of addresses", bad.cidr))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn problems_are_named() {
        let spec = |template: Value| serde_json::from_value::<SandboxSpec>(json!({ "template": template })).unwrap();
        let resources = |request: &str, limit: &str| json!({"resources": {"requests": {"memory": request}, "limits": {"memory": limit}}});
        for (template, expected) in [
            (json!({}), None),
            (resources("1Gi", "1024Mi"), None),
            (
                resources("2Gi", "1Gi"),
                Some("spec.template.resources: the request of memory (2Gi) exceeds its limit (1Gi)"),
            ),
            (json!({"network": {"mode": "Allowlist", "allow": [{"cidr": "203.0.113.0/24"}]}}), None),
            (
                json!({"network": {"mode": "Allowlist", "allow": [{"cidr": "nowhere"}]}}),
                Some("spec.template.network.allow: \"nowhere\" is no range of addresses"),
            ),
        ] {
            assert_eq!(problem(&spec(template.clone())).as_deref(), expected, "{template}");
        }
    }
}

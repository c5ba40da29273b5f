//! What the CRD's schema can't say about a Model.

use cadre_crds::model::ModelSpec;
use http::{HeaderName, HeaderValue};
use url::Url;

/// What must be edited, if anything.
#[must_use]
pub fn problem(spec: &ModelSpec) -> Option<String> {
    base_url(spec).or_else(|| headers(spec))
}

fn base_url(spec: &ModelSpec) -> Option<String> {
    let error = Url::parse(spec.base_url.as_ref()?).err()?;
    Some(format!("spec.baseUrl is no URL: {error}"))
}

fn headers(spec: &ModelSpec) -> Option<String> {
    spec.headers.iter().find_map(|header| {
        let name = HeaderName::from_bytes(header.name.as_bytes()).err();
        let value = HeaderValue::from_str(&header.value).err();
        match (name, value) {
            (Some(_), _) => Some(format!("spec.headers: {:?} is no header name", header.name)),
            (None, Some(_)) => Some(format!("spec.headers: the value of {:?} has control characters", header.name)),
            (None, None) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn problems_are_named() {
        let spec = |more: Value| {
            let mut spec =
                json!({"provider": "OpenAICompatible", "model": "m", "baseUrl": "https://models.example/v1"});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<ModelSpec>(spec).unwrap()
        };
        for (more, expected) in [
            (json!({}), None),
            (json!({"headers": [{"name": "X-Team", "value": "a"}]}), None),
            (
                json!({"headers": [{"name": "X Team", "value": "a"}]}),
                Some("spec.headers: \"X Team\" is no header name"),
            ),
            (
                json!({"headers": [{"name": "X-Team", "value": "a\r\nb"}]}),
                Some("spec.headers: the value of \"X-Team\" has control characters"),
            ),
            (json!({"baseUrl": "https://[::1"}), Some("spec.baseUrl is no URL: invalid IPv6 address")),
        ] {
            assert_eq!(problem(&spec(more.clone())).as_deref(), expected, "{more}");
        }
    }
}

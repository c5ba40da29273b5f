//! Pieces of schema that the derive macros can't express.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Conditions: a list keyed by type.
pub fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let items = generator.subschema_for::<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>();
    json_schema!({
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"]
    })
}

/// A JSON object of any content.
pub fn free_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// An amount of a resource, for example `500m` or `1Gi`.
pub fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 32,
        "pattern": "^[0-9]+(\\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
    })
}

/// A non-negative decimal number as text, for money.
pub fn decimal(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 24, "pattern": "^[0-9]{1,9}(\\.[0-9]{1,9})?$" })
}

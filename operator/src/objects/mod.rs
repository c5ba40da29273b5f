//! Pure builders of child objects: from a validated Sandbox and the operator's settings, without IO.

pub mod containers;
pub mod labels;
pub mod network_policy;
pub mod pod;
pub mod quantity;
pub mod service_account;
pub mod volume_claim;
pub mod volumes;

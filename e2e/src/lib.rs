//! What tests on a real Kubernetes need: the programs of the one-machine cluster, certificates, and a control plane alone.
//!
//! `xtask` links this library too, so it stays light: no Kubernetes client, no async runtime.
//! Helpers that need these live beside the tests.

pub mod binaries;
pub mod cache;
pub mod cluster;
pub mod control_plane;
pub mod kubeconfig;
pub mod matrix;
pub mod pki;
pub mod python;
pub mod story;
pub mod unique;
pub mod wait;

pub use control_plane::ControlPlane;

/// The image with which tests look at the cluster from inside of a pod; `cargo xtask cluster up` loads it.
pub const PROBE_IMAGE: &str = "localhost/cadre/probe:1";

//! Volumes of an agent pod and where its containers see them.

use cadre_crds::sandbox::{Persistence, Sandbox};
use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, ServiceAccountTokenProjection,
    Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::volume_claim;

/// Folder of the pod's token.
pub const TOKEN_DIR: &str = "/var/run/secrets/cadre";
/// The token's file.
pub const TOKEN_FILE: &str = "/var/run/secrets/cadre/token";
/// Folder of the socket between engine and exec-server.
pub const SOCKET_DIR: &str = "/run/cadre";
/// The socket.
pub const SOCKET: &str = "/run/cadre/exec.sock";
/// The workspace.
pub const WORKSPACE: &str = "/workspace";
/// HOME of tools.
pub const HOME: &str = "/home/agent";
/// Folder of the program in a user's own image.
pub const PROGRAM_DIR: &str = "/opt/cadre";

/// Audience of the pod's token.
const AUDIENCE: &str = "cadre-api";
/// Seconds that a token is valid; kubelet renews it at 80 %.
const TOKEN_SECONDS: i64 = 3600;
/// Space of HOME and of /tmp.
pub const SCRATCH: &str = "1Gi";

/// What the pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// A container for tools.
    pub tools: bool,
    /// It has an image of the user's, into which the program must be put.
    pub install: bool,
}

/// All volumes.
#[must_use]
pub fn all(sandbox: &Sandbox, shape: Shape) -> Vec<Volume> {
    let mut volumes = vec![token(), empty("engine-tmp", "16Mi")];
    if shape.tools {
        volumes.extend([empty("socket", "1Mi"), workspace(sandbox), empty("home", SCRATCH), empty("tmp", SCRATCH)]);
    }
    if shape.install {
        volumes.push(empty("program", "128Mi"));
    }
    volumes
}

/// What the engine sees: never the workspace.
#[must_use]
pub fn of_engine(shape: Shape) -> Vec<VolumeMount> {
    let mut mounts = vec![read_only("token", TOKEN_DIR), writable("engine-tmp", "/tmp")];
    if shape.tools {
        mounts.push(writable("socket", SOCKET_DIR));
    }
    if shape.install {
        mounts.push(writable("program", PROGRAM_DIR));
    }
    mounts
}

/// What tools see: never the token.
#[must_use]
pub fn of_tools(shape: Shape) -> Vec<VolumeMount> {
    let mut mounts = vec![
        read_only("socket", SOCKET_DIR),
        writable("workspace", WORKSPACE),
        writable("home", HOME),
        writable("tmp", "/tmp"),
    ];
    if shape.install {
        mounts.push(read_only("program", PROGRAM_DIR));
    }
    mounts
}

fn token() -> Volume {
    let token = ServiceAccountTokenProjection {
        audience: Some(AUDIENCE.into()),
        expiration_seconds: Some(TOKEN_SECONDS),
        path: "token".into(),
        ..ServiceAccountTokenProjection::default()
    };
    Volume {
        name: "token".into(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(vec![VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() }]),
            default_mode: Some(0o440),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn workspace(sandbox: &Sandbox) -> Volume {
    let workspace = &sandbox.spec.template.workspace;
    match workspace.persistence {
        Persistence::Ephemeral => empty("workspace", &workspace.size),
        Persistence::Volume => Volume {
            name: "workspace".into(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: volume_claim::name(sandbox),
                read_only: None,
            }),
            ..Volume::default()
        },
    }
}

fn empty(name: &str, limit: &str) -> Volume {
    Volume {
        name: name.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(Quantity(limit.into())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn writable(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.into(), mount_path: path.into(), ..VolumeMount::default() }
}

fn read_only(name: &str, path: &str) -> VolumeMount {
    VolumeMount { read_only: Some(true), ..writable(name, path) }
}

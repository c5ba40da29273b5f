//! The cluster's Go programs: which modules they come from and where their built files are kept.
//!
//! A module's folder in the cache is named after a hash of its sources, so that a change of a version
//! is a new folder and an unchanged one is never built twice.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::cache;

/// A program of a Go module of `e2e/cluster/go`.
#[derive(Debug)]
pub struct Module {
    /// The built file's name.
    pub name: &'static str,
    /// The module's folder. Programs of one module share what they have in common, which is compiled once.
    pub sources: &'static str,
    /// What to build: a package of the module or of one of its dependencies.
    pub package: &'static str,
    /// The names by which the built file is called; empty when it has only its own.
    pub programs: &'static [&'static str],
    /// Values that the linker sets, as `import/path.name=value`.
    pub values: &'static [&'static str],
}

/// All modules, in the order in which they are built.
pub const MODULES: [Module; 6] = [
    Module {
        name: "kubernetes",
        sources: "kubernetes",
        package: ".",
        programs: &[
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
            "volumes",
        ],
        // Without these the programs call themselves v0.0.0 and clients choose the wrong behaviour.
        values: &[
            "k8s.io/component-base/version.gitVersion=v1.34.4",
            "k8s.io/component-base/version.gitMajor=1",
            "k8s.io/component-base/version.gitMinor=34",
        ],
    },
    Module {
        name: "helm",
        sources: "kubernetes",
        package: "helm.sh/helm/v3/cmd/helm",
        programs: &[],
        // Helm refuses charts that ask for a newer Kubernetes than the one these numbers name.
        values: &[
            "helm.sh/helm/v3/internal/version.version=v3.19.5",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34",
        ],
    },
    Module { name: "etcd", sources: "etcd", package: "go.etcd.io/etcd/server/v3", programs: &[], values: &[] },
    Module { name: "coredns", sources: "coredns", package: ".", programs: &[], values: &[] },
    Module {
        name: "kube-router",
        sources: "kube-router",
        package: "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
        programs: &[],
        values: &["github.com/cloudnativelabs/kube-router/v2/pkg/version.Version=v2.1.0"],
    },
    Module { name: "probe", sources: "probe", package: ".", programs: &[], values: &[] },
];

impl Module {
    /// The folder with the module's sources in this checkout.
    #[must_use]
    pub fn source(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/go").join(self.sources)
    }

    /// The folder in the cache that holds the built file of the present sources, whether it was built or not.
    ///
    /// # Errors
    /// When the sources can't be read or the cache has no place.
    pub fn folder(&self) -> Result<PathBuf> {
        let hash = self.hash().with_context(|| format!("can't read {}", self.source().display()))?;
        Ok(cache::root()?.join("cluster-bin").join(format!("{}-{}", self.name, &hash[..16])))
    }

    /// The names by which the built file can be called.
    #[must_use]
    pub fn names(&self) -> &[&'static str] {
        if self.programs.is_empty() { std::slice::from_ref(&self.name) } else { self.programs }
    }

    fn hash(&self) -> Result<String> {
        let is_source = |path: &PathBuf| {
            path.extension().is_some_and(|extension| extension == "go")
                || path.ends_with("go.mod")
                || path.ends_with("go.sum")
        };
        let paths = std::fs::read_dir(self.source())?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        let mut paths: Vec<_> = paths.into_iter().filter(is_source).collect();
        paths.sort();
        let mut hash = Sha256::new();
        for path in paths {
            let content = std::fs::read(&path)?;
            hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
            hash.update((content.len() as u64).to_le_bytes());
            hash.update(content);
        }
        for value in self.values {
            hash.update(value);
        }
        Ok(format!("{:x}", hash.finalize()))
    }
}

/// The built file of a program, such as `kubectl`.
///
/// # Errors
/// When it was not built yet (the message names the command that does it), or no module has it.
pub fn program(name: &str) -> Result<PathBuf> {
    let Some(module) = MODULES.iter().find(|module| module.names().contains(&name)) else {
        bail!("no module of the cluster makes the program {name}");
    };
    let path = module.folder()?.join(name);
    if !path.exists() {
        bail!("{name} isn't built yet: run `cargo xtask cluster build` first (it takes some minutes, once)");
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_its_sources() {
        for module in &MODULES {
            assert!(module.source().join("go.mod").is_file(), "{} lacks its go.mod", module.name);
        }
    }

    #[test]
    fn a_module_is_kept_under_its_hash() {
        let folder = MODULES[0].folder().unwrap();
        assert_eq!(folder, MODULES[0].folder().unwrap());
        assert!(folder.file_name().unwrap().to_str().unwrap().starts_with("kubernetes-"));
        assert_ne!(MODULES[1].hash().unwrap(), MODULES[2].hash().unwrap());
    }

    #[test]
    fn unknown_programs_are_refused() {
        assert_eq!(program("etcdctl").unwrap_err().to_string(), "no module of the cluster makes the program etcdctl");
    }
}

//! The user's present cluster in place of ours: `CADRE_CLUSTER=current`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cadre_e2e::binaries;

use super::command::{command, output};
use super::host::has;
use super::progress::Progress;
use super::{go, up};
use crate::oci::{NamedDigest, read_names};

/// The variable that chooses the cluster.
const VARIABLE: &str = "CADRE_CLUSTER";
/// The variable that names the registry from which that cluster pulls.
const REGISTRY: &str = "CADRE_REGISTRY";

/// The cluster of the present kube context.
pub struct Current {
    context: String,
    kubectl: PathBuf,
}

impl Current {
    /// The present context, when `CADRE_CLUSTER` asks for it.
    ///
    /// # Errors
    /// When the variable has another value, kubectl is missing or no context is set.
    pub fn from_environment() -> Result<Option<Self>> {
        match std::env::var(VARIABLE).unwrap_or_default().as_str() {
            "" | "own" => return Ok(None),
            "current" => {}
            other => bail!(
                "{VARIABLE} is {other}: it can be `current` (the present kube context) or unset (Cadre's own cluster)"
            ),
        }
        let kubectl = if has("kubectl") { PathBuf::from("kubectl") } else { binaries::program("kubectl")? };
        let context = output(command(&kubectl).args(["config", "current-context"]))
            .context("no kube context is set: choose one with `kubectl config use-context`")?;
        Ok(Some(Self { context: context.trim().to_owned(), kubectl }))
    }

    /// Asks the cluster whether it is ready.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub fn check(&self) -> Result<()> {
        output(command(&self.kubectl).args(["--request-timeout=10s", "get", "--raw", "/readyz"]))
            .with_context(|| format!("the cluster of the context {} doesn't answer", self.context))?;
        Progress::start().say(&format!("the cluster of the context {} is ready", self.context));
        Ok(())
    }

    /// Checks the cluster, and puts the programs that speak to it into a folder: those of the user where they are
    /// installed.
    ///
    /// # Errors
    /// When the cluster doesn't answer, or one of them can't be built.
    pub fn prepare(&self, folder: &Path) -> Result<()> {
        self.check()?;
        std::fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
        for program in ["kubectl", "helm"] {
            let target = match installed(program, folder) {
                Some(path) => path,
                None => {
                    go::build_program(program, up::keep_go_cache())?;
                    binaries::program(program)?
                }
            };
            up::replace_link(&target, &folder.join(program))?;
        }
        Ok(())
    }

    /// The kubeconfig in use.
    pub fn kubeconfig(&self) -> PathBuf {
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".kube/config");
        std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map_or_else(home, PathBuf::from)
    }

    /// Brings images to where the cluster finds them: into kind's nodes, or to the registry.
    ///
    /// # Errors
    /// When neither way is open: the message says what to set.
    pub fn load(&self, archives: &[PathBuf]) -> Result<()> {
        let progress = Progress::start();
        for archive in archives {
            for mut step in self.steps(archive, std::env::var(REGISTRY).ok().as_deref())? {
                output(&mut step)?;
            }
            progress.say(&format!("{}: loaded", archive.display()));
        }
        Ok(())
    }

    /// The name by which the cluster finds an image that [`Self::load`] brought there.
    pub fn name(&self, image: &str) -> String {
        self.name_by(image, std::env::var(REGISTRY).ok().as_deref())
    }

    fn name_by(&self, image: &str, registry: Option<&str>) -> String {
        match registry.filter(|registry| !registry.is_empty() && !self.context.starts_with("kind-")) {
            Some(registry) => pushed(image, registry),
            None => image.to_owned(),
        }
    }

    fn steps(&self, archive: &Path, registry: Option<&str>) -> Result<Vec<Command>> {
        if let Some(cluster) = self.context.strip_prefix("kind-") {
            let mut kind = command("kind");
            kind.args(["load", "image-archive"]).arg(archive).args(["--name", cluster]);
            return Ok(vec![kind]);
        }
        let registry = registry.filter(|registry| !registry.is_empty()).with_context(|| {
            format!(
                "the context {} is no kind cluster: set {REGISTRY} to a registry from which it pulls (host/path), \
                 to which skopeo may push",
                self.context
            )
        })?;
        Ok(read_names(archive)?.iter().map(|image| push(archive, image, registry)).collect())
    }
}

/// Where the user has a program; what an earlier call has put into `folder` is none of theirs.
fn installed(program: &str, folder: &Path) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&paths).filter(|path| path.as_path() != folder).map(|path| path.join(program));
    found.into_iter().find(|path| path.is_file())
}

fn push(archive: &Path, image: &NamedDigest, registry: &str) -> Command {
    let (_, tag) = image.name.rsplit_once(':').unwrap_or((&image.name, "latest"));
    let mut skopeo = command("skopeo");
    skopeo.arg("copy").arg(format!("oci-archive:{}:{tag}", archive.display()));
    skopeo.arg(format!("docker://{}", pushed(&image.name, registry)));
    skopeo
}

/// An image's name after a push to a registry.
fn pushed(name: &str, registry: &str) -> String {
    let (path, tag) = name.rsplit_once(':').unwrap_or((name, "latest"));
    let path = path.strip_prefix("localhost/").unwrap_or(path);
    format!("{}/{path}:{tag}", registry.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current(context: &str) -> Current {
        Current { context: context.into(), kubectl: "kubectl".into() }
    }

    fn words(command: &Command) -> String {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.display().to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn kind_loads_archives_into_its_nodes() {
        let steps = current("kind-dev").steps(Path::new("a.tar"), None).unwrap();
        assert_eq!(words(&steps[0]), "kind load image-archive a.tar --name dev");
    }

    #[test]
    fn other_clusters_need_a_registry() {
        let error = current("work").steps(Path::new("a.tar"), None).unwrap_err();
        assert!(error.to_string().contains("set CADRE_REGISTRY"), "{error}");
    }

    #[test]
    fn a_registry_gets_the_image_under_its_own_name() {
        let image = NamedDigest { name: "localhost/cadre/operator:0.1.0".into(), digest: "sha256:aa".into() };
        let expected = "skopeo copy oci-archive:a.tar:0.1.0 docker://registry.example/team/cadre/operator:0.1.0";
        assert_eq!(words(&push(Path::new("a.tar"), &image, "registry.example/team/")), expected);
    }

    #[test]
    fn the_chart_is_told_the_name_that_the_registry_knows() {
        let (image, registry) = ("localhost/cadre/agent:1", Some("registry.example"));
        assert_eq!(current("work").name_by(image, registry), "registry.example/cadre/agent:1");
        assert_eq!(current("kind-dev").name_by(image, registry), image);
        assert_eq!(current("work").name_by(image, None), image);
    }
}

//! Writes container images as OCI archives, without a container engine, the same byte for byte from the same input.
//!
//! A [`layer::Layer`] holds the files, an [`ImageConfig`] says how they run, and [`write_archive`] packs both
//! as an OCI image layout inside one tar file that `ctr images import`, `skopeo` and `kind load image-archive` read.
//! This module knows formats only: what goes into an image is decided by its callers.

pub mod layer;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use layer::Layer;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// The annotation by which containerd learns an image's full name.
const NAME: &str = "io.containerd.image.name";
/// The annotation in which the OCI layout keeps the tag alone.
const TAG: &str = "org.opencontainers.image.ref.name";

/// How the files of an image run: the part of the OCI image configuration that Cadre uses.
#[derive(Clone, Debug, Default)]
pub struct ImageConfig {
    /// Program and its fixed arguments.
    pub entrypoint: Vec<String>,
    /// Arguments that a pod's `args` replace.
    pub cmd: Vec<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// `UID` or `UID:GID`; root when absent.
    pub user: Option<String>,
    /// Working directory; `/` when absent.
    pub workdir: Option<String>,
    /// Signal that asks the program to end; SIGTERM when absent.
    pub stop_signal: Option<String>,
    /// Labels, such as `org.opencontainers.image.version`.
    pub labels: BTreeMap<String, String>,
}

/// One name of an image inside an archive, and the digest of its manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDigest {
    /// Full name with tag, such as `localhost/cadre/operator:0.1.0`.
    pub name: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
}

/// Writes an image with all its names to the archive `out` and returns the digest of its manifest.
///
/// # Errors
/// When no name is given, a name has no tag, a layer's file can't be read, or `out` can't be written.
pub fn write_archive(out: &Path, names: &[String], config: &ImageConfig, layers: &[Layer]) -> Result<String> {
    ensure!(!names.is_empty(), "an image needs at least one name");
    let folder = tempfile::tempdir_in(out.parent().unwrap_or(Path::new("."))).context("no room for the layers")?;
    let mut blobs = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let path = folder.path().join(format!("layer-{number}"));
        blobs.push(write_layer(layer, &path)?);
    }
    let config = Blob::bytes(to_bytes(&config_json(config, &blobs)));
    let manifest = Blob::bytes(to_bytes(&manifest_json(&config, &blobs)));
    let index = to_bytes(&index_json(names, &manifest)?);

    let staged = folder.path().join("archive");
    let mut archive = tar::Builder::new(File::create(&staged)?);
    append_bytes(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    append_bytes(&mut archive, "index.json", &index)?;
    for blob in [&config, &manifest].into_iter().chain(&blobs) {
        append_blob(&mut archive, blob)?;
    }
    archive.into_inner()?.flush()?;
    std::fs::rename(&staged, out).with_context(|| format!("can't put the archive at {}", out.display()))?;
    Ok(manifest.digest)
}

/// Reads the names and digests that an archive holds.
///
/// # Errors
/// When the file isn't an OCI archive or one of its images has no name.
pub fn read_names(archive: &Path) -> Result<Vec<NamedDigest>> {
    let file = File::open(archive).with_context(|| format!("can't open {}", archive.display()))?;
    let mut tar = tar::Archive::new(file);
    for entry in tar.entries().with_context(|| format!("{} is no tar file", archive.display()))? {
        let mut entry = entry?;
        if entry.path()?.as_ref() == Path::new("index.json") {
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            return names_in_index(&text).with_context(|| format!("in the index of {}", archive.display()));
        }
    }
    bail!("{} holds no index.json: it is no OCI archive", archive.display())
}

fn names_in_index(text: &str) -> Result<Vec<NamedDigest>> {
    #[derive(Deserialize)]
    struct Index {
        manifests: Vec<Descriptor>,
    }
    #[derive(Deserialize)]
    struct Descriptor {
        digest: String,
        #[serde(default)]
        annotations: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_str(text)?;
    let named = |mut descriptor: Descriptor| {
        let name = descriptor.annotations.remove(NAME).with_context(|| format!("{} has no name", descriptor.digest))?;
        Ok(NamedDigest { name, digest: descriptor.digest })
    };
    index.manifests.into_iter().map(named).collect()
}

enum Content {
    Bytes(Vec<u8>),
    File(std::path::PathBuf),
}

struct Blob {
    digest: String,
    size: u64,
    content: Content,
}

impl Blob {
    fn bytes(bytes: Vec<u8>) -> Self {
        let digest = format!("sha256:{:x}", Sha256::digest(&bytes));
        Self { digest, size: bytes.len() as u64, content: Content::Bytes(bytes) }
    }
}

/// Counts and hashes what passes through, so that a layer is read only once.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

fn write_layer(layer: &Layer, path: &Path) -> Result<Blob> {
    let file = std::io::BufWriter::new(File::create(path)?);
    let mut out = Hashing { inner: file, hash: Sha256::new(), size: 0 };
    layer.write(&mut out)?;
    out.flush()?;
    let digest = format!("sha256:{:x}", out.hash.finalize());
    Ok(Blob { digest, size: out.size, content: Content::File(path.to_owned()) })
}

fn config_json(config: &ImageConfig, layers: &[Blob]) -> Value {
    let mut run = serde_json::Map::new();
    let ImageConfig { entrypoint, cmd, env, user, workdir, stop_signal, labels } = config;
    let env: Vec<_> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut put = |key: &str, value: Value, is_empty: bool| {
        if !is_empty {
            run.insert(key.to_owned(), value);
        }
    };
    put("Entrypoint", json!(entrypoint), entrypoint.is_empty());
    put("Cmd", json!(cmd), cmd.is_empty());
    put("Env", json!(env), env.is_empty());
    put("User", json!(user), user.is_none());
    put("WorkingDir", json!(workdir), workdir.is_none());
    put("StopSignal", json!(stop_signal), stop_signal.is_none());
    put("Labels", json!(labels), labels.is_empty());
    let digests: Vec<_> = layers.iter().map(|layer| &layer.digest).collect();
    json!({
        "architecture": architecture(std::env::consts::ARCH),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": digests},
    })
}

/// OCI uses Go's names of processor architectures.
fn architecture(rust_name: &str) -> &str {
    match rust_name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn manifest_json(config: &Blob, layers: &[Blob]) -> Value {
    let layers: Vec<_> = layers.iter().map(|layer| descriptor(LAYER, layer)).collect();
    json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, config), "layers": layers})
}

fn index_json(names: &[String], manifest: &Blob) -> Result<Value> {
    let entry = |name: &String| {
        let (_, last) = name.rsplit_once('/').unwrap_or(("", name));
        let (_, tag) = last.split_once(':').with_context(|| format!("the image name {name} has no tag"))?;
        let mut entry = descriptor(MANIFEST, manifest);
        entry["annotations"] = json!({NAME: name, TAG: tag});
        Ok(entry)
    };
    let manifests = names.iter().map(entry).collect::<Result<Vec<_>>>()?;
    Ok(json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}))
}

fn descriptor(media_type: &str, blob: &Blob) -> Value {
    json!({"mediaType": media_type, "digest": blob.digest, "size": blob.size})
}

fn to_bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn append_blob(archive: &mut tar::Builder<File>, blob: &Blob) -> Result<()> {
    let path = format!("blobs/{}", blob.digest.replacen(':', "/", 1));
    match &blob.content {
        Content::Bytes(bytes) => append_bytes(archive, &path, bytes),
        Content::File(file) => {
            let mut header = layer::plain_header(blob.size, 0o644);
            archive.append_data(&mut header, path, File::open(file)?)?;
            Ok(())
        }
    }
}

fn append_bytes(archive: &mut tar::Builder<File>, path: &str, bytes: &[u8]) -> Result<()> {
    let mut header = layer::plain_header(bytes.len() as u64, 0o644);
    archive.append_data(&mut header, path, bytes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(out: &Path, names: &[&str]) -> Result<String> {
        let mut files = Layer::default();
        files.file("bin/tool", 0o755, b"program".to_vec());
        files.directory("tmp", 0o1777);
        let config = ImageConfig {
            entrypoint: vec!["/bin/tool".into()],
            env: BTreeMap::from([("PATH".into(), "/bin".into())]),
            user: Some("65532:65532".into()),
            workdir: Some("/tmp".into()),
            ..ImageConfig::default()
        };
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        write_archive(out, &names, &config, &[files])
    }

    fn entries(archive: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut tar = tar::Archive::new(File::open(archive).unwrap());
        let read = |entry: std::io::Result<tar::Entry<File>>| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry.path().unwrap().display().to_string(), bytes)
        };
        tar.entries().unwrap().map(read).collect()
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("1.tar"), folder.path().join("2.tar"));
        let digest = sample(&first, &["localhost/tool:1"]).unwrap();
        assert_eq!(digest, sample(&second, &["localhost/tool:1"]).unwrap());
        assert_eq!(std::fs::read(first).unwrap(), std::fs::read(second).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing but the archives is left");
    }

    #[test]
    fn every_name_leads_to_the_one_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("image.tar");
        let digest = sample(&out, &["localhost/tool:1", "registry.example:5000/tool:latest"]).unwrap();
        let names = read_names(&out).unwrap();
        let expected = ["localhost/tool:1", "registry.example:5000/tool:latest"]
            .map(|name| NamedDigest { name: name.into(), digest: digest.clone() });
        assert_eq!(names, expected);
    }

    #[test]
    fn every_blob_is_stored_under_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("image.tar");
        let digest = sample(&out, &["localhost/tool:1"]).unwrap();
        let entries = entries(&out);
        let blobs: Vec<_> = entries.iter().filter(|(path, _)| path.starts_with("blobs/")).collect();
        assert_eq!(blobs.len(), 3, "config, manifest and one layer");
        for (path, bytes) in blobs {
            assert_eq!(*path, format!("blobs/sha256/{:x}", Sha256::digest(bytes)));
        }
        let manifest: Value = serde_json::from_slice(&entries[&format!("blobs/{}", digest.replace(':', "/"))]).unwrap();
        let config = manifest["config"]["digest"].as_str().unwrap().replace(':', "/");
        let config: Value = serde_json::from_slice(&entries[&format!("blobs/{config}")]).unwrap();
        let run =
            json!({"Entrypoint": ["/bin/tool"], "Env": ["PATH=/bin"], "User": "65532:65532", "WorkingDir": "/tmp"});
        assert_eq!(config["config"], run);
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
    }

    #[test]
    fn a_name_without_a_tag_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = sample(&folder.path().join("image.tar"), &["registry.example:5000/tool"]).unwrap_err();
        assert_eq!(error.to_string(), "the image name registry.example:5000/tool has no tag");
    }

    #[test]
    fn other_tar_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("other.tar");
        tar::Builder::new(File::create(&out).unwrap()).finish().unwrap();
        assert!(read_names(&out).unwrap_err().to_string().ends_with("it is no OCI archive"));
    }
}

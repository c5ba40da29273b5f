//! The CRDs in the chart, and the schemas beside the types, are what the types say. `cargo xtask crds` writes them anew.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cadre_crds::{manifest, schema};

const HEADER: &str = "# Generated from crds/src by `cargo xtask crds`. Do not edit.\n";
/// Budget of resources.md: all CRDs together, and the largest.
const MAX_ALL_BYTES: usize = 300_000;
const MAX_ONE_BYTES: usize = 100_000;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/cadre-crds/templates")
}

#[test]
fn the_chart_holds_the_generated_crds() -> Result<()> {
    let mut all = 0;
    for manifest in manifest::all()? {
        let text = format!("{HEADER}{}", serde_yaml::to_string(&manifest.object)?);
        assert!(!text.contains("{{"), "{}: a description would be read as a template by Helm", manifest.plural);
        assert!(text.len() <= MAX_ONE_BYTES, "{}: {} bytes", manifest.plural, text.len());
        all += text.len();
        committed(&folder().join(format!("{}.yaml", manifest.plural)), &text)?;
    }
    assert!(all <= MAX_ALL_BYTES, "{all} bytes");
    Ok(())
}

#[test]
fn the_schemas_are_the_generated_ones() -> Result<()> {
    committed(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("schemas.json"), &schema::generate()?)
}

/// Compares, or writes.
fn committed(path: &Path, text: &str) -> Result<()> {
    if std::env::var_os("CADRE_UPDATE").is_some() {
        std::fs::write(path, text)?;
    }
    let committed = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    assert!(committed == text, "{} is not what the types say: run `cargo xtask crds`", path.display());
    Ok(())
}

#[test]
fn a_new_object_is_never_mistaken_for_a_ready_one() -> Result<()> {
    for manifest in manifest::all()? {
        let schema = &manifest.object["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert_eq!(schema["properties"]["status"]["default"]["observedGeneration"], -1, "{}", manifest.plural);
    }
    Ok(())
}

//! The parts of `cargo metadata` that the checks need.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How much metadata to request from cargo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The members of the workspace.
    Workspace,
    /// The members and every package that a build for Linux on x86-64 uses.
    Everything,
}

/// One package.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its name in `Cargo.toml`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its directory relative to the workspace (`crates/format/ondisk`); empty for external packages.
    pub folder: String,
    /// Its SPDX expression, if it has one.
    pub licence: Option<String>,
    /// Its dependencies.
    pub dependencies: Vec<Dependency>,
    /// Whether the manifest has `[lints] workspace = true`.
    pub inherits_lints: bool,
}

/// One line of `[dependencies]` or a similar section.
#[derive(Debug, Clone)]
pub struct Dependency {
    /// The package's name.
    pub name: String,
    /// Whether only tests use it.
    pub is_for_tests: bool,
    /// Whether it is in this workspace.
    pub is_local: bool,
}

/// The directory of the workspace.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Runs `cargo metadata`.
///
/// # Errors
/// If cargo does not run, or its output does not match the documented JSON format.
pub fn load(root: &Path, depth: Depth) -> Result<Vec<Package>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(["metadata", "--format-version", "1"]);
    match depth {
        Depth::Workspace => command.arg("--no-deps"),
        Depth::Everything => command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]),
    };
    let output = command.output().context("running cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let json: Value = serde_json::from_slice(&output.stdout)?;
    let used: Option<Vec<&str>> = json["resolve"]["nodes"].as_array().map(|nodes| {
        nodes
            .iter()
            .filter_map(|node| node["id"].as_str())
            .collect()
    });
    let mut packages = Vec::new();
    for package in json["packages"].as_array().context("no packages")? {
        if used
            .as_ref()
            .is_some_and(|used| !used.contains(&text(&package["id"])))
        {
            continue;
        }
        packages.push(read_package(root, package)?);
    }
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(packages)
}

fn read_package(root: &Path, package: &Value) -> Result<Package> {
    let manifest = Path::new(text(&package["manifest_path"]));
    let is_local = package["source"].is_null();
    let folder = match manifest.parent().map(|folder| folder.strip_prefix(root)) {
        Some(Ok(folder)) if is_local => folder.to_string_lossy().into_owned(),
        _ => String::new(),
    };
    let inherits_lints = is_local
        && std::fs::read_to_string(manifest)
            .with_context(|| format!("reading {}", manifest.display()))?
            .split("[lints]")
            .nth(1)
            .is_some_and(|rest| rest.trim_start().starts_with("workspace = true"));
    let dependencies = package["dependencies"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|dependency| Dependency {
            name: text(&dependency["name"]).to_owned(),
            is_for_tests: dependency["kind"] == "dev",
            is_local: dependency["path"].is_string(),
        })
        .collect();
    Ok(Package {
        name: text(&package["name"]).to_owned(),
        version: text(&package["version"]).to_owned(),
        folder,
        licence: package["license"].as_str().map(str::to_owned),
        dependencies,
        inherits_lints,
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

//! `zpool upgrade`: lists the features that a pool does not use yet, and enables them.

use super::change_text::{Verb, failure};
use super::manage::known;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{FEATURES, Feature, FeatureFlags, PoolVersion};
use millpond_control::{FeatureState, PoolChange, PoolInfo, RequestedFeatures};

/// Lists the features that could be enabled, or enables them.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let names = &parsed.operands;
    if parsed.has("v") {
        if parsed.has("a") || !names.is_empty() {
            let text = "-v option is incompatible with other arguments";
            return Err(Failure::Usage(text.into()));
        }
        return versions(session);
    }
    let wanted = match parsed.value("V") {
        None => PoolVersion::FEATURES,
        Some(word) => {
            let number = word.parse().ok().map(PoolVersion);
            number
                .filter(|version| version.is_known())
                .ok_or_else(|| Failure::Usage(format!("invalid version '{word}'")))?
        }
    };
    if parsed.has("a") && !names.is_empty() {
        let text = "-a option should not be used along with a pool name";
        return Err(Failure::Usage(text.into()));
    }
    writeln!(
        session.out,
        "This system supports ZFS pool feature flags.\n"
    )?;
    if names.is_empty() && !parsed.has("a") {
        return list(session);
    }
    let pools = if names.is_empty() {
        known(session)?
    } else {
        names.clone()
    };
    let mut status = 0;
    let mut is_anything_done = false;
    for name in &pools {
        if !known(session)?.contains(name) {
            writeln!(session.err, "{}", super::no_such_pool(name))?;
            status = 1;
            continue;
        }
        match upgrade(session, parsed, name, wanted) {
            Ok(done) => is_anything_done |= done,
            Err(Failure::Refused(text)) => {
                writeln!(session.err, "{text}")?;
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    let is_idle = parsed.has("a") && !is_anything_done && status == 0;
    if is_idle && !wanted.has_features() {
        writeln!(
            session.out,
            "All pools are already formatted with version {} or higher.",
            wanted.0
        )?;
    } else if is_idle {
        writeln!(
            session.out,
            "All pools are already formatted using feature flags.\n\n\
             Every feature flags pool already has all supported and requested features enabled."
        )?;
    }
    Ok(status)
}

fn info(session: &Session, name: &str) -> Result<PoolInfo, Failure> {
    let result = session.service()?.pool(name);
    result.map_err(|error| Failure::Refused(error.to_string()))
}

/// Raises the version and enables features. Returns whether anything was done.
fn upgrade(
    session: &mut Session,
    parsed: &Parsed,
    name: &str,
    wanted: PoolVersion,
) -> Result<bool, Failure> {
    let pool = info(session, name)?;
    let version = PoolVersion(pool.version);
    if !wanted.has_features() || version > wanted {
        return raise(session, parsed, &pool, wanted);
    }
    let is_legacy = pool.requested == RequestedFeatures::Legacy;
    if is_legacy && !version.has_features() {
        return Err(Failure::Refused(
            "Upgrade not performed because 'compatibility' property set to 'legacy'.".into(),
        ));
    }
    let compatible = match &pool.requested {
        RequestedFeatures::All => None,
        RequestedFeatures::Legacy => Some(vec![]),
        RequestedFeatures::Listed(names) => Some(names.clone()),
        RequestedFeatures::Unreadable => {
            let value = pool
                .property("compatibility")
                .and_then(|p| p.value.as_ref());
            let value = value.and_then(|value| value.text()).unwrap_or_default();
            return Err(Failure::Refused(format!(
                "Error: could not read/parse feature file(s): {value} "
            )));
        }
    };
    let change = PoolChange::Upgrade {
        version: wanted.0,
        compatible,
    };
    let done = session.service()?.change(name, &[change], &parsed.line);
    let action = format!("cannot upgrade '{name}'");
    let done = done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
    if !version.has_features() {
        writeln!(
            session.out,
            "Successfully upgraded '{name}' from version {} to feature flags.",
            version.0
        )?;
    }
    if done.enabled_features.is_empty() && version.has_features() {
        if !parsed.has("a") {
            writeln!(
                session.out,
                "Pool '{name}' already has all supported and requested features enabled."
            )?;
        }
        return Ok(false);
    }
    if !done.enabled_features.is_empty() {
        writeln!(session.out, "Enabled the following features on '{name}':")?;
    }
    for feature in done.enabled_features {
        writeln!(session.out, "  {feature}")?;
    }
    writeln!(session.out)?;
    Ok(true)
}

/// Raises a pool to a version before feature flags. Returns whether it was lower.
fn raise(
    session: &mut Session,
    parsed: &Parsed,
    pool: &PoolInfo,
    wanted: PoolVersion,
) -> Result<bool, Failure> {
    let (name, version) = (&pool.name, PoolVersion(pool.version));
    if version >= wanted {
        if !parsed.has("a") {
            let text = match version == wanted {
                true => format!("version {}.", version.0),
                false => format!("more current version '{}'.", version.0),
            };
            writeln!(
                session.out,
                "Pool '{name}' is already formatted using {text}\n"
            )?;
        }
        return Ok(false);
    }
    if pool.requested == RequestedFeatures::Legacy {
        return Err(Failure::Refused(
            "Upgrade not performed because 'compatibility' property set to 'legacy'.".into(),
        ));
    }
    let change = PoolChange::Upgrade {
        version: wanted.0,
        compatible: None,
    };
    let done = session.service()?.change(name, &[change], &parsed.line);
    let action = format!("cannot upgrade '{name}'");
    done.map_err(|failed| failure(Verb::Other, &action, &failed.error))?;
    writeln!(
        session.out,
        "Successfully upgraded '{name}' from version {} to version {}.\n",
        version.0, wanted.0
    )?;
    Ok(true)
}

fn list(session: &mut Session) -> Ending {
    let mut pools = vec![];
    for name in known(session)? {
        pools.push(info(session, &name)?);
    }
    let legacy: Vec<_> = pools
        .iter()
        .filter(|pool| !PoolVersion(pool.version).has_features())
        .collect();
    let out = &mut *session.out;
    if legacy.is_empty() {
        writeln!(out, "All pools are formatted using feature flags.\n")?;
    } else {
        write!(out, "{LEGACY}")?;
        for pool in legacy {
            writeln!(out, "{:2}   {}", pool.version, pool.name)?;
        }
        write!(
            out,
            "\nUse 'zpool upgrade -v' for a list of available legacy versions.\n"
        )?;
    }
    let lacks = |pool: &PoolInfo| -> Vec<String> {
        let missing = pool
            .features
            .iter()
            .filter(|f| f.state == FeatureState::Disabled && !f.is_left_alone);
        missing.map(|feature| feature.name.clone()).collect()
    };
    let lacking: Vec<_> = pools
        .iter()
        .filter(|pool| PoolVersion(pool.version).has_features() && !lacks(pool).is_empty())
        .collect();
    if lacking.is_empty() {
        writeln!(
            out,
            "Every feature flags pool has all supported and requested features enabled."
        )?;
        return Ok(0);
    }
    write!(out, "{LACKING}")?;
    for pool in lacking {
        writeln!(out, "{}", pool.name)?;
        for name in lacks(pool) {
            writeln!(out, "      {name}")?;
        }
    }
    writeln!(out)?;
    Ok(0)
}

const LEGACY: &str = "\
The following pools are formatted with legacy version numbers and can
be upgraded to use feature flags.  After being upgraded, these pools
will no longer be accessible by software that does not support feature
flags.

Note that setting a pool's 'compatibility' feature to 'legacy' will
inhibit upgrades.

VER  POOL
---  ------------
";

const LACKING: &str = "
Some supported features are not enabled on the following pools. Once a
feature is enabled the pool may become incompatible with software
that does not support the feature. See zpool-features(7) for details.

Note that the pool 'compatibility' feature can be used to inhibit
feature upgrades.

POOL  FEATURE
---------------
";

/// Prints every feature of the matching OpenZFS release, and every version before feature flags.
fn versions(session: &mut Session) -> Ending {
    const LATER: [&str; 4] = [
        "dynamic_gang_header",
        "block_cloning_endian",
        "physical_rewrite",
        "draid_failure_domains",
    ];
    let out = &mut *session.out;
    write!(
        out,
        "This system supports ZFS pool feature flags.\n\n\
         The following features are supported:\n\n\
         FEAT DESCRIPTION\n{}\n",
        "-".repeat(61)
    )?;
    let known = |feature: &&Feature| !LATER.contains(&feature.name());
    for feature in FEATURES.iter().filter(known) {
        let is_compatible = feature.flags.contains(FeatureFlags::READ_ONLY_COMPATIBLE);
        let note = if is_compatible {
            " (read-only compatible)"
        } else {
            ""
        };
        writeln!(out, "{:<37}{note}", feature.name())?;
        writeln!(out, "     {}", feature.description)?;
    }
    write!(out, "\n{}", include_str!("legacy_versions.txt"))?;
    Ok(0)
}

//! Tables of permissions, which `zdb` does not follow: it calls the inner ones leaked.

use anyhow::{Context, Result};
use millpond_engine::{OpenOptions, Search, View};
use millpond_ondisk::ObjectId;
use millpond_zap::Zap;
use std::collections::BTreeSet;
use std::path::Path;

/// The words between the number of such an object and the end of the line.
const LEAKED: &str = " (DSL permissions) leaked";

/// Leaves out the complaints about tables that a table of permissions of some dataset names, each once.
///
/// # Errors
/// If the pool cannot be read here.
pub fn without_inner_tables(faults: Vec<String>, folder: &Path, pool: &str) -> Result<Vec<String>> {
    if !faults.iter().any(|fault| fault.ends_with(LEAKED)) {
        return Ok(faults);
    }
    let pool = View::open(&Search::new([folder]), pool, &OpenOptions::default())
        .context("the pool whose permissions zdb complained of")?;
    let mut inner = inner_tables(&pool)?;
    let mut left = vec![];
    for fault in faults {
        let number = fault
            .strip_suffix(LEAKED)
            .and_then(|rest| rest.rsplit(' ').next());
        let id = number.and_then(|number| number.parse().ok()).map(ObjectId);
        if !id.is_some_and(|id| inner.remove(&id)) {
            left.push(fault);
        }
    }
    Ok(left)
}

fn inner_tables(pool: &View) -> Result<BTreeSet<ObjectId>> {
    let mut inner = BTreeSet::new();
    for dataset in pool.datasets() {
        let dataset = dataset?;
        let Some(outer) = dataset.inner().directory().phys().delegation else {
            continue;
        };
        for entry in Zap::open(pool.inner().mos().object(outer)?)?.iter() {
            inner.extend(entry?.value.first().map(ObjectId));
        }
    }
    Ok(inner)
}

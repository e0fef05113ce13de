//! Delegated permissions of users who are not the superuser: what a request needs, and whether a user has it.
//!
//! Page `docs/daemon.md`, "Who may what".

mod needs;
mod receiving;
#[cfg(test)]
mod tests;

use crate::imported::ImportedPools;
use crate::info::pool_of;
use millpond_control::{PermissionHolder, PermissionSubject, PoolChange, Request};
use millpond_dataset::properties::PropertyValue;
use millpond_dataset::{DatasetError, DatasetName, PermissionChain};
use millpond_engine::{Error, View};
use millpond_ondisk::dsl::keys::is_hidden_name;
use needs::{Need, Scope, needs, of_change};
use std::collections::{BTreeMap, BTreeSet};

/// The pool property that switches delegation on.
const DELEGATION: &str = "delegation";

impl ImportedPools {
    /// Whether a user who is not the superuser may make a request. What cannot be read is not allowed.
    #[must_use]
    pub fn is_allowed(&self, request: &Request, subject: &PermissionSubject) -> bool {
        needs(request).is_some_and(|needs| self.has_all(&needs, subject))
    }

    /// The same for one change of a request, when those before it were made: they can change what a name stands for.
    #[must_use]
    pub fn is_allowed_change(&self, change: &PoolChange, subject: &PermissionSubject) -> bool {
        of_change(change).is_some_and(|needs| self.has_all(&needs, subject))
    }

    fn has_all(&self, needs: &[Need], subject: &PermissionSubject) -> bool {
        let mut views: BTreeMap<&str, Option<View>> = BTreeMap::new();
        needs.iter().all(|need| {
            let name = pool_of(need.dataset());
            let view = views.entry(name).or_insert_with(|| {
                let view = self.get(name)?.view().ok()?;
                is_delegating(&view).then_some(view)
            });
            let view = view.as_ref();
            view.is_some_and(|view| has(view, need, subject).unwrap_or(false))
        })
    }
}

fn is_delegating(view: &View) -> bool {
    let known = view.inner().property(DELEGATION).ok().flatten();
    match known.and_then(|property| property.value) {
        Some(PropertyValue::Number(number)) => number != 0,
        Some(PropertyValue::Text(word)) => word == "on",
        None => false,
    }
}

fn has(view: &View, need: &Need, subject: &PermissionSubject) -> Result<bool, Error> {
    let name = DatasetName::parse(need.dataset())?;
    // Internal and unfinished datasets are not the users'.
    if name
        .components()
        .any(|part| is_hidden_name(part.as_bytes()))
    {
        return Ok(false);
    }
    let chain = |name: &str| chain_of(view, name);
    let gives = |chain: &PermissionChain| {
        let has = chain.permissions_of(subject);
        need.is_met_by(&has)
    };
    Ok(match need.scope() {
        Scope::Here => gives(&chain(name.path)?),
        Scope::Below => gives(&chain(name.path)?.of_child()),
        Scope::Tree => {
            let chain = chain(name.path)?;
            gives(&chain) && gives(&chain.of_child())
        }
        Scope::Parent => match parent_of(name.path) {
            Some(parent) => gives(&future_chain_of(view, parent)?),
            None => false,
        },
        Scope::HereOrParent => match (chain(name.path), parent_of(name.path)) {
            (Err(error), Some(parent)) if is_missing(&error) => gives(&chain(parent)?),
            (chain, _) => gives(&chain?),
        },
        Scope::New => match parent_of(name.path) {
            Some(parent) => {
                let chain = future_chain_of(view, parent)?;
                gives(&chain.of_child()) || need.is_met_by(&creates_with(&chain))
            }
            None => false,
        },
        Scope::Origin => {
            let origin = view.dataset(name.path)?.inner().origin()?;
            let origin = origin.map(|origin| origin.directory().permission_chain());
            match origin {
                Some(chain) => gives(&chain?),
                None => false,
            }
        }
    })
}

fn parent_of(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent)
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Dataset(DatasetError::NotFound { .. }))
}

fn chain_of(view: &View, name: &str) -> Result<PermissionChain, Error> {
    let dataset = view.dataset(name)?;
    Ok(dataset.inner().directory().permission_chain()?)
}

/// The chain of a dataset. One that is missing may be created by an earlier change of the request: then what its nearest
/// ancestor gives to descendants counts.
fn future_chain_of(view: &View, name: &str) -> Result<PermissionChain, Error> {
    match (chain_of(view, name), parent_of(name)) {
        (Err(error), Some(parent)) if is_missing(&error) => {
            Ok(future_chain_of(view, parent)?.of_child())
        }
        (chain, _) => chain,
    }
}

/// The permissions that the creator of a child gets there, without those of sets.
fn creates_with(chain: &PermissionChain) -> BTreeSet<String> {
    let tables = chain.tables().iter();
    let grants = tables.flat_map(|(_, table)| table.grants());
    grants
        .filter(|grant| grant.holder == PermissionHolder::Creator)
        .flat_map(|grant| grant.permissions)
        .collect()
}

//! The properties and holds that come with a package, and those that the request asks for.

use super::Run;
use super::problem::of_dataset;
use super::target::{Target, top_of};
use super::user::UserChange;
use millpond_dataset::{DatasetError, PropertyValue};
use millpond_ondisk::ObjectSetKind;
use millpond_receive::{ReceiveProblem, ReceiveStep};
use millpond_stream::{Begin, StreamFeatures};

/// Properties that only a new dataset can be given.
const OF_NEW_KEYS: [&str; 3] = ["encryption", "keyformat", "pbkdf2iters"];
/// Properties that make files of other users dangerous.
const DANGEROUS: [&str; 2] = ["setuid", "devices"];
const KEY_LOCATION: &str = "keylocation";
/// The value `off` of `encryption`.
const OFF: PropertyValue = PropertyValue::Number(2);

/// How a dataset that a stream makes is encrypted.
#[derive(Debug, Clone)]
pub(super) enum NewEncryption {
    /// As its parent or its origin is, or as a raw stream says.
    Inherited,
    /// Not at all.
    Plain,
    /// As these properties say.
    Given(Vec<(String, PropertyValue)>),
}

/// Whether `encryption` is given, and not turned off.
pub(super) fn is_on(given: &[(String, PropertyValue)]) -> bool {
    let is_off = |value: &PropertyValue| {
        *value == OFF || matches!(value, PropertyValue::Text(text) if text == "off")
    };
    let mut given = given.iter();
    given.any(|(name, value)| name == "encryption" && !is_off(value))
}

impl Run<'_> {
    /// How the dataset that a stream makes is encrypted.
    pub(super) fn new_encryption(&self, begin: &Begin, target: &Target) -> NewEncryption {
        if target.exists || begin.features.contains(StreamFeatures::RAW) {
            return NewEncryption::Inherited;
        }
        if target.origin.is_some() {
            return match self.is_known_plain(begin) {
                true => NewEncryption::Plain,
                false => NewEncryption::Inherited,
            };
        }
        let of_keys = |name: &str| OF_NEW_KEYS.contains(&name) || name == KEY_LOCATION;
        let given = self.request.properties.iter();
        let mut given: Vec<_> = given.filter(|one| of_keys(&one.0)).cloned().collect();
        let says_whether = given.iter().any(|(name, _)| name == "encryption");
        let is_plain = self.is_known_plain(begin) && !says_whether;
        match self.is_top(target) {
            true if given.is_empty() && !is_plain => NewEncryption::Inherited,
            // Other datasets of the package are as the one that was given a key.
            false if !is_plain => NewEncryption::Inherited,
            true if !given.is_empty() => {
                if is_plain {
                    given.push(("encryption".to_owned(), OFF));
                }
                NewEncryption::Given(given)
            }
            _ => NewEncryption::Plain,
        }
    }

    /// Whether the properties of the request are for this dataset.
    fn is_top(&self, target: &Target) -> bool {
        let top = self.package.as_ref().map(|package| {
            let top = top_of(self.request, &package.top);
            top.split('@').next().unwrap_or_default().to_owned()
        });
        top.is_none_or(|top| top == target.dataset)
    }

    /// Refuses to encrypt otherwise what exists, or what shares blocks with it.
    pub(super) fn check_given_encryption(
        &self,
        begin: &Begin,
        target: &Target,
    ) -> Result<(), ReceiveProblem> {
        let is_fixed = target.exists || target.origin.is_some();
        let is_resuming = begin.features.contains(StreamFeatures::RESUMING);
        let is_later = self.described.contains(&target.dataset);
        if !is_fixed || is_resuming || is_later || !self.is_top(target) {
            return Ok(());
        }
        let mut given = self.request.properties.iter().map(|(name, _)| name);
        match given.find(|name| OF_NEW_KEYS.contains(&name.as_str())) {
            Some(name) => Err(ReceiveProblem::Property(format!(
                "encryption property '{name}' cannot be set for incremental streams."
            ))),
            None => Ok(()),
        }
    }

    /// Whether the dataset is known not to be encrypted at the sender, because its properties came along.
    pub(super) fn is_known_plain(&self, begin: &Begin) -> bool {
        let described = self
            .package
            .as_ref()
            .and_then(|package| package.dataset_of(begin.to_guid));
        let is_excluded = self
            .request
            .excluded
            .iter()
            .any(|name| name == "encryption");
        described.is_some_and(|described| described.properties.is_some()) && !is_excluded
    }

    /// Turns off the dangerous properties that the user may not set. This comes before the stream is applied, so that a mount
    /// knows it.
    pub(super) fn turn_off(&self, begin: &Begin, target: &Target) -> Result<(), DatasetError> {
        let Some(user) = &self.request.user else {
            return Ok(());
        };
        if u64::from(begin.object_set_type) != ObjectSetKind::FileSystem.number() {
            return Ok(());
        }
        let (dataset, off) = (&target.dataset, PropertyValue::Number(0));
        let may_set = |name: &&str| user.rights.may(&UserChange::Set(dataset, name, Some(&off)));
        let names = DANGEROUS.into_iter().filter(|name| !may_set(name));
        let off: Vec<_> = names.map(|name| (name.to_owned(), off.clone())).collect();
        match off.is_empty() {
            true => Ok(()),
            false => self.pool.datasets().set_properties(dataset, &off),
        }
    }

    /// Sets the properties of a dataset, once.
    pub(super) fn set_properties(
        &mut self,
        begin: &Begin,
        target: &Target,
    ) -> Result<(), DatasetError> {
        let name = &target.dataset;
        if !self.described.insert(name.clone()) {
            return Ok(());
        }
        let datasets = self.pool.datasets();
        let described = self
            .package
            .as_ref()
            .and_then(|package| package.dataset_of(begin.to_guid));
        let received = described.and_then(|described| described.properties.clone());
        let excluded = self.excludable(name, &self.request.excluded);
        if let Some(received) = received {
            let received = self.allowed(name, &received);
            for (property, reason) in datasets.receive_properties(name, &received, &excluded)? {
                self.steps.push(ReceiveStep::PropertyRefused {
                    dataset: name.clone(),
                    property,
                    reason,
                });
            }
        } else if !excluded.is_empty() {
            datasets.exclude_received(name, &excluded)?;
        }
        // A new dataset has got its keys already, and the place of its own one.
        let has_keys = matches!(self.new_encryption(begin, target), NewEncryption::Given(_));
        let is_set =
            |name: &str| !OF_NEW_KEYS.contains(&name) && (name != KEY_LOCATION || !has_keys);
        let given = self.request.properties.iter();
        let given: Vec<_> = given.filter(|one| is_set(&one.0)).cloned().collect();
        if given.is_empty() {
            return Ok(());
        }
        match self.is_top(target) {
            true => datasets.set_properties(name, &given),
            false => {
                let names = self.excludable(name, given.iter().map(|(name, _)| name));
                datasets.exclude_received(name, &names)
            }
        }
    }

    /// Sets what the package says of a dataset and snapshot that were received.
    pub(super) fn describe(
        &mut self,
        begin: &Begin,
        target: &Target,
    ) -> Result<(), ReceiveProblem> {
        let name = &target.dataset;
        let set = self.set_properties(begin, target);
        set.map_err(|error| of_dataset(error, name))?;
        let described = self
            .package
            .as_ref()
            .and_then(|package| package.snapshot(begin.to_guid));
        let Some(described) = described.cloned() else {
            return Ok(());
        };
        let (datasets, full) = (self.pool.datasets(), target.full_name());
        let received = self.allowed(&full, &described.properties);
        if !received.is_empty() {
            let set = datasets.receive_snapshot_properties(&full, &received);
            set.map_err(|error| of_dataset(error, name))?;
        }
        if self.request.without_holds {
            return Ok(());
        }
        for tag in &described.holds {
            self.check_allowed(&UserChange::Hold(&full))?;
            let held = datasets.hold(&[&full], tag);
            held.map_err(|error| of_dataset(error, name))?;
        }
        Ok(())
    }
}

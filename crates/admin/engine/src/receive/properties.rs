//! The properties and holds that come with a package, and those that the request asks for.

use super::Run;
use super::problem::of_dataset;
use super::target::{Target, top_of};
use millpond_dataset::{DatasetError, PropertyValue};
use millpond_ondisk::ObjectSetKind;
use millpond_receive::{ReceiveProblem, ReceiveStep};
use millpond_stream::Begin;

impl Run<'_> {
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

    /// Turns off what makes files of other users dangerous. Done before the stream is applied: a mount then knows it.
    pub(super) fn turn_off(&self, begin: &Begin, target: &Target) -> Result<(), DatasetError> {
        let Some(user) = &self.request.user else {
            return Ok(());
        };
        if u64::from(begin.object_set_type) != ObjectSetKind::FileSystem.number() {
            return Ok(());
        }
        let off = |name: &&str| ((*name).to_owned(), PropertyValue::Number(0));
        let off: Vec<_> = user.turned_off.iter().map(off).collect();
        match off.is_empty() {
            true => Ok(()),
            false => self.pool.datasets().set_properties(&target.dataset, &off),
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
        if let Some(received) = described.and_then(|described| described.properties.as_ref()) {
            let excluded = &self.request.excluded;
            for (property, reason) in datasets.receive_properties(name, received, excluded)? {
                self.steps.push(ReceiveStep::PropertyRefused {
                    dataset: name.clone(),
                    property,
                    reason,
                });
            }
        } else if !self.request.excluded.is_empty() {
            datasets.exclude_received(name, &self.request.excluded)?;
        }
        let given = &self.request.properties;
        if given.is_empty() {
            return Ok(());
        }
        let top = self.package.as_ref().map(|package| {
            let top = top_of(self.request, &package.top);
            top.split('@').next().unwrap_or_default().to_owned()
        });
        match top.is_none_or(|top| top == *name) {
            true => datasets.set_properties(name, given),
            false => {
                let names: Vec<String> = given.iter().map(|(name, _)| name.clone()).collect();
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
        let Some(described) = described else {
            return Ok(());
        };
        let (datasets, full) = (self.pool.datasets(), target.full_name());
        if !described.properties.is_empty() {
            let set = datasets.receive_snapshot_properties(&full, &described.properties);
            set.map_err(|error| of_dataset(error, name))?;
        }
        if self.request.without_holds {
            return Ok(());
        }
        for tag in &described.holds {
            let held = datasets.hold(&[&full], tag);
            held.map_err(|error| of_dataset(error, name))?;
        }
        Ok(())
    }
}

//! Stored properties: the table of a directory or snapshot, and inheritance from ancestors.
//!
//! Page `docs/format/properties.md`.

use crate::error::Named;
use crate::{Dataset, DatasetError, Directory};
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_ondisk::dsl::keys::{
    PROPERTY_HAS_RECEIVED, PROPERTY_INHERIT_SUFFIX, PROPERTY_RECEIVED_SUFFIX,
    PROPERTY_UNKNOWN_VALUE_SUFFIX,
};
use millpond_pool::PoolView;
use millpond_pool::properties::{PropertySource, PropertyValue};
use millpond_zap::Zap;
use std::collections::BTreeMap;

/// The property table of one directory or snapshot. Its size is bounded by its ZAP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredProperties {
    local: BTreeMap<String, PropertyValue>,
    /// Every property with a value here, in hash order.
    names: Vec<String>,
    received: BTreeMap<String, PropertyValue>,
    inherit_marks: Vec<String>,
    has_received: bool,
}

impl StoredProperties {
    pub(crate) fn load(
        pool: &Arc<PoolView>,
        table: Option<ObjectId>,
        name: &str,
    ) -> Result<Self, DatasetError> {
        let mut stored = Self::default();
        let Some(table) = table else {
            return Ok(stored);
        };
        let object = pool.mos().object(table).named(name)?;
        let zap = Zap::open(object).named(name)?;
        let mut unknown_values = vec![];
        for entry in zap.iter() {
            let entry = entry.named(name)?;
            let key = String::from_utf8_lossy(&entry.name).into_owned();
            let value = PropertyValue::from(&entry.value);
            let property = key
                .strip_suffix(PROPERTY_RECEIVED_SUFFIX)
                .unwrap_or(key.as_str());
            let is_known =
                stored.local.contains_key(property) || stored.received.contains_key(property);
            if !property.contains('$') && !is_known {
                stored.names.push(property.to_owned());
            }
            if key == PROPERTY_HAS_RECEIVED {
                stored.has_received = true;
            } else if let Some(key) = key.strip_suffix(PROPERTY_RECEIVED_SUFFIX) {
                stored.received.insert(key.to_owned(), value);
            } else if let Some(key) = key.strip_suffix(PROPERTY_INHERIT_SUFFIX) {
                stored.inherit_marks.push(key.to_owned());
            } else if let Some(key) = key.strip_suffix(PROPERTY_UNKNOWN_VALUE_SUFFIX) {
                unknown_values.push((key.to_owned(), value));
            } else {
                stored.local.insert(key, value);
            }
        }
        // A value that older software does not know is stored next to a default for that software, and
        // takes precedence.
        stored.local.extend(unknown_values);
        Ok(stored)
    }

    /// The value set here that is in effect, ignoring ancestors, and whether it was received.
    #[must_use]
    pub fn get(&self, property: &str) -> Option<(&PropertyValue, bool)> {
        if let Some(value) = self.local.get(property) {
            return Some((value, false));
        }
        if self.inherit_marks.iter().any(|mark| mark == property) {
            return None;
        }
        self.received.get(property).map(|value| (value, true))
    }
    /// The received value, whether or not it is in effect.
    #[must_use]
    pub fn received(&self, property: &str) -> Option<&PropertyValue> {
        self.received.get(property)
    }
    /// Whether this dataset has received properties.
    #[must_use]
    pub fn has_received(&self) -> bool {
        self.has_received
    }
    /// The names of all properties with a value here, in hash order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

impl Directory {
    /// Looks up a property in this directory and, if it is inheritable, in its ancestors.
    ///
    /// # Errors
    /// If a table cannot be read.
    pub fn property(
        &self,
        property: &str,
        is_inheritable: bool,
    ) -> Result<Option<(PropertyValue, PropertySource)>, DatasetError> {
        let mut at = self;
        loop {
            if let Some((value, is_received)) = at.stored_properties()?.get(property) {
                let source = if !std::ptr::eq(at, self) {
                    PropertySource::Inherited(at.name().to_owned())
                } else if is_received {
                    PropertySource::Received
                } else {
                    PropertySource::Local
                };
                return Ok(Some((value.clone(), source)));
            }
            match at.parent() {
                Some(parent) if is_inheritable => at = parent,
                _ => return Ok(None),
            }
        }
    }
}

impl Dataset {
    /// The properties stored on a snapshot itself. Empty for a head, whose directory stores them.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn own_properties(&self) -> Result<StoredProperties, DatasetError> {
        let table = if self.is_snapshot() {
            self.phys().properties
        } else {
            None
        };
        StoredProperties::load(self.pool(), table, self.name())
    }

    /// Looks up a property. For a snapshot, its own table comes first, then its file system or volume.
    ///
    /// # Errors
    /// If a table cannot be read.
    pub fn property(
        &self,
        property: &str,
        is_inheritable: bool,
    ) -> Result<Option<(PropertyValue, PropertySource)>, DatasetError> {
        self.property_with(&self.own_properties()?, property, is_inheritable)
    }

    /// Like [`Dataset::property`], with a snapshot's own table given.
    pub(crate) fn property_with(
        &self,
        own: &StoredProperties,
        property: &str,
        is_inheritable: bool,
    ) -> Result<Option<(PropertyValue, PropertySource)>, DatasetError> {
        if !self.is_snapshot() {
            return self.directory().property(property, is_inheritable);
        }
        if let Some((value, is_received)) = own.get(property) {
            let source = if is_received {
                PropertySource::Received
            } else {
                PropertySource::Local
            };
            return Ok(Some((value.clone(), source)));
        }
        if !is_inheritable {
            return Ok(None);
        }
        let found = self.directory().property(property, true)?;
        Ok(found.map(|(value, source)| match source {
            PropertySource::Local | PropertySource::Received => (
                value,
                PropertySource::Inherited(self.directory().name().to_owned()),
            ),
            source => (value, source),
        }))
    }
}

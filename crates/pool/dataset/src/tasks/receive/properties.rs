//! Properties that come with a stream.
//!
//! Page `docs/format/properties.md`, "Received values".

use crate::datasets::Datasets;
use crate::heads::new_contents::number_of;
use crate::mos::required;
use crate::properties::{PropertyValue, table};
use crate::tasks::change_property::{LONG_NAME, Setting, can_be_hidden, check_user_property};
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::{DatasetError, PropertyChanges};
use millpond_ondisk::dsl::keys::{
    PROPERTY_HAS_RECEIVED, PROPERTY_INHERIT_SUFFIX, PROPERTY_RECEIVED_SUFFIX, master_node,
};
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_pool::PoolError;
use millpond_pool::properties::Edit;

/// Numbers that directories and their parents are charged for.
const CHARGED: [&str; 5] = [
    "quota",
    "reservation",
    "refreservation",
    "filesystem_limit",
    "snapshot_limit",
];

/// A property that was not taken over, and why.
pub type RefusedProperty = (String, String);

/// Whether a property is part of the contents or the keys, so that the stream itself brings it.
fn is_of_contents(name: &str) -> bool {
    matches!(name, "volsize" | "version" | "keylocation")
        || master_node::default_quota(name).is_some()
}

impl Datasets {
    /// Replaces all received properties of a file system or volume. The values of `excluded` ones do not take effect.
    /// Returns those that cannot be set here.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub fn receive_properties(
        &self,
        name: &str,
        received: &PropertyChanges,
        excluded: &[String],
    ) -> Result<Vec<RefusedProperty>, DatasetError> {
        self.task(
            |s| {
                let head = s.find_head(name)?;
                let kind = s.kind_of(&head)?;
                let (mut settings, mut refused) = (vec![], vec![]);
                let own = received.iter().filter(|(name, _)| !is_of_contents(name));
                for (property, value) in own {
                    let checked = s.check_value(name, kind, property, value);
                    match checked
                        .and_then(|setting| s.check_limits(&head, &setting).map(|()| setting))
                    {
                        Ok(setting) if can_be_hidden(&setting.name) => settings.push(setting),
                        Ok(_) => refused.push((property.clone(), LONG_NAME.to_owned())),
                        Err(error) => refused.push((property.clone(), error.to_string())),
                    }
                }
                Ok((head, settings, refused))
            },
            |s, (head, settings, refused)| {
                s.put_received(&head, &settings, excluded)?;
                s.datasets.refresh(s, head.directory)?;
                Ok(refused)
            },
        )
    }

    /// Hides the received values of properties without local values, so that they are inherited.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub fn exclude_received(&self, name: &str, excluded: &[String]) -> Result<(), DatasetError> {
        self.task(
            |s| s.find_head(name),
            |s, head| {
                s.hide_received(&head, excluded)?;
                s.datasets.refresh(s, head.directory)
            },
        )
    }

    /// Gives a snapshot received user properties.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub fn receive_snapshot_properties(
        &self,
        name: &str,
        received: &PropertyChanges,
    ) -> Result<(), DatasetError> {
        self.task(
            |s| s.find_snapshot(name),
            |s, snapshot| s.put_received_of_snapshot(snapshot.dataset, received),
        )
    }
}

impl SyncTaskContext<'_> {
    fn put_received(
        &self,
        head: &Head,
        settings: &[Setting],
        excluded: &[String],
    ) -> Result<(), PoolError> {
        let table = self.directory(head.directory)?.properties;
        let table = required(table, "a directory without properties")?;
        if !self.version().has_received_properties() {
            // What is received becomes local.
            let mut taken = settings
                .iter()
                .filter(|setting| !excluded.contains(&setting.name));
            return taken.try_for_each(|setting| self.apply_setting(head, setting));
        }
        for entry in self.entries(table)? {
            let key = String::from_utf8_lossy(&entry.name).into_owned();
            let Some(name) = key.strip_suffix(PROPERTY_RECEIVED_SUFFIX) else {
                continue;
            };
            if !settings.iter().any(|setting| setting.name == name) {
                self.charge_received(head, table, name, None)?;
                self.remove(table, &key)?;
            }
        }
        self.update(table, PROPERTY_HAS_RECEIVED, 0)?;
        self.hide_received(head, excluded)?;
        for setting in settings {
            let is_inheritable =
                table::find(&setting.name).is_none_or(|p| p.shape.edit == Edit::Inheritable);
            if !is_inheritable && excluded.contains(&setting.name) {
                continue;
            }
            self.charge_received(head, table, &setting.name, Some(&setting.value))?;
            self.put_received_value(table, &setting.name, &setting.value)?;
        }
        Ok(())
    }

    fn put_received_value(
        &self,
        table: ObjectId,
        name: &str,
        value: &PropertyValue,
    ) -> Result<(), PoolError> {
        let key = match self.version().has_received_properties() {
            true => format!("{name}{PROPERTY_RECEIVED_SUFFIX}"),
            false => name.to_owned(),
        };
        match value {
            PropertyValue::Text(text) => self.update_text(table, &key, text),
            PropertyValue::Number(number) => self.update(table, &key, *number),
        }
    }

    /// Applies the consequences of another received value, or of none, if it takes effect. The table still has the old
    /// one.
    fn charge_received(
        &self,
        head: &Head,
        table: ObjectId,
        name: &str,
        value: Option<&PropertyValue>,
    ) -> Result<(), PoolError> {
        let is_hidden = self.lookup_value(table, name)?.is_some()
            || self
                .lookup_value(table, &format!("{name}{PROPERTY_INHERIT_SUFFIX}"))?
                .is_some();
        if is_hidden {
            return Ok(());
        }
        let default = match name {
            "filesystem_limit" | "snapshot_limit" => u64::MAX,
            _ => 0,
        };
        let number = value.map_or(Some(default), |value| number_of(name, value));
        let Some(number) = number else {
            return Ok(());
        };
        if CHARGED.contains(&name) {
            self.before_setting(head, name, number)?;
        }
        self.after_setting(head, name, number)
    }

    fn hide_received(&self, head: &Head, excluded: &[String]) -> Result<(), PoolError> {
        let table = self.directory(head.directory)?.properties;
        let table = required(table, "a directory without properties")?;
        for name in excluded.iter().filter(|name| can_be_hidden(name)) {
            let is_inheritable =
                table::find(name).is_none_or(|p| p.shape.edit == Edit::Inheritable);
            let is_local = self.lookup_value(table, name)?.is_some();
            if is_inheritable && !is_local && self.has_received(head.directory)? {
                self.update(table, &format!("{name}{PROPERTY_INHERIT_SUFFIX}"), 0)?;
            }
        }
        Ok(())
    }

    fn put_received_of_snapshot(
        &self,
        snapshot: ObjectId,
        received: &PropertyChanges,
    ) -> Result<(), PoolError> {
        if !self.version().has_snapshot_properties() {
            return Ok(());
        }
        let mut phys = self.dataset(snapshot)?;
        for (name, value) in received {
            let Ok(Setting { name, value }) = check_user_property(name, value) else {
                continue;
            };
            if !can_be_hidden(&name) {
                continue;
            }
            let table = match phys.properties {
                Some(table) => table,
                None => {
                    let made = self.create_zap(ObjectType::DSL_PROPS)?;
                    phys.properties = Some(made);
                    self.put_dataset(snapshot, &phys)?;
                    made
                }
            };
            self.put_received_value(table, &name, &value)?;
        }
        Ok(())
    }
}

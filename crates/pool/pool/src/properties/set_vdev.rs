//! Sets vdev properties.
//!
//! They are stored in a ZAP of the vdev: the root's ZAP, a top-level vdev's ZAP, or the leaf's ZAP. A
//! single disk has both a top-level and a leaf ZAP; the top-level ZAP is used.
//!
//! Page `docs/format/properties.md`, "Vdevs".

use crate::PoolError;
use crate::error::Reading;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::properties::set::{SettingError, USER_BYTES_MAX};
use crate::properties::{Form, vdev_property_zap, vdev_table};
use crate::sync::context::SyncContext;
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{Guid, ObjectId};

const WHAT: &str = "properties of a vdev";

/// A validated vdev property with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VdevSetting {
    /// A number, or the number of a word; 2^64-1 for `none`.
    Number(&'static str, u64),
    /// `comment`, which may be empty.
    Text(&'static str, String),
    /// A user property, with its colon; an empty value removes it.
    User(String, String),
}

impl VdevSetting {
    /// Validates a name and value from the command line.
    ///
    /// # Errors
    /// [`SettingError`]; [`SettingError::Unsupported`] for valid properties that cannot be changed here:
    /// `allocating`, `path`.
    pub fn parse(name: &str, value: &str) -> Result<Self, SettingError> {
        if name.contains(':') {
            if name.len() > USER_BYTES_MAX.0 || value.len() > USER_BYTES_MAX.1 {
                return Err(SettingError::TooLong(name.to_owned()));
            }
            return Ok(Self::User(name.to_owned(), value.to_owned()));
        }
        let shape = vdev_table::find(name).ok_or_else(|| SettingError::Unknown(name.to_owned()))?;
        let name = shape.name;
        if !shape.edit.is_editable() {
            return Err(SettingError::ReadOnly(name));
        }
        match (name, shape.form) {
            ("allocating" | "path", _) => Err(SettingError::Unsupported(name)),
            (_, Form::Text) if value.len() > USER_BYTES_MAX.1 => {
                Err(SettingError::TooLong(name.to_owned()))
            }
            (_, Form::Text) => Ok(Self::Text(name, value.to_owned())),
            (_, Form::Words(_)) => {
                let values = shape.values;
                let number = shape.number_of(value);
                let number = number.ok_or(SettingError::NotAWord { name, values })?;
                Ok(Self::Number(name, number))
            }
            (_, Form::Number(_)) if value == "none" => Ok(Self::Number(name, u64::MAX)),
            (_, Form::Number(_)) => match value.parse() {
                Ok(number) => Ok(Self::Number(name, number)),
                Err(_) => Err(SettingError::NotANumber { name }),
            },
        }
    }
}

impl Pool {
    /// Sets a property of the vdev with this guid, and returns when it is on stable storage. For the root,
    /// the guid is the pool's.
    ///
    /// # Errors
    /// [`PoolError::Unsupported`] if there is no such vdev or it stores no properties (interior vdevs below
    /// the top level; pools from before vdevs had ZAPs). Otherwise as for [`Pool::sync_task`].
    pub fn set_vdev_property(&self, vdev: Guid, setting: &VdevSetting) -> Result<(), PoolError> {
        let zap = vdev_property_zap(&self.store().topology().tree, vdev);
        let zap = zap.ok_or(PoolError::Unsupported {
            what: "keeping properties of this vdev",
        })?;
        self.sync_task(|ctx| ctx.set_vdev_property(vdev, zap, setting))?;
        if let VdevSetting::Number(name, number) = setting {
            self.leaf_watch.lock().set(vdev, name, *number);
        }
        Ok(())
    }
}

impl SyncContext<'_> {
    fn set_vdev_property(
        &self,
        vdev: Guid,
        zap: ObjectId,
        setting: &VdevSetting,
    ) -> Result<(), PoolError> {
        let text = match setting {
            VdevSetting::Number(name, number) => {
                self.set_table_number(zap, name, *number)?;
                // The history records numbers with a sign.
                format!("{name}={}", number.cast_signed())
            }
            VdevSetting::User(name, value) if value.is_empty() => {
                self.remove_table_entry(zap, name)?;
                format!("{name}=")
            }
            VdevSetting::Text(name, value) => self.store_text(zap, name, value)?,
            VdevSetting::User(name, value) => self.store_text(zap, name, value)?,
        };
        let text = format!("vdev_guid={}: {text}", vdev.0);
        self.history(&HistoryEvent::of_pool("vdev set", text))
    }

    fn store_text(&self, zap: ObjectId, name: &str, value: &str) -> Result<String, PoolError> {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.table(zap)?
            .update(name.as_bytes(), &ZapValue::from_bytes(&bytes))
            .reading(WHAT)?;
        Ok(format!("{name}={value}"))
    }
}

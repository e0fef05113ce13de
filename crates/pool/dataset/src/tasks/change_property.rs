//! Validates, sets and inherits properties.
//!
//! Page `docs/format/properties.md`, "Changing".

use crate::heads::features;
use crate::heads::space::{Use, signed};
use crate::mos::{MosView, required};
use crate::properties::{DatasetKind, DatasetProperty, NEEDS_UPGRADE, is_share_value, table};
use crate::tasks::checks::check_copies;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::{Creator, DatasetError, Refusal};
use millpond_ondisk::dsl::keys::{
    self, PROPERTY_INHERIT_SUFFIX, PROPERTY_RECEIVED_SUFFIX, PROPERTY_UNKNOWN_VALUE_SUFFIX,
};
use millpond_ondisk::zap::ZAP_VALUE_BYTES_MAX;
use millpond_ondisk::{ObjectId, ObjectSetKind, ObjectType};
use millpond_pool::PoolError;
use millpond_pool::properties::{Edit, Form, PropertyValue, preset_value};
use std::collections::BTreeSet;

/// The longest name of a user property, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// The longest text, in bytes: with its NUL it is a value of a ZAP.
pub(crate) const TEXT_BYTES_MAX: usize = ZAP_VALUE_BYTES_MAX - 1;

pub(crate) const LONG_NAME: &str = "property name is too long";
const TOO_LONG: &str = "property value too long";

/// The longest name of a folder on the way to a mount point, in bytes.
const FOLDER_NAME_MAX: usize = 255;

/// The number of the value `passthrough-x` of `aclinherit`.
const PASSTHROUGH_X: u64 = 5;

/// A validated change of one property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) value: PropertyValue,
}

fn text_of(value: &PropertyValue) -> String {
    match value {
        PropertyValue::Number(number) => number.to_string(),
        PropertyValue::Text(text) => text.clone(),
    }
}

impl MosView<'_> {
    /// Validates a property value for datasets of this kind. Values of indexed properties may be words or
    /// numbers.
    pub(crate) fn check_value(
        &self,
        dataset: &str,
        kind: ObjectSetKind,
        name: &str,
        value: &PropertyValue,
    ) -> Result<Setting, DatasetError> {
        let invalid = |reason: &str| DatasetError::InvalidProperty {
            name: dataset.to_owned(),
            property: name.to_owned(),
            reason: reason.to_owned(),
        };
        let Some(property) = table::find(name) else {
            return check_user_property(name, value).map_err(invalid);
        };
        let shape = &property.shape;
        let of = match kind {
            ObjectSetKind::Volume => DatasetKind::Volume,
            _ => DatasetKind::Filesystem,
        };
        if !property.kinds.contains(of) {
            return Err(invalid("does not apply to datasets of this type"));
        }
        if !matches!(shape.edit, Edit::Settable | Edit::Inheritable) {
            return Err(invalid("is readonly"));
        }
        let is_of_contents = matches!(shape.name, "volsize" | "version")
            || keys::master_node::default_quota(shape.name).is_some();
        if is_of_contents {
            return Err(invalid("is changed through the open file system or volume"));
        }
        let value = match (shape.form, value) {
            (Form::Text, PropertyValue::Text(_)) => value.clone(),
            (Form::Text, PropertyValue::Number(_)) => return Err(invalid("must be a string")),
            (Form::Words(_), PropertyValue::Text(word)) => {
                let number = shape
                    .number_of(word)
                    .ok_or_else(|| invalid(&format!("must be one of '{}'", shape.values)))?;
                PropertyValue::Number(number)
            }
            (Form::Words(words), PropertyValue::Number(number)) => {
                if !words.iter().any(|(_, known)| known == number) {
                    return Err(invalid(&format!("must be one of '{}'", shape.values)));
                }
                value.clone()
            }
            (Form::Number(_), PropertyValue::Number(_)) => value.clone(),
            (Form::Number(_), PropertyValue::Text(text)) => match text.parse() {
                Ok(number) => PropertyValue::Number(number),
                Err(_) if text == "none" => match shape.name {
                    "filesystem_limit" | "snapshot_limit" => PropertyValue::Number(u64::MAX),
                    _ => PropertyValue::Number(0),
                },
                Err(_) => return Err(invalid("must be a number")),
            },
        };
        if matches!(&value, PropertyValue::Text(text) if text.len() > TEXT_BYTES_MAX) {
            return Err(invalid(TOO_LONG));
        }
        self.check_meaning(property, &value)
            .map_err(|reason| invalid(&reason))?;
        Ok(Setting {
            name: shape.name.to_owned(),
            value,
        })
    }

    fn check_meaning(
        &self,
        property: &DatasetProperty,
        value: &PropertyValue,
    ) -> Result<(), String> {
        let known = self.pool.features();
        let is_enabled = |guid: &str| known.count(guid).is_some();
        let needs = |guid: &str| match is_enabled(guid) {
            true => Ok(()),
            false => Err(NEEDS_UPGRADE.to_owned()),
        };
        let version = self.version();
        let since = |has_it: bool| match has_it {
            true => Ok(()),
            false => Err(NEEDS_UPGRADE.to_owned()),
        };
        let name = property.shape.name;
        match (name, value) {
            ("recordsize", PropertyValue::Number(bytes)) => {
                let max: u64 = match is_enabled(features::LARGE_BLOCKS) {
                    true => 16 << 20,
                    false => 128 << 10,
                };
                if !bytes.is_power_of_two() || !(512..=max).contains(bytes) {
                    let max = if max == 16 << 20 { "16M" } else { "128K" };
                    return Err(format!("must be power of 2 from 512B to {max}"));
                }
                Ok(())
            }
            ("special_small_blocks", PropertyValue::Number(bytes)) => {
                let fits =
                    *bytes == 0 || (bytes.is_power_of_two() && (512..=16 << 20).contains(bytes));
                match fits {
                    true => Ok(()),
                    false => Err("must be zero or a power of 2 from 512B to 16M".into()),
                }
            }
            ("dnodesize", PropertyValue::Number(size)) if *size != 0 => {
                needs(features::LARGE_DNODE)
            }
            ("longname", PropertyValue::Number(on)) if *on != 0 => needs(features::LONGNAME),
            ("filesystem_limit" | "snapshot_limit", _) => needs(features::FILESYSTEM_LIMITS),
            ("compression", PropertyValue::Number(number)) if number & 0x7f == 16 => {
                needs(features::ZSTD_COMPRESS)
            }
            ("compression", PropertyValue::Number(15)) => needs(features::LZ4_COMPRESS),
            ("checksum", PropertyValue::Number(11)) => needs(features::SHA512),
            ("checksum", PropertyValue::Number(12)) => needs(features::SKEIN),
            ("checksum", PropertyValue::Number(13)) => needs(features::EDONR),
            ("checksum", PropertyValue::Number(14)) => needs(features::BLAKE3),
            ("compression", PropertyValue::Number(5..=13)) => since(version.has_gzip()),
            ("compression", PropertyValue::Number(14)) => since(version.has_zle()),
            ("copies", PropertyValue::Number(_)) => since(version.has_copies()),
            ("refquota" | "refreservation", PropertyValue::Number(1..)) => {
                since(version.has_exact_unique_bytes())
            }
            ("aclinherit", PropertyValue::Number(PASSTHROUGH_X)) => {
                since(version.has_passthrough_x())
            }
            ("dedup", PropertyValue::Number(number)) if !matches!(number & 0xff, 0 | 2) => {
                since(version.has_dedup())?;
                match number & 0xff {
                    11 => needs(features::SHA512),
                    12 => needs(features::SKEIN),
                    13 => needs(features::EDONR),
                    14 => needs(features::BLAKE3),
                    _ => Ok(()),
                }
            }
            ("mountpoint", PropertyValue::Text(path)) => {
                if path == "none" || path == "legacy" {
                    return Ok(());
                }
                if !path.starts_with('/') {
                    return Err("must be an absolute path, 'none', or 'legacy'".into());
                }
                match path.split('/').all(|name| name.len() <= FOLDER_NAME_MAX) {
                    true => Ok(()),
                    false => Err("component of 'mountpoint' is too long".into()),
                }
            }
            ("sharenfs", PropertyValue::Text(options)) if !is_share_value(options) => {
                Err("cannot be set to invalid options".into())
            }
            ("sharesmb", PropertyValue::Text(word)) if word != "on" && word != "off" => {
                Err("cannot be set to invalid options".into())
            }
            ("mlslabel", _) => Err("mlslabels are unsupported".into()),
            _ => Ok(()),
        }
    }

    /// Checks a change of a quota or reservation against the space used and available.
    pub(crate) fn check_limits(&self, head: &Head, setting: &Setting) -> Result<(), DatasetError> {
        let PropertyValue::Number(new) = setting.value else {
            return Ok(());
        };
        let directory = self.directory(head.directory)?;
        let dataset = self.dataset(head.dataset)?;
        let refused = |why| Err(Refusal::error(&head.name, why));
        match setting.name.as_str() {
            "quota"
                if new != 0 && (new < directory.used_bytes || new < directory.reserved_bytes) =>
            {
                return refused(Refusal::BelowUse);
            }
            "refquota" if new != 0 => {
                let reserved = self.ref_reservation(head.directory)?;
                if new < dataset.referenced_bytes || new < reserved {
                    return refused(Refusal::BelowUse);
                }
            }
            "reservation" => {
                let used = directory.used_bytes;
                let more = new
                    .max(used)
                    .saturating_sub(directory.reserved_bytes.max(used));
                let over_quota = directory.quota_bytes != 0 && new > directory.quota_bytes;
                let available = match directory.parent {
                    Some(parent) => self.available(parent)?,
                    None => self.root_available()?,
                };
                if over_quota || more > available {
                    return refused(Refusal::AboveAvailable);
                }
            }
            "refreservation" => {
                let old = self.ref_reservation(head.directory)?;
                let unique = dataset.unique_bytes;
                let (now, then) = (old.saturating_sub(unique), new.saturating_sub(unique));
                let more = then.saturating_sub(now);
                let ref_quota = self.ref_quota(head.directory)?;
                let over_quota = (directory.quota_bytes != 0 && new > directory.quota_bytes)
                    || (ref_quota != 0 && new > ref_quota);
                if over_quota || more > self.available(head.directory)? {
                    return refused(Refusal::AboveAvailable);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether a table can say that the received value of a property is hidden. Of others none is received.
pub(crate) fn can_be_hidden(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX - PROPERTY_INHERIT_SUFFIX.len() && !name.contains('\0')
}

pub(crate) fn check_user_property(
    name: &str,
    value: &PropertyValue,
) -> Result<Setting, &'static str> {
    let is_legal = matches!(
        crate::properties::by_name(name),
        Some(crate::properties::PropertyName::User(_))
    );
    if !is_legal {
        return Err("invalid property");
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(LONG_NAME);
    }
    let text = text_of(value);
    if text.len() > TEXT_BYTES_MAX {
        return Err(TOO_LONG);
    }
    Ok(Setting {
        name: name.to_owned(),
        value: PropertyValue::Text(text),
    })
}

impl SyncTaskContext<'_> {
    /// Validates changes of a head's properties.
    pub(crate) fn check_settings(
        &self,
        head: &Head,
        kind: ObjectSetKind,
        changes: &[(String, PropertyValue)],
    ) -> Result<Vec<Setting>, DatasetError> {
        let mut settings = vec![];
        for (name, value) in changes {
            if table::find(name).is_some_and(|known| known.shape.name == "keylocation") {
                settings.push(self.check_key_location(head, value)?);
                continue;
            }
            let setting = self.check_value(&head.name, kind, name, value)?;
            self.check_limits(head, &setting)?;
            settings.push(setting);
        }
        if self.encryption_root(head.directory)?.is_some() {
            check_copies(&head.name, &settings)?;
        }
        Ok(settings)
    }

    /// Sets a property locally and applies its consequences.
    pub(crate) fn apply_setting(&self, head: &Head, setting: &Setting) -> Result<(), PoolError> {
        let number = match &setting.value {
            PropertyValue::Number(number) => Some(*number),
            PropertyValue::Text(_) => None,
        };
        if let Some(number) = number {
            self.before_setting(head, &setting.name, number)?;
        }
        let table = self.directory(head.directory)?.properties;
        let table = required(table, "a directory without properties")?;
        self.store_value(table, &setting.name, &setting.value)?;
        if let Some(number) = number {
            self.after_setting(head, &setting.name, number)?;
        }
        let text = format!("{}={}", setting.name, text_of(&setting.value));
        self.history(head.dataset, &head.name, "set", &text)
    }

    pub(crate) fn before_setting(
        &self,
        head: &Head,
        name: &str,
        number: u64,
    ) -> Result<(), PoolError> {
        match name {
            "refreservation" => self.set_ref_reservation_charge(head.directory, number),
            "reservation" => self.set_reservation(head.directory, number),
            "quota" => self.edit_directory(head.directory, |phys| phys.quota_bytes = number),
            "filesystem_limit" | "snapshot_limit" => self.begin_counts(head.directory),
            _ => Ok(()),
        }
    }

    pub(crate) fn after_setting(
        &self,
        head: &Head,
        name: &str,
        number: u64,
    ) -> Result<(), PoolError> {
        if name == "compression" && number & 0x7f == 16 {
            self.activate_feature(head.dataset, features::ZSTD_COMPRESS, &[0])?;
        }
        Ok(())
    }

    /// Stores a local value and removes the mark that the property is inherited.
    pub(crate) fn store_value(
        &self,
        table: ObjectId,
        name: &str,
        value: &PropertyValue,
    ) -> Result<(), PoolError> {
        let with = |suffix: &str| format!("{name}{suffix}");
        self.remove(table, &with(PROPERTY_INHERIT_SUFFIX))?;
        let unknown = with(PROPERTY_UNKNOWN_VALUE_SUFFIX);
        match value {
            PropertyValue::Text(text) => self.update_text(table, name, text),
            PropertyValue::Number(number) if is_unknown_to_older(name, *number) => {
                // Older software uses the default and does not fail.
                let default = match table::find(name).and_then(|p| preset_value(&p.shape)) {
                    Some(PropertyValue::Number(default)) => default,
                    _ => 0,
                };
                self.update(table, name, default)?;
                self.update(table, &unknown, *number)
            }
            PropertyValue::Number(number) => {
                self.remove(table, &unknown)?;
                self.update(table, name, *number)
            }
        }
    }

    /// Removes a local value. With `to_received` the received value takes effect; otherwise it stays
    /// hidden.
    pub(crate) fn inherit_value(
        &self,
        head: &Head,
        name: &str,
        to_received: bool,
    ) -> Result<(), PoolError> {
        let table = self.directory(head.directory)?.properties;
        let table = required(table, "a directory without properties")?;
        let with = |suffix: &str| format!("{name}{suffix}");
        self.remove(table, name)?;
        self.remove(table, &with(PROPERTY_UNKNOWN_VALUE_SUFFIX))?;
        if to_received {
            self.remove(table, &with(PROPERTY_INHERIT_SUFFIX))?;
        } else if can_be_hidden(name) && self.has_received(head.directory)? {
            self.update(table, &with(PROPERTY_INHERIT_SUFFIX), 0)?;
        }
        let is_inheritable = table::find(name).is_none_or(|p| p.shape.edit == Edit::Inheritable);
        let now = match self.set_value(head.directory, name, is_inheritable)? {
            Some(value) => Some(value),
            None => table::find(name).and_then(|property| preset_value(&property.shape)),
        };
        let now = now.as_ref().map_or_else(String::new, text_of);
        self.history(
            head.dataset,
            &head.name,
            "inherit",
            &format!("{name}={now}"),
        )
    }

    /// Sets a user property of a snapshot, or removes it with `None`.
    pub(crate) fn set_snapshot_property(
        &self,
        snapshot: ObjectId,
        full_name: &str,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), PoolError> {
        let mut phys = self.dataset(snapshot)?;
        match (value, phys.properties) {
            (Some(text), table) => {
                let table = match table {
                    Some(table) => table,
                    None => {
                        let made = self.create_zap(ObjectType::DSL_PROPS)?;
                        phys.properties = Some(made);
                        self.put_dataset(snapshot, &phys)?;
                        made
                    }
                };
                self.store_value(table, name, &PropertyValue::Text(text.to_owned()))?;
                let text = format!("{name}={text}");
                self.history(snapshot, full_name, "set", &text)
            }
            (None, Some(table)) => {
                self.remove(table, name)?;
                self.remove(table, &format!("{name}{PROPERTY_INHERIT_SUFFIX}"))?;
                let received = format!("{name}{PROPERTY_RECEIVED_SUFFIX}");
                if can_be_hidden(name) && self.lookup_value(table, &received)?.is_some() {
                    self.update(table, &format!("{name}{PROPERTY_INHERIT_SUFFIX}"), 0)?;
                }
                if self.entry_count(table)? == 0 {
                    self.free_object(table)?;
                    phys.properties = None;
                    self.put_dataset(snapshot, &phys)?;
                }
                self.history(snapshot, full_name, "inherit", &format!("{name}="))
            }
            (None, None) => Ok(()),
        }
    }

    /// Changes a directory's reservation and charges the change of its unused part to the parent.
    pub(crate) fn set_reservation(&self, directory: ObjectId, new: u64) -> Result<(), PoolError> {
        let mut phys = self.directory(directory)?;
        let used = phys.used_bytes;
        let delta = signed(new.max(used)).saturating_sub(signed(phys.reserved_bytes.max(used)));
        phys.reserved_bytes = new;
        self.put_directory(directory, &phys)?;
        match phys.parent {
            Some(parent) => self.charge(parent, &[(Use::ChildrenReserved, delta)], 0, 0),
            None => Ok(()),
        }
    }

    /// Starts counting file systems and snapshots below a directory, if they are not counted yet.
    pub(crate) fn begin_counts(&self, directory: ObjectId) -> Result<(), PoolError> {
        if self.feature_count(features::FILESYSTEM_LIMITS) == 0 {
            self.ctx.feature_increment(features::FILESYSTEM_LIMITS)?;
        }
        self.count_below(directory, 0).map(|_| ())
    }

    /// Computes and stores the counts of a directory and its descendants. Returns the number of file
    /// systems below it, and the number of its and their snapshots.
    fn count_below(&self, directory: ObjectId, depth: usize) -> Result<(u64, u64), PoolError> {
        if depth > crate::directory::DEPTH_MAX {
            return Err(crate::mos::contradiction(
                "dataset directory",
                "directories nest too deep",
            ));
        }
        let known = (
            self.extension_number(directory, keys::FILESYSTEM_COUNT)?,
            self.extension_number(directory, keys::SNAPSHOT_COUNT)?,
        );
        if let (Some(file_systems), Some(snapshots)) = known {
            return Ok((file_systems, snapshots));
        }
        let (mut file_systems, mut snapshots) = (0u64, 0u64);
        for (name, child) in self.children(directory)? {
            if keys::is_hidden_name(name.as_bytes()) {
                continue;
            }
            let below = self.count_below(child, depth + 1)?;
            file_systems = file_systems.saturating_add(below.0).saturating_add(1);
            snapshots = snapshots.saturating_add(below.1);
        }
        if let Some(head) = self.directory(directory)?.head_dataset {
            let entries = self.snapshot_entries(&self.dataset(head)?)?;
            let shown = entries.iter().filter(|(name, _)| !name.contains('%'));
            snapshots = snapshots.saturating_add(shown.count() as u64);
        }
        self.zapify(directory)?;
        self.update(directory, keys::FILESYSTEM_COUNT, file_systems)?;
        self.update(directory, keys::SNAPSHOT_COUNT, snapshots)?;
        Ok((file_systems, snapshots))
    }

    /// As [`SyncTaskContext::check_moved_limits`], for something new.
    pub(crate) fn check_count_limits(
        &self,
        who: (&str, Option<&Creator>),
        directory: ObjectId,
        limits: (&str, &str),
        count: u64,
    ) -> Result<(), DatasetError> {
        self.check_moved_limits(who, (directory, &BTreeSet::new()), limits, count)
    }

    /// Checks whether `count` more file systems or snapshots exceed a limit of the directory or of an ancestor, up to
    /// one of `unchanged`, whose counts stay the same. They hold for `creator` even if they are not enforced for the superuser, but for one who may change a
    /// limit neither that one nor those above it.
    pub(crate) fn check_moved_limits(
        &self,
        (name, creator): (&str, Option<&Creator>),
        (directory, unchanged): (ObjectId, &BTreeSet<ObjectId>),
        (count_key, limit): (&str, &str),
        count: u64,
    ) -> Result<(), DatasetError> {
        if !self.datasets.has_limits() && creator.is_none() {
            return Ok(());
        }
        let mut at = Some(directory);
        for _ in 0..crate::directory::DEPTH_MAX {
            let Some(id) = at.filter(|id| !unchanged.contains(id)) else {
                return Ok(());
            };
            let Some(now) = self.extension_number(id, count_key)? else {
                return Ok(());
            };
            if now.saturating_add(count) > self.number(id, limit)? {
                // Who may change a limit is exempt from this one, not from those above it.
                let is_exempt = match creator {
                    Some(creator) => self.may_change(creator, limit, id)?,
                    None => false,
                };
                if !is_exempt {
                    return Err(Refusal::error(name, Refusal::LimitReached));
                }
            }
            at = self.directory(id)?.parent;
        }
        Ok(())
    }

    /// Whether a user has a permission at a directory.
    fn may_change(
        &self,
        user: &Creator,
        permission: &str,
        directory: ObjectId,
    ) -> Result<bool, PoolError> {
        let chain = self.permission_chain(directory)?;
        Ok(chain.permissions_of(&user.subject).contains(permission))
    }
}

/// Whether a value is unknown to older software.
fn is_unknown_to_older(name: &str, number: u64) -> bool {
    matches!(
        (name, number),
        ("redundant_metadata", 2 | 3) | ("snapdir", 2)
    )
}

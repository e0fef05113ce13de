//! Parses and checks `property=value` words of datasets.

use crate::session::Environment;
use crate::text::size;
use millpond_control::properties::{
    DatasetKind, DatasetProperty, PropertyName, QuotaSubject, by_name,
};
use millpond_control::properties::{Edit, Form};
use millpond_control::{Value, Values};
use millpond_engine::OwnerKind;
use millpond_inspect::stream::filter::{CompressionKind, ZstdLevel};

/// One property with a value of the right form.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// The full name.
    pub name: String,
    /// The value as given.
    pub given: String,
    /// The parsed meaning.
    pub meaning: Meaning,
}

/// The parsed meaning of an assignment.
#[derive(Debug, Clone)]
pub enum Meaning {
    /// A native property.
    Native(&'static DatasetProperty, Value),
    /// `refreservation=auto`: the most that the volume can need.
    Auto(&'static DatasetProperty),
    /// A user property.
    User,
    /// A quota of one owner.
    OwnerQuota {
        /// The kind of owner: user, group or project.
        owners: OwnerKind,
        /// Whether the quota limits objects instead of bytes.
        of_objects: bool,
        /// The owner as given.
        owner: String,
        /// The quota, 0 for none.
        limit: u64,
    },
}

/// The compression that a value of the property means. The error is a message.
pub fn compression_of(word: &str) -> Result<(CompressionKind, ZstdLevel), String> {
    let none = || format!("'{word}' is no compression");
    let Some(PropertyName::Native(property)) = by_name("compression") else {
        return Err(none());
    };
    let number = property.shape.number_of(word).ok_or_else(none)?;
    let function = u8::try_from(number & 0x7f).ok();
    let kind = match function.and_then(CompressionKind::from_number) {
        Some(CompressionKind::On) => CompressionKind::Lz4,
        Some(kind) => kind,
        None => return Err(none()),
    };
    let level = ZstdLevel::from_property(number).unwrap_or_default();
    Ok((kind, level))
}

impl Assignment {
    /// Parses `name=value`. The error is the end of a message.
    ///
    /// Does not check whether the property may still be set, or on which kinds of dataset.
    pub fn understand(name: &str, value: &str) -> Result<Assignment, String> {
        let known = by_name(name);
        if let Some((colon, _)) = known.is_none().then_some(()).and(name.split_once(':'))
            && !colon.is_empty()
            && name.len() > 255
        {
            return Err(format!("property name '{name}' is too long"));
        }
        let known = known.ok_or_else(|| format!("invalid property '{name}'"))?;
        let given = value.to_owned();
        let full = known.text().to_owned();
        let meaning = match known {
            PropertyName::Native(property) => native(property, value)?,
            PropertyName::User(_) if name.len() > 255 => {
                return Err(format!("property name '{name}' is too long"));
            }
            PropertyName::User(_) if value.len() > 8191 => {
                return Err("property value too long".into());
            }
            PropertyName::User(_) => Meaning::User,
            PropertyName::WrittenSince { name, .. } => return Err(format!("'{name}' is readonly")),
            PropertyName::PerOwner {
                name,
                owner_kind,
                subject,
                owner,
            } => {
                let of_objects = match subject {
                    QuotaSubject::BytesLimit => false,
                    QuotaSubject::ObjectsLimit => true,
                    _ => return Err(format!("'{name}' is readonly")),
                };
                let limit = match value {
                    "none" => 0,
                    value => size::parse(value)?,
                };
                Meaning::OwnerQuota {
                    owners: owner_kind,
                    of_objects,
                    owner,
                    limit,
                }
            }
        };
        Ok(Assignment {
            name: full,
            given,
            meaning,
        })
    }

    /// The value as stored text, with numbers in digits.
    pub fn stored_text(&self) -> String {
        match &self.meaning {
            Meaning::Native(_, Value::Number(number)) => number.to_string(),
            Meaning::Native(_, Value::Text(text)) => text.clone(),
            _ => self.given.clone(),
        }
    }

    /// The name and value for a request. `None` for an owner's quota.
    pub fn value(&self) -> Option<(String, Value)> {
        let value = match &self.meaning {
            Meaning::Native(_, value) => value.clone(),
            Meaning::User => Value::Text(self.given.clone()),
            Meaning::Auto(_) | Meaning::OwnerQuota { .. } => return None,
        };
        Some((self.name.clone(), value))
    }

    /// Whether the value is to be computed from the size of the volume.
    pub fn is_auto(&self) -> bool {
        matches!(self.meaning, Meaning::Auto(_))
    }

    /// Checks whether a new dataset of this kind can have the property.
    pub fn check_for_new(&self, kind: DatasetKind) -> Result<(), String> {
        self.check(kind, |edit| edit != Edit::ReadOnly)
    }

    /// Checks whether the property can be set on a dataset of this kind.
    pub fn check_for(&self, kind: DatasetKind) -> Result<(), String> {
        self.check(kind, |edit| {
            matches!(edit, Edit::Settable | Edit::Inheritable)
        })
    }

    fn check(&self, kind: DatasetKind, is_open: impl Fn(Edit) -> bool) -> Result<(), String> {
        let name = &self.name;
        let property = match &self.meaning {
            Meaning::User => return Ok(()),
            Meaning::OwnerQuota { .. } => {
                return match kind {
                    DatasetKind::Filesystem => Ok(()),
                    _ => Err("invalid property value".into()),
                };
            }
            Meaning::Native(property, _) | Meaning::Auto(property) => property,
        };
        if kind == DatasetKind::Snapshot {
            return Err("this property can not be modified for snapshots".into());
        }
        if !property.kinds.contains(kind) {
            return Err(format!("'{name}' does not apply to datasets of this type"));
        }
        if !is_open(property.shape.edit) {
            return Err(format!("'{name}' is readonly"));
        }
        if matches!(self.meaning, Meaning::Auto(_)) && kind != DatasetKind::Volume {
            return Err(format!("'{name}=auto' only allowed on volumes"));
        }
        Ok(())
    }
}

fn native(property: &'static DatasetProperty, value: &str) -> Result<Meaning, String> {
    let shape = &property.shape;
    let name = shape.name;
    if shape.edit == Edit::ReadOnly {
        // The value does not matter, because the property cannot be set.
        return Ok(Meaning::Native(property, Value::Text(value.to_owned())));
    }
    let value = match shape.form {
        Form::Words(_) => match shape.number_of(value) {
            // The word itself; the code that stores it knows its number.
            Some(_) => Value::Text(value.to_owned()),
            None => return Err(format!("'{name}' must be one of '{}'", shape.values)),
        },
        Form::Text => Value::Text(value.to_owned()),
        Form::Number(_) => match (name, value) {
            ("refreservation", "auto") => return Ok(Meaning::Auto(property)),
            ("filesystem_limit" | "snapshot_limit", "none") => Value::Number(u64::MAX),
            (name, "none") => Value::Number(check_number(name, 0)?),
            (name, "auto") => return Err(format!("'auto' is invalid value for '{name}'")),
            (name, value) => {
                let number = size::parse(value)?;
                if number == 0 && matches!(name, "quota" | "refquota") {
                    return Err("use 'none' to disable quota/refquota".into());
                }
                Value::Number(check_number(name, number)?)
            }
        },
    };
    Ok(Meaning::Native(property, value))
}

fn check_number(name: &str, number: u64) -> Result<u64, String> {
    let is_block = number.is_power_of_two() && (512..=16 << 20).contains(&number);
    match name {
        "recordsize" | "volblocksize" if !is_block => {
            Err(format!("'{name}' must be power of 2 from 512B to 16M"))
        }
        "special_small_blocks" if number != 0 && !is_block => Err(format!(
            "invalid '{name}={number}' property: must be zero or a power of 2 from 512B to 16M"
        )),
        _ => Ok(number),
    }
}

/// The id of an owner, given as a name or an id.
pub fn owner_number(environment: &Environment, owners: OwnerKind, owner: &str) -> Option<u64> {
    if owner.is_empty() {
        return Some(0);
    }
    if let Ok(number) = owner.parse() {
        return Some(number);
    }
    let names = match owners {
        OwnerKind::User => &environment.users,
        OwnerKind::Group => &environment.groups,
        OwnerKind::Project => return None,
    };
    names
        .iter()
        .find(|(_, name)| *name == owner)
        .map(|(number, _)| *number)
}

/// Parses the assignments of `-o` options or operands and rejects duplicates.
///
/// The error is a complete message.
pub fn understood<'a>(
    words: impl Iterator<Item = &'a str>,
) -> Result<Vec<(String, String)>, String> {
    let mut found: Vec<(String, String)> = vec![];
    for word in words {
        let Some((name, value)) = word.split_once('=') else {
            return Err("missing '=' for property=value argument".into());
        };
        let full = by_name(name).map_or_else(|| name.to_owned(), |known| known.text().to_owned());
        if found.iter().any(|(known, _)| *known == full) {
            return Err(format!("property '{full}' specified multiple times"));
        }
        found.push((full, value.to_owned()));
    }
    Ok(found)
}

/// The values of assignments for a request.
pub fn values(assignments: &[Assignment]) -> Values {
    assignments.iter().filter_map(Assignment::value).collect()
}

/// Whether a new file system can have the property.
pub fn is_of_file_systems(name: &str) -> bool {
    match by_name(name) {
        Some(PropertyName::Native(property)) => property.kinds.contains(DatasetKind::Filesystem),
        Some(PropertyName::User(_)) => true,
        Some(PropertyName::PerOwner { subject, .. }) => matches!(
            subject,
            QuotaSubject::BytesLimit | QuotaSubject::ObjectsLimit
        ),
        _ => false,
    }
}

/// Checks the combination of a new dataset's properties.
pub fn check_together(pairs: &[(String, String)]) -> Result<(), String> {
    let value = |wanted: &str| {
        let found = pairs.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let is_normalized = value("normalization").is_some_and(|form| form != "none");
    if is_normalized && value("utf8only") == Some("off") {
        return Err("'utf8only' must be set 'on' if normalization chosen".into());
    }
    Ok(())
}

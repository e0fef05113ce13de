//! `property=value` words of datasets, understood.

use crate::session::Environment;
use crate::text::size;
use millpond::OwnerKind;
use millpond::control::{Value, Values};
use millpond_dataset::properties::{
    DatasetKind, DatasetProperty, PropertyName, QuotaSubject, by_name,
};
use millpond_pool::properties::{Edit, Form};

/// One property with a value that it can have in principle.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// The full name.
    pub name: String,
    /// The value as it was written.
    pub given: String,
    /// What it means.
    pub meaning: Meaning,
}

/// What an assignment means.
#[derive(Debug, Clone)]
pub enum Meaning {
    /// A property of the table.
    Native(&'static DatasetProperty, Value),
    /// `refreservation=auto`: as much as the volume can need.
    Auto(&'static DatasetProperty),
    /// A property made up by users.
    User,
    /// A limit of one owner.
    OwnerQuota {
        /// User, group or project.
        owners: OwnerKind,
        /// Whether objects are limited rather than bytes.
        of_objects: bool,
        /// The owner as it was written.
        owner: String,
        /// The limit, 0 for none.
        limit: u64,
    },
}

impl Assignment {
    /// Understands `name=value`, or says why not, as the end of a message. Whether a property may still be
    /// set, and on what, is not asked.
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

    /// The value as text that is stored, with numbers in digits.
    pub fn stored_text(&self) -> String {
        match &self.meaning {
            Meaning::Native(_, Value::Number(number)) => number.to_string(),
            Meaning::Native(_, Value::Text(text)) => text.clone(),
            _ => self.given.clone(),
        }
    }

    /// The value for a request; an owner's limit is not among them.
    pub fn value(&self) -> Option<(String, Value)> {
        let value = match &self.meaning {
            Meaning::Native(_, value) => value.clone(),
            Meaning::User => Value::Text(self.given.clone()),
            Meaning::Auto(_) | Meaning::OwnerQuota { .. } => return None,
        };
        Some((self.name.clone(), value))
    }

    /// Whether a new dataset of this kind can have it, or why not.
    pub fn check_for_new(&self, kind: DatasetKind) -> Result<(), String> {
        self.check(kind, |edit| edit != Edit::ReadOnly)
    }

    /// Whether it can be set on a dataset of this kind, or why not.
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
        // Its value does not matter: nobody sets it.
        return Ok(Meaning::Native(property, Value::Text(value.to_owned())));
    }
    let value = match shape.form {
        Form::Words(_) => match shape.number_of(value) {
            // The word itself: who stores it knows its number.
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

/// The number of an owner, written as a name or a number.
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

/// The assignments of `-o` options or operands, each once; the error is a whole line.
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

/// Whether a property can be given to a new file system at all.
pub fn is_of_file_systems(name: &str) -> bool {
    match by_name(name) {
        Some(PropertyName::Native(property)) => property.kinds.contains(DatasetKind::Filesystem),
        Some(PropertyName::User(_)) => true,
        _ => false,
    }
}

/// What is wrong with properties of a new dataset taken together.
pub fn check_together(pairs: &[(String, String)]) -> Result<(), String> {
    let value = |wanted: &str| {
        let found = pairs.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let is_normalized = value("normalization").is_some_and(|form| form != "none");
    if is_normalized && value("utf8only") == Some("off") {
        return Err("'utf8only' must be set 'on' if normalization chosen".into());
    }
    let keys = ["keyformat", "pbkdf2iters"];
    match value("encryption") {
        None | Some("off")
            if keys
                .iter()
                .any(|key| value(key).is_some_and(|v| v != "none")) =>
        {
            Err("Encryption must be turned on to set encryption properties.".into())
        }
        None | Some("off") => Ok(()),
        Some(_) if value("keyformat").is_none() => {
            Err("Keyformat required for new encryption root.".into())
        }
        Some(_) => Err("encrypted datasets are not made yet".into()),
    }
}

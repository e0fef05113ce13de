//! Names that a person may ask for: properties of the table, and those whose name carries an
//! argument (`userquota@alice`, `written@monday`, `com.example:note`).

use super::table::{self, DatasetProperty};

/// Whose space or objects are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum OwnerKind {
    /// A user.
    User,
    /// A group.
    Group,
    /// A project.
    Project,
}

/// What a per-owner property counts or limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaSubject {
    /// `userused@`: bytes charged.
    BytesUsed,
    /// `userobjused@`: objects charged.
    ObjectsUsed,
    /// `userquota@`: limit in bytes; 0 for none.
    BytesLimit,
    /// `userobjquota@`: limit in objects; 0 for none.
    ObjectsLimit,
}

/// A property name that is well formed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "String", try_from = "String"))]
pub enum PropertyName {
    /// One of the table.
    Native(&'static DatasetProperty),
    /// `userused@W` and its eleven siblings. The owner `W` is as given, unresolved.
    PerOwner {
        /// The whole name.
        name: String,
        /// User, group or project.
        owner_kind: OwnerKind,
        /// What is counted or limited.
        subject: QuotaSubject,
        /// What follows the `@`.
        owner: String,
    },
    /// `written@SNAP` or `written#MARK`; `since` includes the `@` or `#`.
    WrittenSince {
        /// The whole name.
        name: String,
        /// What follows `written`.
        since: String,
    },
    /// A name with a colon, made up by users.
    User(String),
}

#[cfg(feature = "serde")]
impl From<PropertyName> for String {
    fn from(name: PropertyName) -> Self {
        name.text().to_owned()
    }
}

#[cfg(feature = "serde")]
impl TryFrom<String> for PropertyName {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        super::by_name(&text).ok_or_else(|| format!("no property is called '{text}'"))
    }
}

impl PropertyName {
    /// The name as it is shown: of a native property the full one, otherwise as given.
    pub fn text(&self) -> &str {
        match self {
            PropertyName::Native(property) => property.shape.name,
            PropertyName::PerOwner { name, .. } | PropertyName::WrittenSince { name, .. } => name,
            PropertyName::User(name) => name,
        }
    }
}

/// The property that `word` names, or `None` if it is neither a name, an alias, one of the forms
/// with an argument, nor a legal user property.
///
/// A word of any length is accepted; nothing but itself is allocated.
pub fn by_name(word: &str) -> Option<PropertyName> {
    if let Some(property) = table::find(word) {
        return Some(PropertyName::Native(property));
    }
    if let Some((prefix, owner)) = word.split_once('@')
        && let Some(&(_, owner_kind, subject)) = PER_OWNER.iter().find(|(p, _, _)| *p == prefix)
    {
        let (name, owner) = (word.to_string(), owner.to_string());
        return Some(PropertyName::PerOwner {
            name,
            owner_kind,
            subject,
            owner,
        });
    }
    if let Some(since) = word.strip_prefix("written")
        && since.starts_with(['@', '#'])
    {
        return Some(PropertyName::WrittenSince {
            name: word.into(),
            since: since.into(),
        });
    }
    is_user_property(word).then(|| PropertyName::User(word.to_string()))
}

fn is_user_property(word: &str) -> bool {
    word.contains(':')
        && word.bytes().all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b':' | b'-' | b'.' | b'_')
        })
}

const PER_OWNER: [(&str, OwnerKind, QuotaSubject); 12] = [
    ("userused", OwnerKind::User, QuotaSubject::BytesUsed),
    ("userquota", OwnerKind::User, QuotaSubject::BytesLimit),
    ("groupused", OwnerKind::Group, QuotaSubject::BytesUsed),
    ("groupquota", OwnerKind::Group, QuotaSubject::BytesLimit),
    ("userobjused", OwnerKind::User, QuotaSubject::ObjectsUsed),
    ("userobjquota", OwnerKind::User, QuotaSubject::ObjectsLimit),
    ("groupobjused", OwnerKind::Group, QuotaSubject::ObjectsUsed),
    (
        "groupobjquota",
        OwnerKind::Group,
        QuotaSubject::ObjectsLimit,
    ),
    ("projectused", OwnerKind::Project, QuotaSubject::BytesUsed),
    ("projectquota", OwnerKind::Project, QuotaSubject::BytesLimit),
    (
        "projectobjused",
        OwnerKind::Project,
        QuotaSubject::ObjectsUsed,
    ),
    (
        "projectobjquota",
        OwnerKind::Project,
        QuotaSubject::ObjectsLimit,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_aliases_and_names_with_arguments_are_told_apart() {
        assert_eq!(by_name("refer").unwrap().text(), "referenced");
        assert_eq!(
            by_name("userquota@alice").unwrap().text(),
            "userquota@alice"
        );
        assert!(
            matches!(by_name("written#b1"), Some(PropertyName::WrittenSince { since, .. }) if since == "#b1")
        );
        assert!(matches!(
            by_name("com.example:x"),
            Some(PropertyName::User(_))
        ));
        for bad in [
            "", "refres", "bogus", "Com.X:y", "all", "nosuch@x", "writtenX",
        ] {
            assert_eq!(by_name(bad), None, "{bad}");
        }
    }
}

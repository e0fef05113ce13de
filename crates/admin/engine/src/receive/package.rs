//! The list at the beginning of a package.

use millpond_dataset::PropertyValue;
use millpond_nvlist::{NvList, NvValue};

/// What a package says of its datasets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Package {
    /// The dataset that it is about, at the sender.
    pub(super) top: String,
    /// Whether it begins from an older snapshot.
    pub(super) has_source: bool,
    /// Whether it is about the datasets below too.
    pub(super) is_recursive: bool,
    /// Whether its streams are raw.
    pub(super) is_raw: bool,
    pub(super) datasets: Vec<Described>,
}

/// What a package says of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Described {
    /// Its full name at the sender.
    pub(super) name: String,
    /// The guid of the snapshot of the parent that it comes after; 0 for the top.
    pub(super) parent_snapshot: u64,
    /// The guid of the snapshot that it is a clone of; 0 for none.
    pub(super) origin: u64,
    /// Whether it is an encryption root.
    pub(super) is_encryption_root: bool,
    /// `None` if the package has no properties.
    pub(super) properties: Option<Vec<(String, PropertyValue)>>,
    pub(super) snapshots: Vec<DescribedSnapshot>,
}

/// What a package says of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DescribedSnapshot {
    /// The name after the `@`.
    pub(super) name: String,
    pub(super) guid: u64,
    pub(super) properties: Vec<(String, PropertyValue)>,
    /// The tags of its holds.
    pub(super) holds: Vec<String>,
}

impl Package {
    /// A package without a list: the snapshots of one dataset from an older one on.
    pub(super) fn plain(top: &str) -> Self {
        Self {
            top: top.to_owned(),
            has_source: true,
            ..Self::default()
        }
    }

    /// Decodes the list; `None` if it is not one of a package. What is missing in it counts as empty.
    pub(super) fn decode(top: &str, payload: &[u8]) -> Option<Self> {
        if payload.is_empty() {
            return Some(Self::plain(top));
        }
        let list = NvList::decode(payload).ok()?;
        let all = sublist(&list, "fss")?;
        let datasets = all.iter().filter_map(|pair| match &pair.value {
            NvValue::List(one) => Some(Described::decode(one)),
            _ => None,
        });
        Some(Self {
            top: top.to_owned(),
            has_source: list.contains("fromsnap"),
            is_recursive: !list.contains("not_recursive"),
            is_raw: list.contains("raw"),
            datasets: datasets.collect(),
        })
    }

    /// Whether it can have more than one snapshot.
    pub(super) fn has_several(&self) -> bool {
        self.has_source || self.is_recursive
    }

    /// The dataset that has a snapshot with this guid.
    pub(super) fn dataset_of(&self, snapshot: u64) -> Option<&Described> {
        let mut datasets = self.datasets.iter();
        datasets.find(|one| one.snapshots.iter().any(|known| known.guid == snapshot))
    }

    /// The snapshot with this guid.
    pub(super) fn snapshot(&self, guid: u64) -> Option<&DescribedSnapshot> {
        let mut snapshots = self.datasets.iter().flat_map(|one| &one.snapshots);
        snapshots.find(|known| known.guid == guid)
    }
}

impl Described {
    fn decode(list: &NvList) -> Self {
        let text = |key: &str| list.string(key).unwrap_or_default().to_owned();
        let of_snapshots = |key: &str, name: &str| {
            let all = sublist(list, key)?;
            sublist(all, name)
        };
        let mut snapshots = vec![];
        for pair in sublist(list, "snaps").into_iter().flat_map(NvList::iter) {
            let name = pair.name.to_string_lossy().into_owned();
            let NvValue::Uint64(guid) = pair.value else {
                continue;
            };
            let holds = of_snapshots("snapholds", &name);
            let tags = holds.into_iter().flat_map(NvList::iter);
            snapshots.push(DescribedSnapshot {
                guid,
                properties: of_snapshots("snapprops", &name).map_or(vec![], properties),
                holds: tags
                    .map(|pair| pair.name.to_string_lossy().into_owned())
                    .collect(),
                name,
            });
        }
        Self {
            name: text("name"),
            parent_snapshot: list.u64("parentfromsnap").unwrap_or(0),
            origin: list.u64("origin").unwrap_or(0),
            is_encryption_root: list.contains("is_encroot"),
            properties: sublist(list, "props").map(properties),
            snapshots,
        }
    }
}

fn sublist<'l>(list: &'l NvList, key: &str) -> Option<&'l NvList> {
    match list.get(key)? {
        NvValue::List(found) => Some(found),
        _ => None,
    }
}

fn properties(list: &NvList) -> Vec<(String, PropertyValue)> {
    let known = list.iter().filter_map(|pair| {
        let value = match &pair.value {
            NvValue::Uint64(number) => PropertyValue::Number(*number),
            NvValue::String(text) => PropertyValue::Text(text.to_string_lossy().into_owned()),
            _ => return None,
        };
        Some((pair.name.to_string_lossy().into_owned(), value))
    });
    known.collect()
}

//! Compares the model with a pool as our reader sees it.

use super::effect::Effect;
use super::model::{Content, Kind, Model};
use millpond_engine::{DatasetKind, FileKind, Node, View};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of differences reported.
const DIFFERENCES_MAX: usize = 20;

impl Model {
    /// The differences of the pool from the model.
    #[must_use]
    pub fn differences(&self, pool: &View) -> Vec<String> {
        self.differences_in_turn(pool, 0, 1)
    }

    /// Like [`Model::differences`], but compares only one of `turns` snapshots; `turn` selects which.
    #[must_use]
    pub fn differences_in_turn(&self, pool: &View, turn: u64, turns: u64) -> Vec<String> {
        let mut found = vec![];
        if let Err(error) = self.look(pool, turn, turns, &mut found) {
            found.push(format!("cannot be read: {error}"));
        }
        found.truncate(DIFFERENCES_MAX);
        found
    }

    fn look(
        &self,
        pool: &View,
        turn: u64,
        turns: u64,
        found: &mut Vec<String>,
    ) -> Result<(), millpond_engine::Error> {
        let mut expected = BTreeSet::new();
        for (name, head) in &self.heads {
            expected.insert(name.clone());
            for snapshot in &head.snapshots {
                expected.insert(format!("{name}@{}", snapshot.name));
            }
        }
        let mut there = BTreeSet::new();
        for dataset in pool.datasets() {
            let dataset = dataset?;
            there.insert(dataset.name().to_owned());
            for snapshot in dataset.snapshots()? {
                there.insert(snapshot.name().to_owned());
            }
        }
        if there != expected {
            let missing: Vec<_> = expected.difference(&there).collect();
            let more: Vec<_> = there.difference(&expected).collect();
            found.push(format!("datasets missing: {missing:?}, too many: {more:?}"));
            return Ok(());
        }
        for (name, head) in &self.heads {
            content_look(pool, name, &head.content, found)?;
            for snapshot in &head.snapshots {
                if !(snapshot.id + turn).is_multiple_of(turns.max(1)) {
                    continue;
                }
                let name = format!("{name}@{}", snapshot.name);
                content_look(pool, &name, &snapshot.content, found)?;
            }
        }
        Ok(())
    }
}

/// The differences of one dataset from its expected content.
#[must_use]
pub fn content_differences(pool: &View, name: &str, content: &Content) -> Vec<String> {
    let mut found = vec![];
    if let Err(error) = content_look(pool, name, content, &mut found) {
        found.push(format!("{name}: cannot be read: {error}"));
    }
    found.truncate(DIFFERENCES_MAX);
    found
}

/// The bytes of the file or volume that an effect changes, if the file has a name in `content`.
#[must_use]
pub fn bytes_of(pool: &View, name: &str, content: &Content, effect: &Effect) -> Option<Vec<u8>> {
    let dataset = pool.dataset(name).ok()?;
    match content {
        Content::Volume(bytes) => {
            let mut there = vec![0; bytes.len()];
            dataset.volume().ok()?.read(0, &mut there).ok()?;
            Some(there)
        }
        Content::Files(tree) => {
            let (_, names) = tree.survey();
            let named = names
                .iter()
                .find(|named| Some(named.id) == effect.object())?;
            let files = dataset.file_system().ok()?;
            let mut node = files.root().ok()?;
            for name in named.path.iter().map(Vec::as_slice).chain([named.name]) {
                let mut entries = node.entries().ok()?.filter_map(Result::ok);
                let entry = entries.find(|entry| entry.name == name)?;
                drop(entries);
                node = files.node(entry.id).ok()?;
            }
            let mut there = vec![0; usize::try_from(node.size_bytes()).ok()?];
            node.read(0, &mut there).ok()?;
            Some(there)
        }
    }
}

fn content_look(
    pool: &View,
    name: &str,
    content: &Content,
    found: &mut Vec<String>,
) -> Result<(), millpond_engine::Error> {
    if found.len() > DIFFERENCES_MAX {
        return Ok(());
    }
    let dataset = pool.dataset(name)?;
    match content {
        Content::Volume(bytes) => {
            let volume = dataset.volume()?;
            if volume.size_bytes() != bytes.len() as u64 {
                found.push(format!("{name}: {} bytes", volume.size_bytes()));
                return Ok(());
            }
            let mut there = vec![0; bytes.len()];
            volume.read(0, &mut there)?;
            tell_bytes(name, bytes, &there, found);
        }
        Content::Files(tree) => {
            if dataset.kind()? == DatasetKind::Volume {
                found.push(format!("{name}: a volume"));
                return Ok(());
            }
            let files = dataset.file_system()?;
            let mut same = BTreeMap::new();
            let links = tree.link_counts();
            let mut open = vec![(String::new(), 0, files.root()?)];
            while let Some((path, id, node)) = open.pop() {
                let place = format!("{name}:{path}/");
                // Two names of one file must refer to the same file in the pool too.
                if let Some(before) = same.insert(id, node.id())
                    && before != node.id()
                {
                    found.push(format!("{place}: objects {before:?} and {:?}", node.id()));
                }
                let wanted_links = links.get(&id).copied().unwrap_or(0);
                node_differences(&tree.nodes[&id], wanted_links, &node, &place, found)?;
                let Kind::Directory(entries) = &tree.nodes[&id].kind else {
                    continue;
                };
                if node.kind() != FileKind::Directory {
                    continue;
                }
                let mut there = BTreeMap::new();
                for entry in node.entries()? {
                    let entry = entry?;
                    if there.insert(entry.name.clone(), entry).is_some() {
                        found.push(format!("{place}: a name stands twice"));
                    }
                }
                for extra in there.keys().filter(|entry| !entries.contains_key(*entry)) {
                    let extra = String::from_utf8_lossy(extra);
                    found.push(format!("{place}: has {extra}"));
                }
                for (entry, child) in entries {
                    let shown = String::from_utf8_lossy(entry);
                    match there.get(entry) {
                        None => found.push(format!("{place}: lacks {shown}")),
                        Some(there) => {
                            let path = format!("{path}/{shown}");
                            open.push((path, *child, files.node(there.id)?));
                        }
                    }
                }
            }
            let unlinked = files.unlinked()?;
            if !unlinked.is_empty() && !name.contains('@') {
                found.push(format!("{name}: {} files left unlinked", unlinked.len()));
            }
        }
    }
    Ok(())
}

fn node_differences(
    expected: &super::Node,
    links: u64,
    node: &Node,
    place: &str,
    found: &mut Vec<String>,
) -> Result<(), millpond_engine::Error> {
    let stat = node.stat()?;
    let owner = (stat.uid, stat.gid, stat.permissions, stat.links);
    let wanted = (expected.uid, expected.gid, expected.mode, links);
    if owner != wanted {
        found.push(format!(
            "{place}: owners, mode, links {owner:?}, not {wanted:?}"
        ));
    }
    match &expected.kind {
        Kind::File(bytes) if stat.kind == FileKind::Regular => {
            if stat.size_bytes != bytes.len() as u64 {
                found.push(format!(
                    "{place}: {} bytes, not {}",
                    stat.size_bytes,
                    bytes.len()
                ));
            } else {
                let mut there = vec![0; bytes.len()];
                match node.read(0, &mut there) {
                    Ok(_) => tell_bytes(place, bytes, &there, found),
                    Err(error) => found.push(format!("{place}: {error}")),
                }
            }
        }
        Kind::Link(target) if stat.kind == FileKind::Symlink => {
            if node.link_target()?.as_ref() != Some(target) {
                found.push(format!("{place}: another target"));
            }
        }
        Kind::Fifo if stat.kind == FileKind::Fifo => {}
        Kind::Directory(_) if stat.kind == FileKind::Directory => {}
        _ => found.push(format!("{place}: a {:?}", stat.kind)),
    }
    let mut there = BTreeMap::new();
    for name in node.xattr_names()? {
        let value = node.xattr(&name)?.unwrap_or_default();
        there.insert(name, value);
    }
    if there != expected.xattrs {
        found.push(format!(
            "{place}: extended attributes {:?}, not {:?}",
            there
                .keys()
                .map(|name| String::from_utf8_lossy(name))
                .collect::<Vec<_>>(),
            expected
                .xattrs
                .keys()
                .map(|name| String::from_utf8_lossy(name))
                .collect::<Vec<_>>()
        ));
    }
    Ok(())
}

fn tell_bytes(place: &str, expected: &[u8], there: &[u8], found: &mut Vec<String>) {
    if expected == there {
        return;
    }
    let at = expected.iter().zip(there).position(|(a, b)| a != b);
    let count = expected.iter().zip(there).filter(|(a, b)| a != b).count();
    found.push(format!(
        "{place}: {count} of {} bytes differ, first at {at:?}",
        expected.len()
    ));
}

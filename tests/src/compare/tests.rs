//! Tests the comparison with a pool in memory and planted differences of each kind.

use super::*;
use crate::reader::{Answer, Attributes, Hold, Properties, SpaceOf, SpaceRow};
use crate::record::{Content, Entry};

#[derive(Clone, Default)]
struct File {
    attributes: Attributes,
    content: Vec<u8>,
    children: Vec<(Vec<u8>, u64)>,
    is_rotten: bool,
}

/// Changes a pool in one way.
type Plant = fn(&mut Memory);

#[derive(Clone, Default)]
struct Memory {
    files: BTreeMap<u64, File>,
    volume: Vec<u8>,
    quota: String,
    holds: Vec<Hold>,
    space: Vec<SpaceRow>,
    names: Vec<(String, DatasetKind)>,
}

impl PoolReader for Memory {
    fn name(&mut self) -> Answer<String> {
        Ok("tank".to_owned())
    }

    fn datasets(&mut self) -> Answer<Vec<(String, DatasetKind)>> {
        Ok(self.names.clone())
    }

    fn properties(&mut self, dataset: &str) -> Answer<Properties> {
        Ok(match dataset {
            "tank" => properties(&self.quota),
            _ => Properties::new(),
        })
    }

    fn holds(&mut self, _snapshot: &str) -> Answer<Vec<Hold>> {
        Ok(self.holds.clone())
    }

    fn space(&mut self, _dataset: &str, _of: SpaceOf) -> Answer<Vec<SpaceRow>> {
        Ok(self.space.clone())
    }

    fn root(&mut self, _dataset: &str) -> Answer<u64> {
        Ok(34)
    }

    fn list(&mut self, _dataset: &str, directory: u64) -> Answer<Vec<(Vec<u8>, u64)>> {
        Ok(self.files[&directory].children.clone())
    }

    fn attributes(&mut self, _dataset: &str, object: u64) -> Answer<Attributes> {
        Ok(self.files[&object].attributes.clone())
    }

    fn read(&mut self, _dataset: &str, object: u64, offset: u64, buffer: &mut [u8]) -> Answer<()> {
        let file = &self.files[&object];
        if file.is_rotten {
            return Err(ReadError::Io("checksum".to_owned()));
        }
        let start = offset as usize;
        match file.content.get(start..start + buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return Err(ReadError::Other("beyond the end".to_owned())),
        }
        Ok(())
    }

    fn extents(&mut self, _dataset: &str, object: u64) -> Answer<Vec<(u64, u64)>> {
        Ok(vec![(0, self.files[&object].content.len() as u64)])
    }

    fn volume_size(&mut self, _dataset: &str) -> Answer<u64> {
        Ok(self.volume.len() as u64)
    }

    fn read_volume(&mut self, _dataset: &str, offset: u64, buffer: &mut [u8]) -> Answer<()> {
        let start = offset as usize;
        buffer.copy_from_slice(&self.volume[start..start + buffer.len()]);
        Ok(())
    }
}

fn properties(quota: &str) -> Properties {
    Properties::from([("quota".to_owned(), (quota.to_owned(), "local".to_owned()))])
}

fn attributes(kind: &str, size: u64) -> Attributes {
    let xattrs = BTreeMap::from([("user.a".to_owned(), b"1".to_vec())]);
    let kind = kind.to_owned();
    Attributes {
        kind,
        mode: 0o644,
        nlink: 1,
        size,
        mtime_ns: 7,
        xattrs,
        ..Attributes::default()
    }
}

/// A file system with a directory, two files (one of them large), and a volume with a hold.
fn pool() -> Memory {
    let file = |content: &[u8]| File {
        attributes: attributes("file", content.len() as u64),
        content: content.to_vec(),
        ..File::default()
    };
    let directory = |children: &[(&str, u64)]| File {
        attributes: attributes("dir", children.len() as u64 + 2),
        children: children
            .iter()
            .map(|(name, at)| (name.as_bytes().to_vec(), *at))
            .collect(),
        ..File::default()
    };
    Memory {
        files: BTreeMap::from([
            (34, directory(&[("dir", 2), ("large", 4)])),
            (2, directory(&[("small", 3)])),
            (3, file(b"small content")),
            (4, file(&[9; 3 << 20])),
        ]),
        volume: vec![5; 1 << 20],
        quota: "100".to_owned(),
        holds: vec![Hold {
            tag: "keep".to_owned(),
            placed_s: 1_795_257_575,
        }],
        space: vec![SpaceRow {
            id: 0,
            used_bytes: 1024,
            quota_bytes: 0,
            objects: Some(4),
            objects_quota: Some(0),
        }],
        names: vec![
            ("tank".to_owned(), DatasetKind::Filesystem),
            ("tank/vol".to_owned(), DatasetKind::Volume),
            ("tank/vol@s".to_owned(), DatasetKind::Snapshot),
        ],
    }
}

fn record() -> Record {
    let pool = pool();
    let entry = |path: &str, object: u64| {
        let file = &pool.files[&object];
        Entry {
            path: path.as_bytes().to_vec(),
            object,
            attributes: file.attributes.clone(),
            xattrs_unknown: false,
            content: (file.attributes.kind == "file")
                .then(|| Content::Whole(hex(&Sha256::digest(&file.content)))),
            extents: (object == 4).then(|| vec![(0, 3 << 20)]),
            sampled: None,
            is_unreadable: false,
        }
    };
    let tree = vec![
        entry(".", 34),
        entry("dir", 2),
        entry("dir/small", 3),
        entry("large", 4),
    ];
    let volume = Some(Volume::Whole(hex(&Sha256::digest(&pool.volume))));
    let dataset = |name: &str, kind| Dataset {
        name: name.to_owned(),
        kind,
        properties: Properties::new(),
        tree: None,
        volume: None,
        holds: None,
        space: Vec::new(),
    };
    Record {
        pool: "tank".to_owned(),
        datasets: vec![
            Dataset {
                properties: properties("100"),
                tree: Some(tree),
                space: vec![(SpaceOf::Users, pool.space.clone())],
                ..dataset("tank", DatasetKind::Filesystem)
            },
            Dataset {
                volume: volume.clone(),
                ..dataset("tank/vol", DatasetKind::Volume)
            },
            Dataset {
                volume,
                holds: Some(BTreeSet::from([(
                    "keep".to_owned(),
                    "Sat Nov 21 10:39 2026".to_owned(),
                )])),
                ..dataset("tank/vol@s", DatasetKind::Snapshot)
            },
        ],
        ..Record::default()
    }
}

fn differences(pool: &mut Memory, record: &Record) -> Vec<String> {
    compare(pool, record, &Leeway::default()).differences
}

#[test]
fn a_pool_equals_its_record_and_skips_are_listed() {
    let findings = compare(&mut pool(), &record(), &Leeway::default());
    assert_eq!(findings.differences, [""; 0]);
    assert_eq!(findings.files, 4);
    let not_compared: Vec<&str> = findings.not_compared.into_iter().collect();
    assert_eq!(not_compared, ["pool properties", "the pool's history"]);
}

#[test]
fn every_attribute_that_differs_is_found() {
    let plants: [fn(&mut Attributes); 14] = [
        |a| a.kind = "fifo".to_owned(),
        |a| a.mode = 0o600,
        |a| a.uid = 1,
        |a| a.gid = 1,
        |a| a.nlink = 2,
        |a| a.size -= 1,
        |a| a.blocks = 1,
        |a| a.mtime_ns = 8,
        |a| a.ctime_ns = 8,
        |a| a.atime_ns = 8,
        |a| a.target = Some(Vec::new()),
        |a| a.rdev = Some((1, 2)),
        |a| a.xattrs.clear(),
        |a| drop(a.xattrs.insert("user.b".to_owned(), Vec::new())),
    ];
    for (number, plant) in plants.iter().enumerate() {
        let mut pool = pool();
        plant(&mut pool.files.get_mut(&3).unwrap().attributes);
        let found = differences(&mut pool, &record());
        assert_eq!(found.len(), 1, "plant {number}: {found:?}");
        assert!(found[0].starts_with("tank:/dir/small "), "{found:?}");
    }
}

#[test]
fn content_holes_names_and_objects_that_differ_are_found() {
    let plants: [(&str, Plant); 9] = [
        ("content", |p| {
            p.files.get_mut(&4).unwrap().content[2 << 20] ^= 1
        }),
        ("data ranges", |p| {
            p.files.get_mut(&4).unwrap().content.push(0)
        }),
        ("should not exist", |p| {
            p.files
                .get_mut(&34)
                .unwrap()
                .children
                .push((b"x".to_vec(), 3))
        }),
        ("stands twice", |p| {
            p.files
                .get_mut(&34)
                .unwrap()
                .children
                .push((b"dir".to_vec(), 2))
        }),
        ("is missing", |p| {
            p.files.get_mut(&2).unwrap().children.clear()
        }),
        ("is object 4", |p| {
            p.files.get_mut(&2).unwrap().children[0].1 = 4
        }),
        ("I/O error", |p| {
            p.files.get_mut(&3).unwrap().is_rotten = true
        }),
        ("content", |p| p.volume[1000] = 0),
        ("should not be listed", |p| {
            p.names.push(("tank/x".to_owned(), DatasetKind::Volume))
        }),
    ];
    for (words, plant) in plants {
        let mut pool = pool();
        plant(&mut pool);
        let found = differences(&mut pool, &record());
        assert!(
            found.iter().any(|difference| difference.contains(words)),
            "{words}: {found:?}"
        );
    }
}

#[test]
fn properties_holds_quotas_and_kinds_that_differ_are_found() {
    let plants: [(&str, Plant); 5] = [
        ("property quota", |p| p.quota = "99".to_owned()),
        ("holds", |p| p.holds.clear()),
        ("holds", |p| p.holds[0].placed_s += 60),
        ("space of Users", |p| p.space[0].quota_bytes = 1),
        ("is a Filesystem", |p| {
            p.names[1].1 = DatasetKind::Filesystem
        }),
    ];
    for (words, plant) in plants {
        let mut pool = pool();
        plant(&mut pool);
        let found = differences(&mut pool, &record());
        assert_eq!(found.len(), 1, "{words}: {found:?}");
        assert!(found[0].contains(words), "{found:?}");
    }
}

#[test]
fn a_lost_file_must_fail_with_an_io_error_and_nothing_else() {
    let mut lost = record();
    lost.lost.insert(b"dir/small".to_vec());
    let found = differences(&mut pool(), &lost);
    assert!(
        found[0].contains("although its blocks are lost"),
        "{found:?}"
    );
    let mut rotten = pool();
    rotten.files.get_mut(&3).unwrap().is_rotten = true;
    let findings = compare(&mut rotten, &lost, &Leeway::default());
    assert_eq!(findings.differences, [""; 0]);
    assert_eq!(findings.expected_errors, 1);
}

#[test]
fn a_directory_recorded_in_part_is_compared_by_its_names() {
    let mut sampled = record();
    let tree = sampled.datasets[0].tree.as_mut().unwrap();
    tree[1].sampled = Some((1, hex(&Sha256::digest(b"small"))));
    tree.remove(2);
    assert_eq!(differences(&mut pool(), &sampled), [""; 0]);
    let mut renamed = pool();
    renamed.files.get_mut(&2).unwrap().children[0].0 = b"other".to_vec();
    assert!(differences(&mut renamed, &sampled)[0].contains("other names"));
}

#[test]
fn only_paths_with_leeway_may_differ() {
    let leeway = Leeway {
        may_differ: BTreeSet::from([b"large".to_vec()]),
    };
    let mut torn = pool();
    torn.files.get_mut(&4).unwrap().attributes.size = 1;
    assert_eq!(compare(&mut torn, &record(), &leeway).differences, [""; 0]);
    torn.files.get_mut(&3).unwrap().attributes.size = 1;
    assert!(
        !compare(&mut torn, &record(), &leeway)
            .differences
            .is_empty()
    );
}

#[test]
fn differences_beyond_the_limit_are_counted() {
    let mut many = record();
    for number in 0..100 {
        let mut dataset = many.datasets[1].clone();
        dataset.name = format!("tank/missing{number}");
        many.datasets.push(dataset);
    }
    let findings = compare(&mut pool(), &many, &Leeway::default());
    assert_eq!(findings.differences.len(), DIFFERENCES_MAX);
    assert_eq!(findings.differences_count, 100);
}

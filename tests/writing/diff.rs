//! What changed between two states is what a walk over all files of both finds.

use crate::rig::Rig;
use millpond_engine::{DiffFlow, Difference, FileChange, FileKind, FileSystem, Node, Stat, View};
use millpond_tests::workload::{Life, in_order};
use std::collections::BTreeMap;
use std::sync::Arc;

const POOL: &str = "compared";

/// A file that was found by walking: its attributes and all its paths.
struct Walked {
    stat: Stat,
    paths: Vec<Vec<u8>>,
}

fn walk(files: &Arc<FileSystem>) -> BTreeMap<u64, Walked> {
    let mut found = BTreeMap::new();
    let root = files.root().unwrap();
    let mut left: Vec<(Node, Vec<u8>)> = vec![(root, vec![])];
    while let Some((node, path)) = left.pop() {
        if node.kind() == FileKind::Directory {
            for entry in node.entries().unwrap() {
                let entry = entry.unwrap();
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(&entry.name);
                left.push((files.node(entry.id).unwrap(), below));
            }
        }
        let walked = found.entry(node.id().0).or_insert_with(|| Walked {
            stat: node.stat().unwrap(),
            paths: vec![],
        });
        walked.paths.push(path);
    }
    found
}

/// What a line must say, with all names that it may have.
#[derive(Debug)]
struct Expected {
    code: char,
    paths: Vec<Vec<u8>>,
    new_paths: Vec<Vec<u8>>,
    links: i64,
    kind: FileKind,
}

fn one(code: char, walked: &Walked) -> Expected {
    Expected {
        code,
        paths: walked.paths.clone(),
        new_paths: vec![],
        links: 0,
        kind: walked.stat.kind,
    }
}

fn expected(old: &BTreeMap<u64, Walked>, new: &BTreeMap<u64, Walked>) -> Vec<Expected> {
    let mut ids: Vec<u64> = old.keys().chain(new.keys()).copied().collect();
    ids.sort_unstable();
    ids.dedup();
    let mut lines = vec![];
    for id in ids {
        match (old.get(&id), new.get(&id)) {
            (Some(before), Some(now))
                if before.stat.generation == now.stat.generation
                    && before.stat.kind == now.stat.kind =>
            {
                if before.stat.ctime == now.stat.ctime {
                    continue;
                }
                let links = match now.stat.kind {
                    FileKind::Directory => 0,
                    _ => now.stat.links as i64 - before.stat.links as i64,
                };
                // A file with several names is shown under one of them.
                let mut line = one('M', before);
                line.new_paths = now.paths.clone();
                line.links = links;
                lines.push(line);
            }
            (before, now) => {
                lines.extend(before.map(|before| one('-', before)));
                lines.extend(now.map(|now| one('+', now)));
            }
        }
    }
    lines
}

fn is_unnamed(path: &[u8]) -> bool {
    path.starts_with(b"<object")
}

fn is_same(line: &Expected, difference: &Difference) -> bool {
    // A file that has or had several links may record the directory of one that is gone.
    let may_be_unnamed = line.kind != FileKind::Directory;
    let is_of = |paths: &[Vec<u8>], path: &[u8]| {
        paths.iter().any(|one| one == path) || may_be_unnamed && is_unnamed(path)
    };
    let is_change = match &difference.change {
        FileChange::Removed => line.code == '-',
        FileChange::Created => line.code == '+',
        FileChange::Modified { links } => line.code == 'M' && *links == line.links,
        FileChange::Renamed { to } => {
            line.code == 'M'
                && line.links == 0
                && *to != difference.path
                && is_of(&line.new_paths, to)
        }
    };
    // What has one name in both states is renamed exactly if that differs.
    let is_moved = !is_unnamed(&difference.path)
        && line.paths.len() == 1
        && line.new_paths.len() == 1
        && line.paths != line.new_paths
        && line.links == 0;
    let is_renamed = matches!(difference.change, FileChange::Renamed { .. });
    is_change
        && (!is_moved || is_renamed)
        && difference.kind == line.kind
        && is_of(&line.paths, &difference.path)
}

/// Compares two states both ways of finding out. Returns the number of lines.
fn judged(view: &View, from: &str, to: &str) -> usize {
    let files = |name: &str| view.dataset(name).unwrap().file_system().unwrap();
    let (old, new) = (walk(&files(from)), walk(&files(to)));
    let mut found: Vec<Difference> = vec![];
    let each = &mut |difference| {
        found.push(difference);
        DiffFlow::Continue(())
    };
    view.diff(from, to, each).unwrap();
    // Hidden files are not met by a walk.
    let is_hidden = |path: &[u8]| path.windows(10).any(|part| part == b"<xattrdir>");
    found.retain(|difference| !is_hidden(&difference.path));
    let lines = expected(&old, &new);
    for (line, difference) in lines.iter().zip(&found) {
        assert!(
            is_same(line, difference),
            "{from} {to}: {line:?}, not {difference:?}"
        );
    }
    assert_eq!(lines.len(), found.len(), "{from} {to}");
    let unnamed = found.iter().filter(|one| is_unnamed(&one.path)).count();
    assert!(unnamed <= 2 + lines.len() / 10, "{unnamed} without a name");
    lines.len()
}

fn random(seed: u64) -> usize {
    let rig = Rig::new(1, 512);
    let pool = rig.stripe(POOL).create().unwrap();
    let mut life = Life::new(POOL, "diff", seed);
    for _ in 0..5 {
        life.steps(&pool, 50);
        let heads: Vec<String> = life.model.heads.keys().cloned().collect();
        for head in heads {
            life.snapshot(&pool, &head).unwrap();
        }
    }
    let view = pool.committed().unwrap();
    let mut count = 0;
    for pair in in_order(&life) {
        let Some(from) = pair.from else { continue };
        if view.dataset(&from).unwrap().has_files().unwrap() {
            count += judged(&view, &from, &pair.name);
        }
    }
    // Over many snapshots, up to the current content.
    for (head, state) in &life.model.heads {
        let Some(first) = state.snapshots.first() else {
            continue;
        };
        if view.dataset(head).unwrap().has_files().unwrap() {
            count += judged(&view, &format!("{head}@{}", first.name), head);
        }
    }
    count
}

#[test]
fn differences_are_those_of_a_walk_over_all_files() {
    let count: usize = [11, 12, 13, 14].into_iter().map(random).sum();
    assert!(count > 400, "{count} lines");
}

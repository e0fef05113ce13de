use crate::rig::Rig;
use crate::{Steps, size};
use millpond_engine::{Caller, FileSystem, NewMode, Node, Pool};
use std::collections::HashSet;
use std::sync::Arc;

fn name(number: u64) -> Vec<u8> {
    format!("entry number {number:07}").into_bytes()
}

fn list(directory: &Node) -> u64 {
    let (mut cookie, mut seen) = (0, HashSet::new());
    loop {
        let page = directory.list(cookie, 1000).unwrap();
        let Some(last) = page.last() else { break };
        cookie = last.cookie;
        for entry in page {
            assert!(seen.insert(entry.entry.name), "listed twice");
        }
    }
    seen.len() as u64 - 2
}

fn open(pool: &Pool) -> (Arc<FileSystem>, Node) {
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    (files, root)
}

#[test]
fn a_directory_holds_very_many_files() {
    let count = size(4000, 1_000_000);
    let rig = Rig::new(1, size(128, 3072));
    let mut steps = Steps::new(&format!("{count} files in one directory"));
    let pool = rig.stripe("tank").create().unwrap();
    let (files, root) = open(&pool);
    for number in 0..count {
        let mode = NewMode::exactly(0o644);
        files
            .create(&Caller::root(), &root, &name(number), mode, true)
            .unwrap();
    }
    pool.sync().unwrap();
    steps.done("create");
    drop((files, root));
    pool.export().unwrap();

    let pool = rig.open("tank");
    let (files, root) = open(&pool);
    steps.done("export, open");
    assert_eq!(list(&root), count);
    steps.done("list");
    for number in 0..count {
        // In a different order than they were created.
        let number = number * 7919 % count;
        assert_eq!(root.lookup(&name(number)).unwrap().size_bytes(), 0);
    }
    steps.done("look up each");
    for number in 0..count {
        files.unlink(&root, &name(number)).unwrap();
    }
    pool.sync().unwrap();
    steps.done("unlink each");
    assert_eq!(list(&root), 0);
    drop((files, root));
    pool.export().unwrap();
    rig.judge("tank");
}

#[test]
fn a_tree_may_be_deep_and_wide() {
    // Chains of directories, each with files in it.
    let (chains, depth, files_each) = (size(4, 100), size(20, 500), size(5, 19));
    let rig = Rig::new(1, size(128, 3072));
    let all = chains * depth * (files_each + 1);
    let mut steps = Steps::new(&format!("a tree of {all}, {depth} deep"));
    let pool = rig.stripe("tank").create().unwrap();
    let (files, root) = open(&pool);
    let (caller, mode) = (Caller::root(), NewMode::exactly(0o755));
    for chain in 0..chains {
        let mut at = root.clone();
        for level in 0..depth {
            let directory = name(if level == 0 { chain } else { level });
            at = files
                .make_directory(&caller, &at, &directory, mode)
                .unwrap();
            for number in 0..files_each {
                let name = format!("f{number}");
                files
                    .create(&caller, &at, name.as_bytes(), mode, true)
                    .unwrap();
            }
        }
    }
    pool.sync().unwrap();
    steps.done("create");
    drop((files, root));
    pool.export().unwrap();

    let pool = rig.open("tank");
    let (files, root) = open(&pool);
    let mut seen = 0;
    let mut paths = vec![];
    for chain in 0..chains {
        let mut at = root.clone();
        let mut path = vec![];
        for level in 0..depth {
            let directory = name(if level == 0 { chain } else { level });
            at = at.lookup(&directory).unwrap();
            seen += 1 + list(&at) - u64::from(level + 1 < depth);
            path.push(at.clone());
        }
        paths.push(path);
    }
    assert_eq!(seen, all);
    steps.done("open, walk");
    for (chain, path) in (0..).zip(paths) {
        for (level, at) in path.iter().enumerate().rev() {
            for number in 0..files_each {
                files.unlink(at, format!("f{number}").as_bytes()).unwrap();
            }
            let above = level.checked_sub(1).map_or(&root, |above| &path[above]);
            let directory = name(if level == 0 { chain } else { level as u64 });
            files.remove_directory(above, &directory).unwrap();
        }
    }
    pool.sync().unwrap();
    steps.done("remove all");
    assert_eq!(list(&root), 0);
    drop((files, root));
    pool.export().unwrap();
    rig.judge("tank");
}

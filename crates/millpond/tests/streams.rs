//! Snapshots travel from one pool to another.
#![allow(clippy::unwrap_used)]

use millpond::{ErrorKind, OpenOptions, Pool, PoolBuilder};
use std::path::Path;

fn make(folder: &Path, name: &str) -> Pool {
    let image = folder.join(name);
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(128 << 20).unwrap();
    PoolBuilder::new(name).single(image).create().unwrap()
}

#[test]
fn a_snapshot_and_its_changes_are_sent_and_received() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (make(folder.path(), "from"), make(folder.path(), "to"));
    let home = from.create_file_system("from/home").create().unwrap();
    home.write("note", "first").unwrap();
    from.snapshot(["from/home@1"]).unwrap();
    home.write("note", "second").unwrap();
    from.snapshot(["from/home@2"]).unwrap();
    drop(home);
    let (mut full, mut more) = (vec![], vec![]);
    let length = from.send("from/home@1", None, &mut full).unwrap();
    assert_eq!(length, full.len() as u64);
    from.send("from/home@2", Some("from/home@1"), &mut more)
        .unwrap();
    let missing = to.receive("to/home", &more[..]).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(to.receive("to/home", &full[..]).unwrap(), ["to/home@1"]);
    let exists = to.receive("to/home", &full[..]).unwrap_err();
    assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
    let files = to.file_system("to/home").unwrap();
    assert_eq!(files.read("note").unwrap(), b"first");
    let busy = to.receive("to/home", &more[..]).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    drop(files);
    let cut = to.receive("to/home", &more[..more.len() / 2]).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::InvalidInput);
    assert_eq!(to.receive("to/home", &more[..]).unwrap(), ["to/home@2"]);
    assert_eq!(
        to.file_system("to/home").unwrap().read("note").unwrap(),
        b"second"
    );
    assert_eq!(
        to.file_system("to/home@1").unwrap().read("note").unwrap(),
        b"first"
    );
    to.export().unwrap();
    // A pool that is open for reading sends too, and takes nothing.
    let read = OpenOptions::new().search(folder.path()).open("to").unwrap();
    let mut again = vec![];
    read.send("to/home@2", Some("to/home@1"), &mut again)
        .unwrap();
    assert_eq!(again.len(), more.len());
    let refused = read.receive("to/other", &full[..]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
}

//! Packages of whole trees, plain and raw, and redacted streams: those of the kernel module are received here, and the
//! module receives ours.

use crate::cloning::file;
use crate::encryption::{HEX, fill, prose, root};
use crate::{Rig, run_script};
use millpond_engine::{
    Caller, DestroyOptions, KeyFormat, PackageOptions, Pool, PoolBuilder, ReceiveRequest,
    SendFlags, SendRequest, Unwatched, WriteAt,
};
use millpond_sim::noise;
use millpond_tests::oracle::kernel::{self, Release};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

const FROM: &str = "modtrees";
const TO: &str = "ourtrees";

const RAW: SendFlags = SendFlags {
    large_blocks: true,
    embedded: true,
    compressed: true,
    raw: true,
};

fn receive(pool: &Pool, share: &Path, file: &str, name: &str) {
    let request = ReceiveRequest {
        name: name.to_owned(),
        is_forced: true,
        ..ReceiveRequest::default()
    };
    let input = BufReader::new(File::open(share.join(file)).unwrap());
    let outcome = pool.receive(&request, input, &mut Unwatched);
    assert_eq!(outcome.failure, None, "{file}");
}

/// Our packages, and what is known of them.
struct Sender<'a> {
    pool: &'a Pool,
    share: &'a Path,
    /// A line for each package: file, dataset.
    list: String,
}

impl Sender<'_> {
    fn snapshot(&self, top: &str, snapshot: &str) {
        let names = self.pool.datasets().names_below(top).unwrap();
        let full: Vec<String> = (names.iter())
            .map(|name| format!("{name}@{snapshot}"))
            .collect();
        let full: Vec<&str> = full.iter().map(String::as_str).collect();
        self.pool.datasets().snapshot(&full, &[]).unwrap();
    }

    fn send(&mut self, tree: &str, from: Option<&str>, to: &str, flags: SendFlags) {
        let top = format!("{TO}/{tree}");
        let request = SendRequest {
            name: format!("{top}@{to}"),
            from: from.map(|from| format!("{top}@{from}")),
            has_between: from.is_some(),
            package: PackageOptions {
                is_recursive: true,
                ..PackageOptions::default()
            },
            flags,
            ..SendRequest::default()
        };
        let file = format!("back-{tree}-{to}");
        let output = BufWriter::new(File::create(self.share.join(&file)).unwrap());
        self.pool.send(&request, output).unwrap();
        writeln!(self.list, "{file}\t{tree}").unwrap();
    }

    /// A dataset without what its clone has changed, and the clone.
    fn redacted(&mut self) {
        let (pool, datasets) = (self.pool, self.pool.datasets());
        let own = |name: &str| format!("{TO}/{name}");
        datasets.create_filesystem(&own("own-base"), &[]).unwrap();
        fill(&pool.file_system(&own("own-base")).unwrap(), 40);
        self.snapshot(&own("own-base"), "1");
        (datasets.clone_snapshot(&own("own-base@1"), &own("own-mask"), &[])).unwrap();
        let files = pool.file_system(&own("own-mask")).unwrap();
        let (root, caller) = (files.root().unwrap(), Caller::root());
        let node = root.lookup(b"noise").unwrap();
        (files.write(&caller, &node, WriteAt::Offset(150_000), &[0; 50_000])).unwrap();
        files.unlink(&root, b"prose").unwrap();
        drop((node, root, files));
        self.snapshot(&own("own-mask"), "1");
        let (base, bookmark) = (own("own-base@1"), own("own-base#book"));
        pool.redact(&base, &bookmark, &[own("own-mask@1")]).unwrap();
        let redacted = SendRequest {
            name: base.clone(),
            redaction: Some(bookmark),
            ..SendRequest::default()
        };
        let mask = SendRequest {
            name: own("own-mask@1"),
            from: Some(base),
            ..SendRequest::default()
        };
        for (request, dataset) in [(redacted, "own-base"), (mask, "own-mask")] {
            let file = format!("back-{dataset}");
            let output = BufWriter::new(File::create(self.share.join(&file)).unwrap());
            self.pool.send(&request, output).unwrap();
            writeln!(self.list, "{file}\t{dataset}").unwrap();
        }
    }

    /// Datasets with three snapshots. Between them some are cloned, promoted, renamed, destroyed and made.
    fn history(&mut self, tree: &str, flags: SendFlags) {
        let (pool, datasets) = (self.pool, self.pool.datasets());
        let top = format!("{TO}/{tree}");
        let own = |name: &str| format!("{top}/{name}");
        let refill = |name: &str, seed| {
            let files = pool.file_system(name).unwrap();
            let (root, caller) = (files.root().unwrap(), Caller::root());
            for old in ["prose", "attributes"] {
                files.unlink(&root, old.as_bytes()).unwrap();
            }
            let noise = noise(seed, 90_000);
            file(&files, "attributes", &noise);
            let node = root.lookup(b"noise").unwrap();
            (files.write(&caller, &node, WriteAt::Offset(100_000), &noise)).unwrap();
            file(&files, "prose", &prose(seed, 200_000));
        };
        fill(&pool.file_system(&top).unwrap(), 1);
        for (seed, name) in (2..).zip(["x", "x/deep", "gone"]) {
            datasets.create_filesystem(&own(name), &[]).unwrap();
            fill(&pool.file_system(&own(name)).unwrap(), seed);
        }
        self.snapshot(&top, "1");
        self.send(tree, None, "1", flags);
        datasets
            .clone_snapshot(&own("x@1"), &own("clone"), &[])
            .unwrap();
        refill(&own("clone"), 10);
        refill(&own("x/deep"), 11);
        self.snapshot(&top, "2");
        self.send(tree, Some("1"), "2", flags);
        datasets.promote(&own("clone")).unwrap();
        datasets.rename(&own("x"), &own("y")).unwrap();
        datasets.rename(&own("y/deep"), &own("up")).unwrap();
        for name in ["gone@1", "gone@2", "gone"] {
            datasets
                .destroy(&own(name), DestroyOptions::default())
                .unwrap();
        }
        datasets.create_filesystem(&own("new"), &[]).unwrap();
        fill(&pool.file_system(&own("new")).unwrap(), 20);
        for (seed, name) in (21..).zip(["y", "up", "clone"]) {
            refill(&own(name), seed);
        }
        self.snapshot(&top, "3");
        self.send(tree, Some("2"), "3", flags);
    }
}

fn exchanged(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(2, 512);
    let share = tempfile::tempdir().unwrap();
    let trees = ["trees", FROM, "vda", HEX];
    run_script(release, &rig, "streams", Some(share.path()), &trees);
    let pool = PoolBuilder::new(TO)
        .single(&rig.images[1])
        .create()
        .unwrap();
    for tree in ["plain", "secret"] {
        for number in 1..=3 {
            let file = format!("{tree}-{number}");
            receive(&pool, share.path(), &file, &format!("{TO}/{tree}"));
        }
    }
    let secret = format!("{TO}/own-secret");
    root(&pool, &secret, "aes-128-ccm", KeyFormat::Hex, &[]);
    let datasets = pool.datasets();
    let plain = format!("{TO}/own-plain");
    datasets.create_filesystem(&plain, &[]).unwrap();
    let mut sender = Sender {
        pool: &pool,
        share: share.path(),
        list: String::new(),
    };
    receive(&pool, share.path(), "redacted", &format!("{TO}/base"));
    receive(&pool, share.path(), "mask", &format!("{TO}/mask"));
    sender.redacted();
    sender.history("own-plain", SendFlags::default());
    sender.history("own-secret", RAW);
    std::fs::write(share.path().join("back.txt"), sender.list).unwrap();
    pool.export().unwrap();
    rig.judge(TO);
    let judge = ["judge-trees", FROM, TO];
    run_script(release, &rig, "streams", Some(share.path()), &judge);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn packages_are_exchanged_with_2_3() {
    exchanged(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn packages_are_exchanged_with_2_4() {
    exchanged(Release::V2_4);
}

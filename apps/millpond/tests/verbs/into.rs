//! Commands that change pools. zdb checks the result; the reader reads it back for comparison.

use crate::golden::{sha256, text};
use crate::host_tree::{compare, make};
use millpond_sim::noise;
use millpond_tests::oracle::zdb;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

pub struct WorkFolder {
    folder: TempDir,
}

impl WorkFolder {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("images")).unwrap();
        Self { folder }
    }
    pub fn images(&self) -> PathBuf {
        self.folder.path().join("images")
    }
    pub fn image(&self, name: &str) -> String {
        self.images().join(name).to_str().unwrap().to_owned()
    }
    /// Makes an empty image. Returns its path.
    pub fn empty_image(&self, name: &str, mib: u64) -> String {
        let image = self.image(name);
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(mib << 20).unwrap();
        image
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    pub fn run<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Output {
        run(&self.images(), words, &[])
    }
    pub fn well<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout)
    }
    pub fn judge(&self, pool: &str) {
        zdb::judge(&self.images(), pool).unwrap().require(pool);
    }
    /// Copies out of a pool and compares the copy with a tree.
    pub fn compare_out(&self, address: &str, with: &Path) -> usize {
        let out = self.path("out");
        let _ = std::fs::remove_dir_all(&out);
        self.well(["cp", "--trusted", "-a", address, out.to_str().unwrap()]);
        compare(with, &out)
    }
}

fn run<W: AsRef<OsStr>>(
    folder: &Path,
    words: impl IntoIterator<Item = W>,
    variables: &[(&str, &str)],
) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    command.arg("-d").arg(folder).args(words);
    command.envs(variables.iter().copied());
    command.env("TZ", "UTC").env_remove("MILLPOND_SEARCH");
    command.stdin(Stdio::null()).output().unwrap()
}

fn tree(place: &WorkFolder) -> PathBuf {
    let tree = place.path("tree");
    make(&tree);
    tree
}

#[test]
fn an_image_made_from_a_tree_holds_the_tree() {
    let place = WorkFolder::new();
    let tree = tree(&place);
    let images = [place.image("a.img"), place.image("b.img")];
    let mut words = vec![
        "mkimage",
        "-n",
        "tank",
        "--snapshot",
        "made",
        "-O",
        "acltype=posix",
    ];
    words.extend(["--dataset", "home/one", "--compression", "zstd"]);
    words.push(tree.to_str().unwrap());
    words.extend(images.iter().map(String::as_str));
    let message = place.well(words);
    assert!(message.contains("(mirror)"), "{message}");
    place.judge("tank");
    assert!(place.compare_out("tank:/", &tree) > 300);
    place.compare_out("tank@made:/", &tree);
    let list = place.well(["zfs", "list", "-H", "-o", "name", "-t", "all"]);
    let names: Vec<&str> = list.lines().collect();
    let expected = [
        "tank",
        "tank@made",
        "tank/home",
        "tank/home@made",
        "tank/home/one",
        "tank/home/one@made",
    ];
    assert_eq!(names, expected);
    // Existing images are not overwritten by mistake.
    let again = place.run(["mkimage", tree.to_str().unwrap(), images[0].as_str()]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("-f replaces it"));
    place.compare_out("tank:/", &tree);
}

/// Seed, directory name, environment variables.
type Case = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

#[test]
fn equal_trees_and_seeds_make_equal_images() {
    let place = WorkFolder::new();
    let tree = tree(&place);
    let mut digests = vec![];
    let cases: [Case; 4] = [
        ("7", "x", &[]),
        ("7", "y", &[]),
        ("8", "x", &[]),
        ("7", "x", &[("SOURCE_DATE_EPOCH", "1700000000")]),
    ];
    for (case, (seed, name, variables)) in cases.into_iter().enumerate() {
        let folder = place.path(&format!("case{case}"));
        std::fs::create_dir(&folder).unwrap();
        let images: Vec<PathBuf> = (0..3)
            .map(|at| folder.join(format!("{name}{at}")))
            .collect();
        let options = ["mkimage", "-n", "tank", "--seed", seed, "--snapshot", "s"];
        let mut words: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        words.push(tree.as_os_str());
        words.extend(images.iter().map(|image| image.as_os_str()));
        let output = run(&folder, words, variables);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let digest: Vec<_> = images
            .iter()
            .map(|image| sha256(&std::fs::read(image).unwrap()))
            .collect();
        digests.push(digest);
        if case < 1 {
            zdb::judge(&folder, "tank").unwrap().require("tank");
            let out = place.path("out");
            let address = "tank:/";
            let words = ["cp", "--trusted", "-a", address, out.to_str().unwrap()];
            let output = run(&folder, words, &[]);
            assert!(output.status.success(), "{}", text(&output.stderr));
            compare(&tree, &out);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
    assert_ne!(digests[0], digests[3]);
}

#[test]
fn an_archive_becomes_a_pool() {
    let place = WorkFolder::new();
    let tree = tree(&place);
    // Archives cannot contain sockets.
    std::fs::remove_file(tree.join("socket")).unwrap();
    // The archive reader does not support values and names with newlines.
    let name: std::ffi::OsString =
        std::os::unix::ffi::OsStringExt::from_vec(b"b\xe4d\nname".to_vec());
    std::fs::remove_file(tree.join(name)).unwrap();
    let _ = rustix::fs::lremovexattr(tree.join("file4"), "user.large");
    let archive = place.path("tree.tar");
    let made = Command::new("tar")
        .args(["--format=pax", "--xattrs", "--sort=name", "-cf"])
        .arg(&archive)
        .args(["-C", tree.to_str().unwrap(), "."])
        .status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("no tar here that makes pax archives: not tried");
        return;
    }
    let words = [
        "mkimage",
        "-n",
        "tank",
        archive.to_str().unwrap(),
        &place.image("a.img"),
    ];
    place.well(words);
    place.judge("tank");
    assert!(place.compare_out("tank:/", &tree) > 300);
    std::fs::remove_file(place.image("a.img")).unwrap();

    let words = ["mkimage", "-n", "tank", "-", &place.image("a.img")];
    let without_size = place.run(words);
    assert_eq!(
        without_size.status.code(),
        Some(2),
        "{}",
        text(&without_size.stderr)
    );
    let mut gnu = Command::new("tar")
        .args(["--format=gnu", "--sparse", "-cf", "-"])
        .args(["-C", tree.to_str().unwrap(), "."])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(["mkimage", "-q", "-n", "tank", "--size", "512M", "-"])
        .arg(place.image("a.img"))
        .stdin(gnu.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(gnu.wait().unwrap().success());
    assert!(output.status.success(), "{}", text(&output.stderr));
    place.judge("tank");
    let out = place.path("out");
    std::fs::remove_dir_all(&out).unwrap();
    place.well(["cp", "--trusted", "-a", "tank:/", out.to_str().unwrap()]);
    let read = |path: &Path| std::fs::read(path).unwrap();
    assert!(read(&out.join("sparse")) == read(&tree.join("sparse")));
    assert!(read(&out.join("deep/also file9")) == read(&tree.join("file9")));
}

#[test]
fn a_tree_copied_from_pool_to_pool_stays_equal() {
    let place = WorkFolder::new();
    let tree = tree(&place);
    let empty = place.path("nothing");
    std::fs::create_dir(&empty).unwrap();
    let (tree_text, empty_text) = (tree.to_str().unwrap(), empty.to_str().unwrap());
    for pool in ["one", "two"] {
        let image = place.image(&format!("{pool}.img"));
        let words = [
            "mkimage",
            "-O",
            "acltype=posix",
            "--dataset",
            "data",
            "--size",
            "512M",
        ];
        place.well(
            words
                .iter()
                .copied()
                .chain(["--snapshot", "begin", empty_text, &image]),
        );
    }
    place.well(["cp", "-a", tree_text, "one/data:/copy"]);
    place.compare_out("one/data:/copy", &tree);
    // If the destination exists, the tree goes into it under its own name. With `/.`, its content goes
    // there directly.
    place.well(["cp", "-a", tree_text, "one/data:/copy/"]);
    place.compare_out("one/data:/copy/tree", &tree);
    place.well(["rm", "-r", "one/data:/copy/tree"]);
    place.well(["cp", "-a", &format!("{tree_text}/."), "one/data:/copy"]);
    place.compare_out("one/data:/copy", &tree);
    place.well(["cp", "-a", "one/data:/copy", "two/data:/"]);
    place.compare_out("two/data:/copy", &tree);
    // Within one pool: from a live dataset, and from a snapshot.
    place.well(["cp", "-a", "one/data:/copy", "one:/live"]);
    place.compare_out("one:/live", &tree);
    place.well(["cp", "-a", "two/data@begin:/", "two:/past"]);
    assert_eq!(place.well(["ls", "two:/past"]), "");
    for pool in ["one", "two"] {
        place.judge(pool);
    }
}

#[test]
fn files_are_made_moved_linked_changed_and_removed() {
    let place = WorkFolder::new();
    let empty = place.path("nothing");
    std::fs::create_dir(&empty).unwrap();
    let image = place.image("tank.img");
    place.well(["mkimage", "--size", "256M", empty.to_str().unwrap(), &image]);
    place.well(["mkdir", "-p", "-m", "750", "tank:/a/b/c", "tank:/a/b"]);
    let note = place.path("note");
    std::fs::write(&note, noise(3, 200_000)).unwrap();
    place.well(["cp", note.to_str().unwrap(), "tank:/a/b/c/"]);
    place.well(["ln", "tank:/a/b/c/note", "tank:/second"]);
    place.well(["ln", "-s", "a/b/c", "tank:/way"]);
    place.well(["mv", "tank:/a/b/c/note", "tank:/way/named"]);
    place.well(["touch", "-d", "1234.5", "tank:/second", "tank:/new"]);
    place.well(["chmod", "604", "tank:/second"]);
    place.well(["chown", "-R", "12:34", "tank:/a"]);
    let stat = place.well(["--json", "stat", "tank:/a/b/c/named"]);
    let stat: serde_json::Value = serde_json::from_str(stat.lines().next().unwrap()).unwrap();
    let shown = stat.to_string();
    assert!(shown.contains("\"nlink\":2"), "{shown}");
    let listed = place.well([
        "ls",
        "-l",
        "-n",
        "--full-time",
        "tank:/a/b/c",
        "tank:/second",
    ]);
    assert!(listed.contains("-rw----r--"), "{listed}");
    assert!(listed.contains("12") && listed.contains("34"), "{listed}");
    let cat = place.run(["cat", "tank:/way/named"]);
    assert!(cat.stdout == noise(3, 200_000));
    assert_eq!(
        place.well(["ls", "tank:/"]).lines().collect::<Vec<_>>(),
        ["a", "new", "second", "way"]
    );

    for (words, reason) in [
        (vec!["mkdir", "tank:/a"], "file exists"),
        (vec!["mkdir", "tank:/no/where"], "no such file"),
        (vec!["rm", "tank:/a"], "is a directory"),
        (vec!["rm", "tank:/none"], "no such file"),
        (vec!["mv", "tank:/a", "tank:/a/b/c/d"], "invalid argument"),
        (vec!["mv", "tank:/a", "tank/x:/a"], "within one dataset"),
        (vec!["ln", "tank:/a", "tank:/b"], "not permitted"),
        (vec!["touch", "tank/x:/a"], "tank/x"),
        (vec!["touch", "none:/a"], "no such pool"),
        (vec!["touch", "tank@s:/a"], "snapshot"),
    ] {
        let output = place.run(words.clone());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let message = text(&output.stderr);
        assert!(message.contains(reason), "{words:?}: {message}");
    }
    place.well(["rm", "-f", "tank:/none"]);
    place.well(["rm", "-r", "tank:/a", "tank:/way"]);
    assert_eq!(
        place.well(["ls", "tank:/"]).lines().collect::<Vec<_>>(),
        ["new", "second"]
    );
    place.judge("tank");
}

#[test]
fn a_full_pool_and_a_used_up_quota_end_a_copy_with_their_names() {
    let place = WorkFolder::new();
    let tree = place.path("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 0..40 {
        let content = noise(number, 3 << 20);
        std::fs::write(tree.join(format!("f{number}")), content).unwrap();
    }
    let image = place.image("small.img");
    let words = ["mkimage", "--size", "80M", tree.to_str().unwrap(), &image];
    let output = place.run(words);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(
        message.contains("no space is left") && message.contains("--size"),
        "{message}"
    );
    // No partial files remain.
    assert!(!Path::new(&image).exists());

    let empty = place.path("nothing");
    std::fs::create_dir(&empty).unwrap();
    let words = ["mkimage", "--size", "80M", empty.to_str().unwrap(), &image];
    place.well(words);
    let output = place.run(["cp", "-r", tree.to_str().unwrap(), "small:/"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("no space is left"),
        "{}",
        text(&output.stderr)
    );
    // The pool is consistent, the copies are complete, and removing files frees space.
    place.judge("small");
    place.well(["verify", "-q", "small"]);
    place.well(["rm", "-r", "small:/tree"]);
    place.well(["cp", tree.join("f1").to_str().unwrap(), "small:/"]);
    assert!(place.run(["cat", "small:/f1"]).stdout == noise(1, 3 << 20));
    place.judge("small");

    let image = place.image("quota.img");
    let words = [
        "mkimage",
        "--size",
        "512M",
        "-O",
        "quota=20M",
        tree.to_str().unwrap(),
        &image,
    ];
    let output = place.run(words);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("quota"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_pool_of_version_28_takes_files() {
    // The unpacked images are shared, so a copy is changed.
    let case = crate::golden::case("legacy-v28");
    let place = WorkFolder::new();
    for (number, disk) in case.disks.paths.iter().enumerate() {
        let copy = place.images().join(format!("disk{number}.img"));
        millpond_tests::images::copy_sparse(disk, &copy).unwrap();
    }
    place.well(["touch", "plegacy-v28:/x"]);
    assert!(place.well(["ls", "plegacy-v28:/"]).contains("x\n"));
    let version = place.well([
        "zpool",
        "get",
        "-H",
        "-o",
        "value",
        "version",
        "plegacy-v28",
    ]);
    assert_eq!(version, "28\n");
    place.judge("plegacy-v28");
}

#[test]
fn a_volume_takes_the_bytes_of_a_file_and_zeros_for_its_holes() {
    use millpond_dataset::properties::PropertyValue;
    use millpond_engine::PoolBuilder;
    let place = WorkFolder::new();
    let image = place.images().join("tank.img");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(256 << 20).unwrap();
    let pool = PoolBuilder::new("tank").single(&image).create().unwrap();
    let size = [("volsize".to_owned(), PropertyValue::Number(16 << 20))];
    pool.datasets().create_volume("tank/disk", &size).unwrap();
    pool.volume("tank/disk")
        .unwrap()
        .write(0, &noise(1, 16 << 20))
        .unwrap();
    pool.export().unwrap();
    let source = place.path("source");
    let file = std::fs::File::create(&source).unwrap();
    file.set_len(9_000_001).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &noise(2, 100_001), 8_900_000).unwrap();
    place.well(["cp", source.to_str().unwrap(), "tank/disk:"]);
    let mut expected = std::fs::read(&source).unwrap();
    expected.extend_from_slice(&noise(1, 16 << 20)[9_000_001..]);
    assert!(place.run(["cat", "tank/disk"]).stdout == expected);
    place.judge("tank");
    file.set_len((16 << 20) + 1).unwrap();
    let output = place.run(["cp", source.to_str().unwrap(), "tank/disk:"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("16777216"));
}

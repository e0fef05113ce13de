//! The cache files that a daemon writes: what they list, and what happens if they cannot be written.

use super::*;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// The daemon starts with the lines of its log at hand.
fn start_with_log(stage: &Stage) -> (Arc<Daemon>, Arc<Mutex<Vec<String>, rank::Leaf>>) {
    let lines: Arc<Mutex<Vec<String>, rank::Leaf>> = Arc::default();
    let noted = Arc::clone(&lines);
    let log = Box::new(move |line: &millpond_daemon::Line| noted.lock().push(line.to_string()));
    let mounter = Box::new(stage.mounter.clone());
    let daemon = Daemon::start(&Env::real(), &stage.dirs("state"), mounter, log);
    (daemon.unwrap(), lines)
}

fn pipe(folder: &Path) -> PathBuf {
    let path = folder.join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
    path
}

fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).unwrap().file_type().is_fifo()
}

fn only_pool(asked: &Client, name: &str) -> u64 {
    assert_eq!(asked.pools().unwrap(), [name]);
    asked.pool(name).unwrap().guid
}

/// A pool whose disk is away keeps its place in the cache file beside a new pool of its name.
#[test]
fn pools_of_one_name_are_both_noted() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("tank", "a"), "").unwrap();
    let lost = only_pool(&asked, "tank");
    drop(asked);
    gone(daemon);
    let (image, away) = (stage.image("a"), stage.folder.path().join("away"));
    std::fs::rename(&image, &away).unwrap();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("tank", "b"), "").unwrap();
    let live = only_pool(&asked, "tank");
    assert_ne!(live, lost);
    drop(asked);
    gone(daemon);
    // The one that was in use has the name, also when the other one is back.
    for is_back in [false, true] {
        if is_back {
            std::fs::rename(&away, &image).unwrap();
        }
        let daemon = stage.start("state");
        let asked = client(&daemon, 0);
        assert_eq!(only_pool(&asked, "tank"), live, "{is_back}");
        // Any change writes the file again.
        asked.change("tank", &[create("tank/x")], "").unwrap();
        let destroyed = DatasetChange::Destroy {
            name: "tank/x".into(),
        };
        let change = PoolChange::Dataset(destroyed);
        asked.change("tank", &[change], "").unwrap();
        drop(asked);
        gone(daemon);
    }
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    assert_eq!(only_pool(&asked, "tank"), live);
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    drop(asked);
    gone(daemon);
    let daemon = stage.start("state");
    assert_eq!(only_pool(&client(&daemon, 0), "tank"), lost);
}

#[test]
fn a_pipe_is_no_cache_file() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    let pipe = pipe(stage.folder.path());
    let named = pipe.to_string_lossy().into_owned();
    let search = Where {
        paths: vec![],
        cache_file: Some(named.clone()),
    };
    match asked.importable(&search) {
        Err(ImportError::CacheFile(text)) => {
            assert!(text.contains(&named), "{text}");
            assert!(text.contains("not a regular file"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    // Neither is it written to, nor replaced.
    let mut request = stage.request("tank", "a");
    request.properties = vec![("cachefile".into(), named.clone())];
    let made = asked.create_pool(&request, "").unwrap();
    assert!(
        matches!(&made.notes[..], [Note::CacheFile { path, .. }] if *path == named),
        "{:?}",
        made.notes
    );
    assert!(is_pipe(&pipe));
}

/// The pool is created and changed. The caller and the log are told once, and the file is written when that is possible.
#[test]
fn a_cache_file_that_cannot_be_written_is_told() {
    let stage = Stage::new();
    let (daemon, lines) = start_with_log(&stage);
    let asked = client(&daemon, 0);
    let file = stage.folder.path().join("missing/cache");
    let named = file.to_string_lossy().into_owned();
    let mut request = stage.request("tank", "a");
    request.properties = vec![("cachefile".into(), named.clone())];
    let made = asked.create_pool(&request, "").unwrap();
    let [Note::CacheFile { path, why }] = &made.notes[..] else {
        panic!("{:?}", made.notes);
    };
    assert_eq!(*path, named);
    assert!(why.contains(&named), "{why}");
    let told = || {
        let lines = lines.lock();
        lines.iter().filter(|line| line.contains(&named)).count()
    };
    assert_eq!(told(), 1);
    let changed = asked.change("tank", &[create("tank/x")], "").unwrap();
    assert_eq!(changed.notes, []);
    assert_eq!(told(), 1);
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    asked.change("tank", &[create("tank/y")], "").unwrap();
    assert!(std::fs::metadata(&file).unwrap().len() > 0);
    // A later failure is a new one.
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    let changed = asked.change("tank", &[create("tank/z")], "").unwrap();
    assert!(matches!(&changed.notes[..], [Note::CacheFile { .. }]));
    assert_eq!(told(), 2);
}

//! `zpool import -c`: the cache file says where to look, the labels say what the pool is.

use super::*;
use millpond_control::{NewSide, VdevInfo, VdevKind};

/// A pool, and the cache file from when it was created.
struct Noted {
    stage: Stage,
    _daemon: Arc<Daemon>,
    asked: Client,
    old: PathBuf,
}

impl Noted {
    fn new(layout: NewLayout, images: &[&str]) -> Self {
        let stage = Stage::new();
        let daemon = stage.start("state");
        let asked = client(&daemon, 0);
        let mut request = stage.request("tank", images[0]);
        let top = &mut request.devices.tops[0];
        top.layout = layout;
        top.paths = images.iter().map(|name| stage.image(name)).collect();
        let written = stage.folder.path().join("cache");
        request.properties = vec![("cachefile".into(), written.to_string_lossy().into_owned())];
        asked.create_pool(&request, "zpool create tank").unwrap();
        let old = stage.folder.path().join("old.cache");
        std::fs::copy(&written, &old).unwrap();
        Self {
            stage,
            _daemon: daemon,
            asked,
            old,
        }
    }

    fn change(&self, change: PoolChange) {
        self.asked.change("tank", &[change], "zpool").unwrap();
    }

    fn root(&self) -> VdevInfo {
        self.asked.pool("tank").unwrap().root
    }

    fn guid(&self, name: &str) -> u64 {
        let path = self.stage.image(name);
        leaves(&self.root())
            .into_iter()
            .find(|leaf| leaf.path.as_ref() == Some(&path))
            .unwrap()
            .guid
    }

    fn search(&self) -> Where {
        Where {
            paths: vec![],
            cache_file: Some(self.old.to_string_lossy().into_owned()),
        }
    }

    /// Exports the pool, lets `meanwhile` change its files, and imports it from the old cache file.
    fn import_again(&self, meanwhile: impl FnOnce(&Path)) -> VdevInfo {
        self.change(PoolChange::Export);
        meanwhile(self.stage.folder.path());
        let listed = self.asked.importable(&self.search()).unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].info.root.state, VdevState::Healthy);
        let request = ImportRequest {
            search: self.search(),
            ..self.stage.import("tank")
        };
        self.asked.import(&request, "zpool import -c").unwrap();
        self.root()
    }
}

fn leaves(vdev: &VdevInfo) -> Vec<&VdevInfo> {
    match vdev.children.is_empty() {
        true => vec![vdev],
        false => vdev.children.iter().flat_map(leaves).collect(),
    }
}

/// The names of the files in the order of the tree. Each must be in use.
fn names(root: &VdevInfo) -> Vec<String> {
    let name = |leaf: &VdevInfo| {
        assert_eq!(leaf.state, VdevState::Healthy);
        let path = PathBuf::from(leaf.path.clone().unwrap());
        path.file_name().unwrap().to_string_lossy().into_owned()
    };
    leaves(root).into_iter().map(name).collect()
}

#[test]
fn a_mirror_that_lost_a_side_since_is_imported_without_it() {
    let noted = Noted::new(NewLayout::Mirror, &["a", "b"]);
    noted.change(PoolChange::Detach {
        leaf: noted.guid("b"),
    });
    let root = noted.import_again(|folder| std::fs::remove_file(folder.join("b")).unwrap());
    assert_eq!(names(&root), ["a"]);
    assert_eq!(root.children[0].kind, VdevKind::File);
}

#[test]
fn devices_that_came_since_are_found() {
    let noted = Noted::new(NewLayout::Single, &["a"]);
    noted.change(PoolChange::Attach(NewSide {
        old: noted.guid("a"),
        path: noted.stage.image("b"),
        is_replacement: false,
        may_take_used: false,
        is_sequential: false,
    }));
    noted.change(PoolChange::Add(NewDevices {
        tops: vec![TopRequest {
            class: AllocationClass::Normal,
            layout: NewLayout::Mirror,
            paths: vec![noted.stage.image("c"), noted.stage.image("d")],
        }],
        ..NewDevices::default()
    }));
    let root = noted.import_again(|_| {});
    assert_eq!(names(&root), ["a", "b", "c", "d"]);
}

#[test]
fn renamed_devices_are_found_in_their_folder_if_someone_asks() {
    let noted = Noted::new(NewLayout::Mirror, &["a", "b"]);
    let rename = |folder: &Path| {
        for name in ["a", "b"] {
            std::fs::rename(folder.join(name), folder.join(format!("{name}2"))).unwrap();
        }
    };
    assert_eq!(names(&noted.import_again(rename)), ["a2", "b2"]);
}

/// A copy of a missing device is not taken by a daemon that starts.
#[test]
fn a_daemon_that_starts_does_not_look_for_renamed_devices() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("tank", "a"), "").unwrap();
    drop(asked);
    daemon.stop();
    gone(daemon);
    let folder = stage.folder.path();
    std::fs::rename(folder.join("a"), folder.join("copy")).unwrap();
    let daemon = stage.start("state");
    assert!(client(&daemon, 0).pools().unwrap().is_empty());
}

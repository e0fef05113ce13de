//! Properties stored in a file system or volume itself, changed like the commands change them.
//!
//! Also checks the state after power cuts.

use crate::rig::Rig;
use millpond_check::{CheckOptions, FindingKind, check_pool};
use millpond_dataset::{HeadDataset, HeadLog, LogTrim};
use millpond_engine::{Caller, FileError, NewMode, Pool, QuotaMeasure, QuotaOwner, WriteAt};
use millpond_ondisk::{BlockPointer, ObjectId, Txg, VdevId};
use millpond_pool::PoolError;

const VOLUME_DATA: ObjectId = ObjectId(1);

fn tank(rig: &Rig) -> Pool {
    rig.stripe("tank").create().unwrap()
}

/// A log of an unknown type.
struct Foreign;

impl HeadLog for Foreign {
    fn trim(&self, _: Txg) -> LogTrim {
        LogTrim::default()
    }
    fn retire(
        &self,
        _: Txg,
        drop_blocks: &mut dyn FnMut(&[BlockPointer]) -> Result<(), PoolError>,
    ) -> Result<bool, PoolError> {
        drop_blocks(&[])?;
        Ok(true)
    }
    fn uses(&self, _: VdevId) -> bool {
        false
    }
    fn committed(&self, _: Txg) {}
    fn write_out(&self, _: &HeadDataset) -> Result<(), PoolError> {
        Ok(())
    }
}

#[test]
fn a_head_with_a_log_of_another_dataset_is_refused() {
    let rig = Rig::new(1, 128);
    let pool = tank(&rig);
    pool.datasets().create_filesystem("tank/a", &[]).unwrap();
    let head = pool.datasets().open_head("tank/a").unwrap();
    head.log_or(|| Foreign).unwrap();
    let refused = pool.file_system("tank/a").unwrap_err();
    assert!(
        matches!(&refused, millpond_engine::Error::OtherLog { name } if name == "tank/a"),
        "{refused}"
    );
    // Other datasets are not affected.
    pool.file_system("tank").unwrap();
}

#[test]
fn default_quotas_stop_owners_without_one_of_their_own() {
    let rig = Rig::new(1, 128);
    let pool = tank(&rig);
    pool.datasets().create_filesystem("tank/a", &[]).unwrap();
    let files = pool.file_system("tank/a").unwrap();
    let root = files.root().unwrap();
    files
        .set_default_quota(QuotaOwner::User, QuotaMeasure::Bytes, 1000)
        .unwrap();
    files
        .set_quota(QuotaOwner::User, QuotaMeasure::Bytes, 7, 10_000_000)
        .unwrap();
    let (limited, exempt) = (Caller::user(1000, 1000), Caller::user(7, 7));
    for caller in [&limited, &exempt] {
        let name = format!("of {}", caller.uid);
        let mode = NewMode::exactly(0o644);
        let (node, _) = files
            .create(caller, &root, name.as_bytes(), mode, true)
            .unwrap();
        files
            .write(
                caller,
                &node,
                WriteAt::Offset(0),
                &[caller.uid as u8; 300_000],
            )
            .unwrap();
    }
    // Used space counts once it is written. Even compressed, both files exceed the limit.
    pool.sync().unwrap();
    let more = |caller: &Caller| {
        let node = root.lookup(format!("of {}", caller.uid).as_bytes());
        files.write(caller, &node.unwrap(), WriteAt::Offset(400_000), &[1; 5000])
    };
    assert!(matches!(more(&limited), Err(FileError::OwnerQuota)));
    more(&exempt).unwrap();
    files
        .set_default_quota(QuotaOwner::User, QuotaMeasure::Bytes, 0)
        .unwrap();
    more(&limited).unwrap();
    files
        .set_default_quota(QuotaOwner::Group, QuotaMeasure::Objects, 5)
        .unwrap();
    drop((root, files));
    // A new file system inherits the values in force above it.
    pool.sync().unwrap();
    pool.datasets().create_filesystem("tank/a/b", &[]).unwrap();
    pool.export().unwrap();
    rig.judge("tank");
    let read = rig.read("tank");
    let shown = |dataset: &str| {
        let all = read.dataset(dataset).unwrap().literal_properties().unwrap();
        let mut quotas: Vec<_> = all
            .into_iter()
            .filter(|property| property.name.starts_with("default"))
            .map(|property| (property.name, property.value))
            .filter(|(_, value)| value != "0")
            .collect();
        quotas.sort();
        quotas
    };
    let five = ("defaultgroupobjquota".to_owned(), "5".to_owned());
    for dataset in ["tank/a", "tank/a/b"] {
        assert_eq!(shown(dataset), std::slice::from_ref(&five), "{dataset}");
    }
    // Properties that were never set are not shown at all.
    let all = read.dataset("tank").unwrap().literal_properties().unwrap();
    assert!(
        !all.iter()
            .any(|property| property.name.starts_with("default"))
    );
}

#[test]
fn a_volume_shrunk_before_a_power_cut_frees_its_tail() {
    let rig = Rig::new(1, 128);
    let pool = tank(&rig);
    let size = (
        "volsize".to_owned(),
        millpond_engine::PropertyValue::Number(4 << 20),
    );
    pool.datasets().create_volume("tank/v", &[size]).unwrap();
    let volume = pool.volume("tank/v").unwrap();
    volume.write(0, &[7; 1 << 20]).unwrap();
    // Both handles refer to the same volume.
    pool.volume("tank/v").unwrap().resize(1 << 20).unwrap();
    assert_eq!(volume.size_bytes(), 1 << 20);
    // The state after a power cut between the reduction of the size and the free.
    let head = pool.datasets().open_head("tank/v").unwrap();
    let data = head.set().object(VOLUME_DATA).unwrap();
    for at in [2 << 20, 3 << 20] {
        let tx = head.begin(millpond_dataset::Estimate::default()).unwrap();
        data.write(&tx, at, &[9; 100_000]).unwrap();
    }
    drop((volume, head, data));
    pool.export().unwrap();
    let found = || {
        let report = check_pool(rig.read("tank").inner(), &CheckOptions::default()).unwrap();
        let kinds = report.findings.iter().map(|finding| finding.kind);
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(found(), [FindingKind::VolumeTail]);

    let pool = rig.open("tank");
    pool.volume("tank/v").unwrap();
    pool.export().unwrap();
    assert_eq!(found(), []);
    rig.judge("tank");
    let volume = rig
        .read("tank")
        .dataset("tank/v")
        .unwrap()
        .volume()
        .unwrap();
    let mut bytes = vec![0; 1 << 20];
    volume.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
}

/// The pool events of `zpool history -i`, without words that depend on the system.
fn events(rig: &Rig) -> Vec<String> {
    let pool = rig.read("tank");
    let records = pool.inner().history().unwrap().unwrap();
    let text =
        |list: &millpond_nvlist::NvList, name: &str| list.string(name).ok().map(str::to_owned);
    records
        .map(|record| record.unwrap())
        .filter_map(|list| text(&list, "internal_name").zip(text(&list, "history internal str")))
        .filter(|(_, text)| text.starts_with("pool version"))
        .map(|(name, text)| format!("{name}: {text}"))
        .collect()
}

#[test]
fn the_history_records_when_a_pool_was_opened() {
    let rig = Rig::new(1, 128);
    tank(&rig).export().unwrap();
    let open = |system: Option<&str>| {
        let writing = millpond_engine::WriteOptions {
            system: system.map(str::to_owned),
            ..Default::default()
        };
        let search = millpond_engine::Search::new([rig.folder()]);
        Pool::open(&search, "tank", &Default::default(), &writing).unwrap()
    };
    open(None).export().unwrap();
    assert_eq!(events(&rig).len(), 1, "{:?}", events(&rig));
    open(Some("here 6.1 #1 x86_64")).export().unwrap();
    let found = events(&rig);
    let wanted = format!(
        "open: pool version 5000; software version millpond-{}; uts here 6.1 #1 x86_64",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(found[1..], [wanted]);
    rig.judge("tank");
}

/// Renames a file system to a child of another, with the name that a receive uses.
fn hide_as_received(pool: &Pool, parent: &str, component: &str) {
    use millpond_ondisk::dsl::keys::RECEIVE_DATASET;
    use millpond_ondisk::{DslDatasetPhys, DslDirectoryPhys, Endian};
    let head = pool.datasets().open_head(parent).unwrap().id();
    let renamed = pool.inner().sync_task(|ctx| {
        let bonus = |id| ctx.mos().object(id).unwrap().bonus();
        let dataset = DslDatasetPhys::decode(&bonus(head), Endian::Little).unwrap();
        let directory = bonus(dataset.directory);
        let directory = DslDirectoryPhys::decode(&directory, Endian::Little).unwrap();
        let table = ctx.table(directory.child_directories.unwrap())?;
        let id = table.lookup_u64(component.as_bytes()).unwrap().unwrap();
        table.remove(component.as_bytes()).unwrap();
        table.update_u64(RECEIVE_DATASET.as_bytes(), id).unwrap();
        Ok(())
    });
    renamed.unwrap();
}

#[test]
fn unresumable_receives_are_destroyed_when_the_pool_opens() {
    use millpond_ondisk::dsl::keys::resume;
    use millpond_ondisk::{DslDatasetFlags, DslDatasetPhys, Endian};
    let rig = Rig::new(1, 128);
    let pool = tank(&rig);
    let names = [
        "tank/half",
        "tank/resumable",
        "tank/whole",
        "tank/into",
        "tank/into/sub",
    ];
    for name in names {
        pool.datasets().create_filesystem(name, &[]).unwrap();
        let files = pool.file_system(name).unwrap();
        let mode = NewMode::exactly(0o644);
        let root = files.root().unwrap();
        let (node, _) = files
            .create(&Caller::root(), &root, b"f", mode, true)
            .unwrap();
        files
            .write(&Caller::root(), &node, WriteAt::Offset(0), &[3; 500_000])
            .unwrap();
    }
    pool.sync().unwrap();
    // Like after a receive: inconsistent, and one of them with resume state.
    let partial = [
        ("tank/half", false),
        ("tank/resumable", true),
        ("tank/into/sub", true),
    ];
    for (name, is_resumable) in partial {
        let id = pool.datasets().open_head(name).unwrap().id();
        let marked = pool.inner().sync_task(|ctx| {
            let object = ctx.mos().object(id).unwrap();
            let mut phys = DslDatasetPhys::decode(&object.bonus(), Endian::Little).unwrap();
            phys.flags |= DslDatasetFlags::INCONSISTENT;
            object.set_bonus(ctx.tx(), phys.encode()).unwrap();
            if is_resumable {
                let table = ctx.table(id)?;
                table.update_u64(resume::TO_GUID.as_bytes(), 77).unwrap();
            }
            Ok(())
        });
        marked.unwrap();
    }
    // A receive into an existing file system is hidden below it until it is complete.
    hide_as_received(&pool, "tank/into", "sub");
    pool.export().unwrap();

    let pool = rig.open("tank");
    let committed = pool.committed().unwrap();
    assert!(committed.dataset("tank/half").is_err());
    let into = committed.dataset("tank/into").unwrap();
    assert!(into.inner().resume_token().unwrap().is_some());
    drop(into);
    assert!(committed.dataset("tank/resumable").is_ok());
    drop(committed);
    let files = pool.file_system("tank/whole").unwrap();
    let root = files.root().unwrap();
    root.lookup(b"f").unwrap();
    drop((root, files));
    pool.export().unwrap();
    rig.judge("tank");

    // Destroying the target also destroys the hidden partial receive.
    let pool = rig.open("tank");
    let none = millpond_engine::DestroyOptions::default();
    pool.datasets().destroy("tank/into", none).unwrap();
    assert_eq!(
        pool.datasets().names_below("tank").unwrap(),
        ["tank", "tank/resumable", "tank/whole"]
    );
    pool.datasets()
        .destroy("tank/resumable", millpond_engine::DestroyOptions::default())
        .unwrap();
    for _ in 0..4 {
        pool.sync().unwrap();
    }
    pool.export().unwrap();
    rig.judge("tank");
}

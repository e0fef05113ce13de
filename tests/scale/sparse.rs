use crate::Steps;
use crate::rig::Rig;
use millpond_engine::{
    Caller, NewMode, OpenOptions, Pool, PoolBuilder, Search, Seek, SetAttributes, WriteAt,
    WriteOptions,
};

const TIB: u64 = 1 << 40;

#[test]
fn a_sparse_file_of_16_tb_takes_no_more_than_its_data() {
    let rig = Rig::new(1, 128);
    let mut steps = Steps::new("a sparse file of 16 TiB");
    let pool = rig.stripe("tank").create().unwrap();
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o644);
    let (node, _) = files.create(&caller, &root, b"sparse", mode, true).unwrap();
    let places = [0, 5 << 30, TIB + 12345, 7 * TIB, 16 * TIB - 4];
    for (place, byte) in places.iter().zip(1u8..) {
        let at = WriteAt::Offset(*place);
        files.write(&caller, &node, at, &[byte; 4]).unwrap();
        pool.sync().unwrap();
    }
    assert_eq!(node.size_bytes(), 16 * TIB);
    steps.done("write");
    drop((node, root, files));
    pool.export().unwrap();

    let pool = rig.open("tank");
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    let node = root.lookup(b"sparse").unwrap();
    let mut at = 0;
    for (place, byte) in places.iter().zip(1u8..) {
        let record = place / (128 << 10) * (128 << 10);
        let found = node.seek(Seek::Data, at).unwrap();
        assert_eq!(found, record.max(at));
        let mut four = [0; 4];
        node.read(*place, &mut four).unwrap();
        assert_eq!(four, [byte; 4]);
        at = node.seek(Seek::Hole, found).unwrap();
    }
    steps.done("open, seek, read");
    let shorter = SetAttributes {
        size_bytes: Some(TIB),
        ..SetAttributes::default()
    };
    files.set_attributes(&caller, &node, &shorter).unwrap();
    pool.sync().unwrap();
    steps.done("truncate to 1 TiB");
    assert_eq!(node.seek(Seek::Hole, 6 << 30).unwrap(), 6 << 30);
    drop(node);
    files.unlink(&root, b"sparse").unwrap();
    pool.sync().unwrap();
    steps.done("unlink");
    drop((root, files));
    pool.export().unwrap();
    rig.judge("tank");
}

#[test]
fn a_pool_of_100_tib_is_made_and_opened_like_a_small_one() {
    // Only file systems in memory support sparse files of this size everywhere.
    let shared = std::path::Path::new("/dev/shm");
    let folder = tempfile::tempdir_in(if shared.is_dir() {
        shared
    } else {
        "/tmp".as_ref()
    })
    .unwrap();
    let image = folder.path().join("vast.img");
    let file = std::fs::File::create(&image).unwrap();
    if let Err(error) = file.set_len(100 * TIB) {
        println!("scale: no sparse file of 100 TiB can be made here ({error}): not tried");
        return;
    }
    let mut steps = Steps::new("a pool of 100 TiB");
    let pool = PoolBuilder::new("vast").single(&image).create().unwrap();
    steps.done("create");
    let files = pool.file_system("vast").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    for number in 0..100u64 {
        let mode = NewMode::exactly(0o644);
        let name = number.to_string();
        let (node, _) = files
            .create(&caller, &root, name.as_bytes(), mode, true)
            .unwrap();
        files
            .write(&caller, &node, WriteAt::Offset(0), &[7; 5000])
            .unwrap();
    }
    pool.sync().unwrap();
    steps.done("write 100 files");
    drop((root, files));
    pool.export().unwrap();
    steps.done("export");
    let search = Search::new([folder.path()]);
    let pool = Pool::open(
        &search,
        "vast",
        &OpenOptions::default(),
        &WriteOptions::default(),
    )
    .unwrap();
    steps.done("open");
    let files = pool.file_system("vast").unwrap();
    let stat = files.stat_file_system(&files.root().unwrap()).unwrap();
    assert!(stat.blocks * stat.block_bytes > 90 * TIB);
    drop(files);
    pool.export().unwrap();
    // zdb takes minutes for this number of metaslabs, so the reader checks the result.
    let pool = millpond_engine::View::open(&search, "vast", &OpenOptions::default()).unwrap();
    let files = pool.dataset("vast").unwrap().file_system().unwrap();
    let node = files
        .resolve(b"99", millpond_engine::Symlinks::Follow)
        .unwrap();
    let mut content = vec![0; 5000];
    node.read(0, &mut content).unwrap();
    assert!(content.iter().all(|byte| *byte == 7));
}

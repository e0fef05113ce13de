use crate::rig::Rig;
use crate::{Steps, size};

#[test]
fn very_many_datasets_are_made_listed_and_snapshotted() {
    let count = size(300, 10_000);
    let rig = Rig::new(1, size(256, 3072));
    let mut steps = Steps::new(&format!("{count} datasets"));
    let pool = rig.stripe("tank").create().unwrap();
    let names: Vec<String> = (0..count)
        .map(|number| match number % 100 {
            // Groups, and what is in them.
            0 => format!("tank/g{number}"),
            _ => format!("tank/g{}/d{number}", number / 100 * 100),
        })
        .collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    pool.datasets().create_filesystems(&all, &[]).unwrap();
    steps.done("create");
    let refused = pool
        .datasets()
        .create_filesystems(&["tank/more", "tank/g0"], &[]);
    assert!(refused.is_err());
    assert_eq!(
        pool.datasets().names_below("tank").unwrap().len() as u64,
        count + 2
    );
    steps.done("list");
    pool.datasets().snapshot_recursively("tank@all").unwrap();
    steps.done("snapshot -r");
    pool.export().unwrap();
    let pool = rig.open("tank");
    steps.done("export, open");
    drop(pool.file_system(names.last().unwrap()).unwrap());
    let snapshot = format!("{}@all", names[count as usize / 2]);
    pool.datasets()
        .destroy(&snapshot, Default::default())
        .unwrap();
    steps.done("use one, destroy a snapshot");
    pool.export().unwrap();
    rig.judge("tank");
}

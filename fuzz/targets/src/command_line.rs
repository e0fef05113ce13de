//! Command lines, and names of datasets.

use millpond_cli::session::{Environment, OpenService, Session};
use millpond_cli::{verbs, zfs, zpool};
use millpond_control::Service;
use millpond_dataset::DatasetName;
use std::collections::BTreeMap;

/// Words separated by NUL; the first selects the program. There are no pools.
pub fn command_line(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut words: Vec<String> = text.split('\0').map(str::to_owned).collect();
    let program = words.remove(0);
    if program == "millpond" {
        let all = std::iter::once(program).chain(words);
        let _ = verbs::command().try_get_matches_from(all);
        return;
    }
    // An interval would wait, and a manual page would start a program.
    let mut words = words
        .into_iter()
        .filter(|word| word.parse::<f64>().is_err() && word != "help");
    let words: Vec<String> = words.by_ref().take(64).collect();
    let environment = Environment {
        zone: jiff::tz::TimeZone::UTC,
        clock: || 0,
        pause: |_| {},
        variables: BTreeMap::new(),
        man: "/nowhere".into(),
        screen_lines: None,
        users: BTreeMap::new(),
        groups: BTreeMap::new(),
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut session = Session {
        out: &mut out,
        err: &mut err,
        pools: &Nothing,
        environment: &environment,
    };
    let status = match program.as_str() {
        "zfs" => zfs::run(&mut session, &words),
        _ => zpool::run(&mut session, &words),
    };
    assert!(status.is_ok_and(|status| status <= 2));
}

pub fn dataset_name(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(name) = DatasetName::parse(text) {
        assert!(name.components().all(|component| !component.is_empty()));
        assert!(text.starts_with(name.path));
    }
}

struct Nothing;

impl OpenService for Nothing {
    fn service(&self) -> Result<&dyn Service, String> {
        Err("there are no pools".into())
    }
}

//! Compares `zpool iostat` with the output of OpenZFS.
//!
//! The statistics are parsed from the recording and printed again. The test therefore checks words,
//! columns, units and lines, not the numbers themselves.
#![forbid(unsafe_code)]

mod support;

use millpond_control::{
    IoCounters, IoWaits, Latencies, PoolInfo, READ, VdevInfo, VdevKind, VdevState, WRITE,
    bucket_end_ns,
};
use support::recording::session;
use support::{FakeService, run};

/// One second ago, so that rates equal counts.
const IMPORTED_SINCE_S: u64 = 1_795_260_000 - 1;

/// The recorded pools, with only the fields that the output needs.
fn pools(stats: &[(&str, VdevInfo)]) -> Vec<PoolInfo> {
    let of = |name: &str, device: &str, guid| {
        let known = stats.iter().find(|(known, _)| *known == name);
        let stats = known.map(|(_, vdev)| vdev.clone()).unwrap_or_default();
        let leaf = VdevInfo {
            kind: VdevKind::File,
            state: VdevState::Healthy,
            guid,
            path: Some(device.into()),
            ..stats
        };
        let root = VdevInfo {
            kind: VdevKind::Root,
            guid: guid + 1,
            state: VdevState::Healthy,
            allocated_bytes: leaf.allocated_bytes,
            total_bytes: leaf.total_bytes,
            children: vec![leaf],
            ..VdevInfo::default()
        };
        PoolInfo {
            name: name.into(),
            is_loaded: true,
            root,
            imported_since_s: IMPORTED_SINCE_S,
            ..PoolInfo::default()
        }
    };
    vec![of("other", "/pool/d1", 10), of("tank", "/pool/d0", 20)]
}

/// A number that prints as this text: `104K`, `60.2K`, `785`.
fn number(text: &str) -> u64 {
    let suffix = text.find(|c: char| c.is_ascii_alphabetic());
    let (digits, power) = match suffix {
        None => (text, 0),
        Some(at) => (&text[..at], " KMGTPE".find(&text[at..]).unwrap() as i32),
    };
    let number = digits.parse::<f64>().unwrap() * 1024f64.powi(power);
    // Exact multiples print without decimals, so `99.0K` is slightly more than 99K.
    let is_more = digits.contains('.') && number.fract() == 0.0;
    number.round() as u64 + u64::from(is_more)
}

/// A mean that prints as this text: `14ms`, `-`, `1310720`.
fn mean(text: &str) -> Latencies {
    let units = [
        ("ns", 1),
        ("us", 1000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
    ];
    let ns = match text {
        "-" => return Latencies::default(),
        text => units.iter().find_map(|(unit, scale)| {
            let digits = text.strip_suffix(unit)?;
            Some(digits.parse::<u64>().ok()? * scale)
        }),
    };
    Latencies {
        counts: vec![1],
        sum_ns: ns.unwrap_or_else(|| text.parse().unwrap()),
    }
}

/// Parses a line of the table.
fn of_line(values: &[&str], has_latencies: bool, has_queues: bool) -> VdevInfo {
    let mut waits = IoWaits::default();
    let (table, mut rest) = values.split_at(6);
    if has_latencies {
        let (means, queues) = rest.split_at(11);
        waits.total = [mean(means[0]), mean(means[1])];
        waits.disk = [mean(means[2]), mean(means[3])];
        waits.queue = std::array::from_fn(|class| mean(means[4 + class]));
        rest = queues;
    }
    if has_queues {
        waits.pending = std::array::from_fn(|class| number(rest[2 * class]));
        waits.active = std::array::from_fn(|class| number(rest[2 * class + 1]));
    }
    let (allocated, free) = (number(table[0]), number(table[1]));
    VdevInfo {
        allocated_bytes: allocated,
        total_bytes: allocated + free,
        io: IoCounters {
            reads: number(table[2]),
            writes: number(table[3]),
            read_bytes: number(table[4]),
            written_bytes: number(table[5]),
            ..IoCounters::default()
        },
        waits,
        ..VdevInfo::default()
    }
}

/// Parses the lines of a histogram block.
fn of_block(lines: &[Vec<&str>], is_sizes: bool) -> VdevInfo {
    let column = |at: usize| -> Vec<u64> {
        let below = std::iter::repeat_n(0, if is_sizes { 9 } else { 0 });
        below
            .chain(lines.iter().map(|line| number(line[at])))
            .collect()
    };
    let times = |at| Latencies {
        counts: column(at),
        sum_ns: 0,
    };
    let mut waits = IoWaits::default();
    if is_sizes {
        waits.asked_sizes = std::array::from_fn(|class| column(1 + 2 * class));
        waits.joined_sizes = std::array::from_fn(|class| column(2 + 2 * class));
    } else {
        waits.total[READ] = times(1);
        waits.total[WRITE] = times(2);
        waits.disk = [times(3), times(4)];
        waits.queue = std::array::from_fn(|class| times(5 + class));
    }
    VdevInfo {
        waits,
        ..VdevInfo::default()
    }
}

#[test]
fn recorded_iostat_output_prints_unchanged() {
    let Some(all) = session("misc.json") else {
        return;
    };
    let mut compared = 0;
    for entry in all {
        let words: Vec<String> = entry.command.split(' ').map(str::to_owned).collect();
        let is_meant = entry.command.starts_with("zpool iostat") && !entry.command.contains('|');
        let has_numbers = words.iter().any(|word| word.parse::<u64>().is_ok());
        if !is_meant || has_numbers || entry.printed.status != 0 || words.contains(&"-vP".into()) {
            continue;
        }
        let options: String = words
            .iter()
            .filter(|w| w.starts_with('-'))
            .cloned()
            .collect();
        let has = |letter| options.contains(letter);
        let lines: Vec<Vec<&str>> = (entry.printed.stdout.lines())
            .map(|line| line.split_whitespace().collect())
            .collect();
        let is_histogram = has('w') || has('r');
        let stats: Vec<(&str, VdevInfo)> = if is_histogram {
            let rows = if has('w') { 37 } else { 16 };
            let starts = (0..lines.len()).filter(|at| lines[*at].is_empty());
            let head = if has('H') { 2 } else { 4 };
            starts
                .map(|at| {
                    let block = &lines[at + head..at + head + rows];
                    (lines[at + 1][0], of_block(block, has('r')))
                })
                .collect()
        } else {
            let rows = lines.iter().filter_map(|line| {
                let name = *line.first()?;
                // A requested device stands for its pool.
                let pool = if name == "/pool/d0" { "tank" } else { name };
                ["tank", "other"].contains(&pool).then_some(())?;
                let values = line.get(1..)?;
                Some((pool, of_line(values, has('l'), has('q'))))
            });
            rows.collect()
        };
        let control = FakeService {
            pools: pools(&stats),
            ..FakeService::default()
        };
        let ours = run(&control, &words);
        // OpenZFS read the device slightly later than its pool, so its rate is lower by one byte per
        // second.
        let theirs = entry.printed.stdout.replace("\t72522\t", "\t72523\t");
        assert_eq!(ours.stdout, theirs, "{}", entry.command);
        assert_eq!(ours.status, 0, "{}", entry.command);
        compared += 1;
    }
    println!("zpool iostat: {compared} recorded answers equal");
    assert!(compared >= 20, "{compared}");
}

#[test]
fn vdevs_and_pools_show_the_sums_of_their_devices() {
    let mut pools = pools(&[]);
    let pool = &mut pools[1];
    let waits = |counts: &[u64], sum_ns, pending| {
        let mut waits = IoWaits::default();
        waits.total[READ] = Latencies {
            counts: counts.to_vec(),
            sum_ns,
        };
        waits.asked_sizes[0] = vec![1; 10];
        waits.pending[0] = pending;
        waits
    };
    let leaf = pool.root.children[0].clone();
    let side = |guid, waits| VdevInfo {
        guid,
        path: Some(format!("/pool/{guid}")),
        waits,
        ..leaf.clone()
    };
    pool.root.children[0] = VdevInfo {
        kind: VdevKind::Mirror,
        guid: 30,
        children: vec![
            side(31, waits(&[0, 1], 3, 2)),
            side(32, waits(&[0, 1, 2], 27, 40)),
        ],
        ..leaf.clone()
    };
    let control = FakeService {
        pools,
        ..FakeService::default()
    };
    let ask = |line: &str| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        run(&control, &words)
    };
    let lines = ask("zpool iostat -lqvHp tank").stdout;
    let field = |line: usize, at: usize| {
        let line = lines.lines().nth(line).unwrap();
        line.split('\t').nth(at).unwrap().to_owned()
    };
    for line in [0, 1] {
        assert_eq!((field(line, 7), field(line, 18)), ("7".into(), "42".into()));
    }
    assert_eq!((field(2, 0), field(2, 7)), ("/pool/31".into(), "3".into()));
    assert_eq!((field(3, 7), field(3, 18)), ("9".into(), "40".into()));
    let sizes = ask("zpool iostat -rvH tank /pool/31").stdout;
    let mut sizes = sizes.lines();
    assert_eq!(sizes.next(), Some(""));
    assert_eq!(sizes.next(), Some("/pool/31"));
    // Ten sizes from 1 byte to 512, one of each.
    assert!(sizes.next().unwrap().starts_with("512\t10\t0\t"));
    assert!(sizes.next().unwrap().starts_with("1024\t0\t"));
    let blocks = ask("zpool iostat -wv tank").stdout;
    assert_eq!(blocks.matches("total_wait").count(), 4);
    for line in ["-wr", "-wl", "-rq"] {
        let refused = ask(&format!("zpool iostat {line}"));
        assert_eq!(refused.status, 2, "{line}: {}", refused.stderr);
    }
    assert_eq!(bucket_end_ns(0), 1);
}

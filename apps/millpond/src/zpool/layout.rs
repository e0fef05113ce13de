//! The words after a pool's name in `zpool create` and `zpool add`: which devices, in which arrangement.
//!
//! Pure: what a word means as a device is asked of a [`Resolve`], so that tests need no devices.

/// One device named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Full path.
    pub path: String,
    /// Whether it is an image file rather than a block device.
    pub is_file: bool,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// Finds the device that a word means, or says in full why there is none.
pub type Resolve<'a> = &'a dyn Fn(&str) -> Result<Leaf, String>;

/// What a top-level vdev is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Data.
    Normal,
    /// Tables of deduplication.
    Dedup,
    /// Metadata and small blocks.
    Special,
    /// The intent log.
    Log,
}

/// How the devices of a top-level vdev go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One device by itself.
    Leaf,
    /// Each holds all.
    Mirror,
    /// RAID-Z of this parity.
    Raidz(u8),
}

/// A top-level vdev asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Top {
    /// What it is for.
    pub class: Class,
    /// How its devices go together.
    pub shape: Shape,
    /// Its devices; exactly one for [`Shape::Leaf`].
    pub leaves: Vec<Leaf>,
}

/// All that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// Top-level vdevs in the order given.
    pub tops: Vec<Top>,
    /// Hot spares.
    pub spares: Vec<Leaf>,
    /// Cache devices.
    pub caches: Vec<Leaf>,
}

impl Layout {
    /// Every device, in the order of the vdevs, then spares and caches.
    pub fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        let tops = self.tops.iter().flat_map(|top| &top.leaves);
        tops.chain(&self.spares).chain(&self.caches)
    }
}

/// Where leaves go at present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Class(Class),
    Spare,
    Cache,
}

/// Takes the words apart.
///
/// # Errors
/// The whole message, as `zpool` prints it.
pub fn parse(words: &[String], resolve: Resolve<'_>) -> Result<Layout, String> {
    let mut layout = Layout::default();
    let mut place = Place::Class(Class::Normal);
    let mut seen: Vec<&str> = vec![];
    let mut rest = words;
    // A group that must not be empty, and whether it is so far.
    let mut open: Option<(&str, bool)> = None;
    let close = |open: Option<(&str, bool)>| match open {
        Some((group @ "log", true)) => Err(too_few(group, "1 device")),
        Some((group, true)) => Err(too_few(group, "1 devices")),
        _ => Ok(()),
    };
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        let word = word.as_str();
        let next = match word {
            "log" => Some(Place::Class(Class::Log)),
            "special" => Some(Place::Class(Class::Special)),
            "dedup" => Some(Place::Class(Class::Dedup)),
            "spare" => Some(Place::Spare),
            "cache" => Some(Place::Cache),
            _ => None,
        };
        if let Some(next) = next {
            close(open)?;
            if matches!(word, "log" | "spare" | "cache") {
                if seen.contains(&word) {
                    return Err(format!(
                        "invalid vdev specification: '{word}' can be specified only once"
                    ));
                }
                seen.push(word);
                open = Some((word, true));
            } else {
                open = None;
            }
            place = next;
            continue;
        }
        if let Some(shape) = shape(word) {
            if matches!(place, Place::Spare | Place::Cache) {
                close(open)?;
            }
            if place == Place::Class(Class::Log) && shape != Shape::Mirror {
                return Err("invalid vdev specification: unsupported 'log' device: raidz".into());
            }
            let count = rest.iter().take_while(|word| !is_keyword(word)).count();
            let (members, after) = rest.split_at(count);
            rest = after;
            let leaves = members
                .iter()
                .map(|word| resolve(word))
                .collect::<Result<Vec<_>, _>>()?;
            let least = match shape {
                Shape::Raidz(parity) => usize::from(parity) + 1,
                _ => 2,
            };
            if leaves.len() < least {
                return Err(too_few(word, &format!("{least} devices")));
            }
            let class = match place {
                Place::Class(class) => class,
                _ => Class::Normal,
            };
            open = None;
            layout.tops.push(Top {
                class,
                shape,
                leaves,
            });
            continue;
        }
        let leaf = resolve(word)?;
        open = None;
        match place {
            Place::Spare => layout.spares.push(leaf),
            Place::Cache => layout.caches.push(leaf),
            Place::Class(class) => layout.tops.push(Top {
                class,
                shape: Shape::Leaf,
                leaves: vec![leaf],
            }),
        }
    }
    close(open)?;
    Ok(layout)
}

fn too_few(group: &str, least: &str) -> String {
    format!("invalid vdev specification: {group} requires at least {least}")
}

fn shape(word: &str) -> Option<Shape> {
    Some(match word {
        "mirror" => Shape::Mirror,
        "raidz" | "raidz1" => Shape::Raidz(1),
        "raidz2" => Shape::Raidz(2),
        "raidz3" => Shape::Raidz(3),
        _ => return None,
    })
}

/// Whether a word ends the list of a vdev's devices.
fn is_keyword(word: &str) -> bool {
    shape(word).is_some() || matches!(word, "log" | "special" | "dedup" | "spare" | "cache")
}

/// What the check of redundancy sees of a top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redundancy {
    /// `file`, `disk`, `mirror` or `raidz`.
    pub word: &'static str,
    /// Devices that may be lost.
    pub parity: u64,
    /// How many devices there are.
    pub width: u64,
}

impl Redundancy {
    /// Of a vdev asked for.
    pub fn of(top: &Top) -> Self {
        let width = top.leaves.len() as u64;
        match top.shape {
            Shape::Leaf => Self {
                word: match top.leaves.first() {
                    Some(leaf) if leaf.is_file => "file",
                    _ => "disk",
                },
                parity: 0,
                width: 1,
            },
            Shape::Mirror => Self {
                word: "mirror",
                parity: width.saturating_sub(1),
                width,
            },
            Shape::Raidz(parity) => Self {
                word: "raidz",
                parity: u64::from(parity),
                width,
            },
        }
    }
}

/// What is unwise about new vdevs, a line each; `-f` overrides it. `pool` is what an existing pool has.
pub fn unwise(layout: &Layout, pool: Option<&Redundancy>) -> Option<String> {
    let compared = || layout.tops.iter().filter(|top| top.class != Class::Log);
    for top in compared() {
        let word = Redundancy::of(top).word;
        let files = top.leaves.iter().filter(|leaf| leaf.is_file).count();
        if files != 0 && files != top.leaves.len() {
            return Some(format!(
                "mismatched replication level: {word} contains both files and devices"
            ));
        }
        let mut sizes = top.leaves.iter().map(|leaf| leaf.size_bytes);
        let first = sizes.next().unwrap_or(0);
        // A few partitions' worth of difference is not worth a word.
        if sizes.any(|size| size.abs_diff(first) > SIZE_DIFFERENCE_BYTES) {
            return Some(format!("{word} contains devices of different sizes"));
        }
    }
    let mut last: Option<Redundancy> = None;
    for top in compared() {
        let found = Redundancy::of(top);
        if let Some(last) = &last
            && let Some(words) = mismatch(last, &found)
        {
            return Some(format!("mismatched replication level: {words}"));
        }
        last = Some(found);
    }
    let words = against_pool(pool?, last.as_ref()?)?;
    Some(format!("mismatched replication level: {words}"))
}

/// Difference in device sizes inside one vdev that is let pass, in bytes.
const SIZE_DIFFERENCE_BYTES: u64 = 16 << 20;

fn is_parity(redundancy: &Redundancy) -> bool {
    redundancy.word == "raidz"
}

/// A RAID-Z and a mirror in that order, if the two are one of each.
fn mixed<'a>(a: &'a Redundancy, b: &'a Redundancy) -> Option<(&'a Redundancy, &'a Redundancy)> {
    match (a.word, b.word) {
        ("raidz", "mirror") => Some((a, b)),
        ("mirror", "raidz") => Some((b, a)),
        _ => None,
    }
}

fn mismatch(last: &Redundancy, new: &Redundancy) -> Option<String> {
    if let Some((raidz, mirror)) = mixed(last, new) {
        return (raidz.parity != mirror.parity).then(|| {
            format!(
                "{} and {} vdevs with different redundancy, {} vs. {} ({}-way) are present",
                raidz.word, mirror.word, raidz.parity, mirror.parity, mirror.width
            )
        });
    }
    if is_parity(last) && is_parity(new) {
        return (last.parity != new.parity).then(|| {
            format!(
                "{} and {} vdevs with different redundancy, {} vs. {} are present",
                last.word, new.word, last.parity, new.parity
            )
        });
    }
    if last.word != new.word {
        return Some(format!(
            "both {} and {} vdevs are present",
            last.word, new.word
        ));
    }
    (last.width != new.width).then(|| {
        format!(
            "both {}-way and {}-way {} vdevs are present",
            last.width, new.width, new.word
        )
    })
}

fn against_pool(pool: &Redundancy, new: &Redundancy) -> Option<String> {
    if let Some((raidz, mirror)) = mixed(pool, new) {
        return (raidz.parity != mirror.parity).then(|| {
            format!(
                "pool and new vdev with different redundancy, {} and {} vdevs, {} vs. {} ({}-way)",
                raidz.word, mirror.word, raidz.parity, mirror.parity, mirror.width
            )
        });
    }
    if pool.word != new.word {
        return Some(format!(
            "pool uses {} and new vdev is {}",
            pool.word, new.word
        ));
    }
    if is_parity(pool) && pool.parity != new.parity {
        return Some(format!(
            "pool uses {} device parity and new vdev uses {}",
            pool.parity, new.parity
        ));
    }
    (pool.width != new.width).then(|| {
        format!(
            "pool uses {}-way {} and new vdev uses {}-way {}",
            pool.width, pool.word, new.width, new.word
        )
    })
}

/// Groups as `-n` lists them: title (none for data), and the lines below it with their depth.
pub fn lines(layout: &Layout) -> Vec<(Option<&'static str>, Vec<(usize, String)>)> {
    let of_class = |class| -> Vec<(usize, String)> {
        let tops = layout.tops.iter().filter(|top| top.class == class);
        let each = |top: &Top| {
            let paths = top.leaves.iter().map(|leaf| leaf.path.clone());
            match top.shape {
                Shape::Leaf => paths.map(|path| (1, path)).collect::<Vec<_>>(),
                shape => {
                    let word = match shape {
                        Shape::Raidz(parity) => format!("raidz{parity}"),
                        _ => "mirror".to_owned(),
                    };
                    let mut all = vec![(1, word)];
                    all.extend(paths.map(|path| (2, path)));
                    all
                }
            }
        };
        tops.flat_map(each).collect()
    };
    let plain = |leaves: &[Leaf]| leaves.iter().map(|leaf| (1, leaf.path.clone())).collect();
    let groups = [
        (None, of_class(Class::Normal)),
        (Some("dedup"), of_class(Class::Dedup)),
        (Some("special"), of_class(Class::Special)),
        (Some("logs"), of_class(Class::Log)),
        (Some("cache"), plain(&layout.caches)),
        (Some("spares"), plain(&layout.spares)),
    ];
    groups
        .into_iter()
        .filter(|(_, lines)| !lines.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(word: &str) -> Result<Leaf, String> {
        let size_bytes = if word.ends_with("big") {
            256 << 20
        } else {
            128 << 20
        };
        match word.strip_prefix("/pool/") {
            Some(_) => Ok(Leaf {
                path: word.into(),
                is_file: true,
                size_bytes,
            }),
            None => Err(format!(
                "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand device name"
            )),
        }
    }
    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }
    /// What `zpool create tank LINE` complains about before it asks the engine.
    fn complaint(line: &str) -> Option<String> {
        match parse(&words(line), &device) {
            Err(message) => Some(message),
            Ok(layout) => unwise(&layout, None),
        }
    }
    fn pool(word: &'static str, parity: u64, width: u64) -> Redundancy {
        Redundancy {
            word,
            parity,
            width,
        }
    }
    fn added(pool: &Redundancy, line: &str) -> Option<String> {
        unwise(&parse(&words(line), &device).unwrap(), Some(pool))
    }

    #[test]
    fn groups_that_lack_devices_are_refused_in_openzfs_words() {
        for (line, message) in [
            ("mirror /pool/d0", "mirror requires at least 2 devices"),
            ("raidz /pool/d0", "raidz requires at least 2 devices"),
            (
                "raidz2 /pool/d0 /pool/d1",
                "raidz2 requires at least 3 devices",
            ),
            (
                "raidz3 /pool/d0 /pool/d1 /pool/d2",
                "raidz3 requires at least 4 devices",
            ),
            ("/pool/d0 log", "log requires at least 1 device"),
            ("/pool/d0 spare", "spare requires at least 1 devices"),
            (
                "/pool/d0 spare mirror /pool/d1 /pool/d2",
                "spare requires at least 1 devices",
            ),
            (
                "/pool/d0 cache mirror /pool/d1 /pool/d2",
                "cache requires at least 1 devices",
            ),
            (
                "/pool/d0 log raidz /pool/d1 /pool/d2",
                "unsupported 'log' device: raidz",
            ),
            (
                "/pool/d0 log /pool/d1 log /pool/d2",
                "'log' can be specified only once",
            ),
        ] {
            let found = parse(&words(line), &device).unwrap_err();
            assert_eq!(
                found,
                format!("invalid vdev specification: {message}"),
                "{line}"
            );
        }
        let unknown = parse(&words("raidz4 /pool/d0"), &device).unwrap_err();
        assert!(unknown.starts_with("cannot open 'raidz4'"));
    }

    #[test]
    fn a_whole_layout_is_understood() {
        let layout = parse(
            &words("mirror /pool/a /pool/b raidz2 /pool/c /pool/d /pool/e special mirror /pool/f /pool/g log /pool/h cache /pool/i spare /pool/j /pool/k"),
            &device,
        )
        .unwrap();
        let shapes: Vec<_> = layout
            .tops
            .iter()
            .map(|top| (top.class, top.shape, top.leaves.len()))
            .collect();
        assert_eq!(
            shapes,
            [
                (Class::Normal, Shape::Mirror, 2),
                (Class::Normal, Shape::Raidz(2), 3),
                (Class::Special, Shape::Mirror, 2),
                (Class::Log, Shape::Leaf, 1),
            ]
        );
        assert_eq!((layout.caches.len(), layout.spares.len()), (1, 2));
        assert_eq!(layout.leaves().count(), 11);
        assert!(parse(&words("/pool/d0 special"), &device).is_ok());
    }

    #[test]
    fn layouts_of_unequal_redundancy_are_unwise_in_openzfs_words() {
        let level = |words: &str| Some(format!("mismatched replication level: {words}"));
        for (line, message) in [
            (
                "mirror /pool/d0 /pool/d1 /pool/d2 mirror /pool/d3 /pool/d4",
                level("both 3-way and 2-way mirror vdevs are present"),
            ),
            (
                "mirror /pool/d0 /pool/d1 raidz /pool/d2 /pool/d3 /pool/d4",
                None,
            ),
            (
                "raidz /pool/d0 /pool/d1 /pool/d2 raidz2 /pool/d3 /pool/d4 /pool/d5",
                level("raidz and raidz vdevs with different redundancy, 1 vs. 2 are present"),
            ),
            (
                "raidz /pool/d0 /pool/d1 /pool/d2 raidz /pool/d3 /pool/d4",
                None,
            ),
            (
                "/pool/d0 mirror /pool/d1 /pool/d2",
                level("both file and mirror vdevs are present"),
            ),
            (
                "mirror /pool/d0 /pool/d1 raidz2 /pool/d2 /pool/d3 /pool/d4",
                level(
                    "raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way) are present",
                ),
            ),
            (
                "mirror /pool/d0 /pool/big",
                Some("mirror contains devices of different sizes".into()),
            ),
            (
                "raidz /pool/d0 /pool/d1 /pool/big",
                Some("raidz contains devices of different sizes".into()),
            ),
            (
                "mirror /pool/d0 /pool/d1 special /pool/d2",
                level("both mirror and file vdevs are present"),
            ),
            ("mirror /pool/d0 /pool/d1 log /pool/d2", None),
            ("/pool/d0 /pool/big", None),
        ] {
            assert_eq!(complaint(line), message, "{line}");
        }
    }

    #[test]
    fn what_is_added_is_compared_with_the_pool() {
        let level = |words: &str| Some(format!("mismatched replication level: {words}"));
        let (file, mirror, raidz) = (
            pool("file", 0, 1),
            pool("mirror", 1, 2),
            pool("raidz", 1, 3),
        );
        assert_eq!(
            added(&file, "mirror /pool/d1 /pool/d2"),
            level("pool uses file and new vdev is mirror")
        );
        assert_eq!(
            added(&mirror, "/pool/d2"),
            level("pool uses mirror and new vdev is file")
        );
        assert_eq!(
            added(&mirror, "raidz2 /pool/d2 /pool/d3 /pool/d4"),
            level(
                "pool and new vdev with different redundancy, raidz and mirror vdevs, 2 vs. 1 (2-way)"
            )
        );
        assert_eq!(
            added(&mirror, "mirror /pool/d2 /pool/d3 /pool/d4"),
            level("pool uses 2-way mirror and new vdev uses 3-way mirror")
        );
        assert_eq!(
            added(&raidz, "raidz2 /pool/d3 /pool/d4 /pool/d6"),
            level("pool uses 1 device parity and new vdev uses 2")
        );
        assert_eq!(
            added(&raidz, "raidz /pool/d3 /pool/d4"),
            level("pool uses 3-way raidz and new vdev uses 2-way raidz")
        );
        assert_eq!(added(&raidz, "mirror /pool/d3 /pool/d4"), None);
        assert_eq!(added(&raidz, "log /pool/d3"), None);
    }

    #[test]
    fn a_dry_run_lists_groups_in_openzfs_order() {
        let layout = parse(
            &words("mirror /pool/a /pool/b log /pool/c special /pool/d"),
            &device,
        )
        .unwrap();
        let titles: Vec<_> = lines(&layout).into_iter().map(|(title, _)| title).collect();
        assert_eq!(titles, [None, Some("special"), Some("logs")]);
        assert_eq!(
            lines(&layout)[0].1,
            [
                (1, "mirror".into()),
                (2, "/pool/a".into()),
                (2, "/pool/b".into())
            ]
        );
    }
}

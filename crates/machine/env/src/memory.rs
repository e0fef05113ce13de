//! The memory that this process may use: of the machine, and of its control groups.

use std::path::{Path, PathBuf};

/// Memory as the process may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Memory of the machine or of the tightest control group, in bytes.
    pub total_bytes: u64,
    /// What is left of it, in bytes, counting what the kernel would give up for programs.
    pub available_bytes: u64,
    /// How much of the last ten seconds some thread waited for memory, in percent. 0 where the kernel does
    /// not tell.
    pub pressure_percent: u32,
}

/// The memory that this process may use; `None` where the kernel does not tell.
#[must_use]
pub fn memory() -> Option<Memory> {
    // A simulated run must not depend on the machine.
    if cfg!(millpond_sim) {
        return None;
    }
    read(Path::new("/"))
}

/// Reads the files of the kernel below `root`.
fn read(root: &Path) -> Option<Memory> {
    let machine = text(&root.join("proc/meminfo"))?;
    let of_machine = |name| field(&machine, name).map(|kib| kib.saturating_mul(1024));
    let mut memory = Memory {
        total_bytes: of_machine("MemTotal:")?,
        available_bytes: of_machine("MemAvailable:")?,
        pressure_percent: pressure(&root.join("proc/pressure/memory")),
    };
    for group in groups(root) {
        group.restrict(&mut memory);
    }
    Some(memory)
}

/// A directory of a control group, with the names that its version uses.
struct Group {
    path: PathBuf,
    limit: &'static str,
    usage: &'static str,
    /// The fields of `memory.stat` that count cached files.
    files: [&'static str; 2],
}

impl Group {
    /// Lowers `memory` to what the group leaves.
    fn restrict(&self, memory: &mut Memory) {
        let number = |name| text(&self.path.join(name))?.trim().parse::<u64>().ok();
        // A group of version 2 without a limit says "max"; one of version 1 says more than any machine has.
        let Some(limit) = number(self.limit).filter(|limit| *limit < memory.total_bytes) else {
            return;
        };
        let Some(usage) = number(self.usage) else {
            return;
        };
        let details = text(&self.path.join("memory.stat")).unwrap_or_default();
        let files = self.files.iter().filter_map(|name| field(&details, name));
        let used = usage.saturating_sub(files.sum());
        memory.total_bytes = limit;
        memory.available_bytes = memory.available_bytes.min(limit.saturating_sub(used));
        let pressure = pressure(&self.path.join("memory.pressure"));
        memory.pressure_percent = memory.pressure_percent.max(pressure);
    }
}

/// The process's control groups for memory, and those above them.
fn groups(root: &Path) -> Vec<Group> {
    let table = text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mut found = vec![];
    for line in table.lines() {
        // hierarchy:controllers:path
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let is_first_version = controllers.split(',').any(|name| name == "memory");
        if !controllers.is_empty() && !is_first_version {
            continue;
        }
        let mount = root.join(match is_first_version {
            true => "sys/fs/cgroup/memory",
            false => "sys/fs/cgroup",
        });
        let mut inner = Path::new(path.trim_start_matches('/'));
        loop {
            found.push(match is_first_version {
                true => Group {
                    path: mount.join(inner),
                    limit: "memory.limit_in_bytes",
                    usage: "memory.usage_in_bytes",
                    files: ["total_inactive_file", "total_active_file"],
                },
                false => Group {
                    path: mount.join(inner),
                    limit: "memory.max",
                    usage: "memory.current",
                    files: ["inactive_file", "active_file"],
                },
            });
            match inner.parent() {
                Some(parent) => inner = parent,
                None => break,
            }
        }
    }
    found
}

/// The share of the last ten seconds in a file of pressure stall information, in percent.
fn pressure(path: &Path) -> u32 {
    let table = text(path).unwrap_or_default();
    let some = table.lines().find(|line| line.starts_with("some "));
    let mut words = some.unwrap_or_default().split(' ');
    let average = words.find_map(|word| word.strip_prefix("avg10="));
    let average: f32 = average.and_then(|text| text.parse().ok()).unwrap_or(0.0);
    average.clamp(0.0, 100.0) as u32
}

/// The number after a name at the beginning of a line.
fn field(table: &str, name: &str) -> Option<u64> {
    table.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    })
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with the given files, removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("millpond-memory-{}-{name}", std::process::id());
            let root = std::env::temp_dir().join(name);
            for (path, content) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:        8000 kB\nMemFree:          100 kB\nMemAvailable:    5000 kB\n",
    );

    #[test]
    fn a_machine_without_groups_has_all_its_memory() {
        let stall = "some avg10=12.70 avg60=0.00 avg300=0.00 total=0\nfull avg10=1.00 avg60=0.00\n";
        let root = Root::new("machine", &[MEMINFO, ("proc/pressure/memory", stall)]);
        let expected = Memory {
            total_bytes: 8000 << 10,
            available_bytes: 5000 << 10,
            pressure_percent: 12,
        };
        assert_eq!(read(&root.0), Some(expected));
    }

    #[test]
    fn the_tightest_group_above_the_process_counts() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "900000\n"),
            ("sys/fs/cgroup/outer/memory.max", "2000000\n"),
            ("sys/fs/cgroup/outer/memory.current", "1500000\n"),
            (
                "sys/fs/cgroup/outer/memory.stat",
                "anon 7\ninactive_file 200000\nactive_file 100000\n",
            ),
            (
                "sys/fs/cgroup/outer/memory.pressure",
                "some avg10=30.00 avg60=0.00 avg300=0.00 total=0\n",
            ),
        ];
        let root = Root::new("groups", &files);
        let expected = Memory {
            total_bytes: 2_000_000,
            available_bytes: 800_000,
            pressure_percent: 30,
        };
        assert_eq!(read(&root.0), Some(expected));
    }

    #[test]
    fn groups_of_the_first_version_count_too() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "5:devices:/\n4:cpu,memory:/box\n0::/\n"),
            (
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes",
                "3000000\n",
            ),
            (
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes",
                "1000000\n",
            ),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n"),
        ];
        let root = Root::new("first", &files);
        let memory = read(&root.0).unwrap();
        assert_eq!(
            (memory.total_bytes, memory.available_bytes),
            (3_000_000, 2_000_000)
        );
    }

    #[test]
    fn this_machine_tells_its_memory() {
        if cfg!(not(millpond_sim)) {
            let memory = memory().unwrap();
            assert!(memory.available_bytes <= memory.total_bytes, "{memory:?}");
        }
    }
}

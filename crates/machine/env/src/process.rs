//! Who a process is to the system, from what the kernel says of it in `/proc`.

/// The bit of `CAP_SYS_ADMIN` in a set of capabilities.
const CAP_SYS_ADMIN: u32 = 21;

/// The identity of a process or thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its uids: real, effective, saved, and that for files.
    pub users: Vec<u32>,
    /// Its gids, in the same order.
    pub groups_own: Vec<u32>,
    /// Its supplementary groups: gids.
    pub groups: Vec<u32>,
    /// Its effective capabilities in its own user namespace.
    pub capabilities: u64,
}

impl Credentials {
    /// Reads those of a process or thread of this pid namespace; `None` if it is gone, or the kernel does not tell.
    ///
    /// The caller ensures that the process does not end meanwhile: its number could stand for another one.
    #[must_use]
    pub fn of(process: u32) -> Option<Self> {
        // 0 stands for a process that cannot be seen from here.
        if process == 0 {
            return None;
        }
        Self::parse(&std::fs::read_to_string(format!("/proc/{process}/status")).ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let numbers = |name| -> Option<Vec<u32>> {
            let words = field(name)?.split_whitespace();
            words.map(|word| word.parse().ok()).collect()
        };
        let capabilities = field("CapEff:").map_or(Some(0), |word: &str| {
            u64::from_str_radix(word.trim(), 16).ok()
        });
        Some(Self {
            users: numbers("Uid:")?,
            groups_own: numbers("Gid:").unwrap_or_default(),
            groups: numbers("Groups:")?,
            capabilities: capabilities?,
        })
    }

    /// Whether all its uids are this one.
    #[must_use]
    pub fn is_only(&self, user: u32) -> bool {
        self.users.iter().all(|uid| *uid == user)
    }

    /// Whether it acts on files as this user and group.
    #[must_use]
    pub fn acts_as(&self, user: u32, group: u32) -> bool {
        (self.users.get(3), self.groups_own.get(3)) == (Some(&user), Some(&group))
    }

    /// Whether it may administer its user namespace (`CAP_SYS_ADMIN`).
    #[must_use]
    pub fn is_administrator(&self) -> bool {
        self.capabilities & (1 << CAP_SYS_ADMIN) != 0
    }
}

/// Whether a process is in this process's user namespace. Its capabilities mean nothing here otherwise.
#[must_use]
pub fn shares_users(process: u32) -> bool {
    let users = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let own = users("self");
    own.is_some() && own == users(&process.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tzfs\nUid:\t7\t7\t7\t8\nGid:\t9\t9\t9\t10\nGroups:\t9 50 4294967294 \nCapEff:\t0000000000200000\n";

    #[test]
    fn identity_is_read_from_the_status_of_a_process() {
        let read = Credentials::parse(STATUS).unwrap();
        assert_eq!(read.groups, [9, 50, u32::MAX - 1]);
        assert!(read.acts_as(8, 10) && !read.acts_as(7, 10) && !read.acts_as(8, 9));
        assert!(!read.is_only(7) && read.is_administrator());
        let of_one = Credentials::parse("Uid:\t7\t7\t7\t7\nGroups:\t\n").unwrap();
        assert!(of_one.is_only(7) && !of_one.is_only(8) && !of_one.is_administrator());
        assert!(of_one.groups.is_empty() && !of_one.acts_as(7, 7));
        for (good, bad) in [("50", "x"), ("Groups", "groups"), ("00200000", "y")] {
            assert_eq!(Credentials::parse(&STATUS.replace(good, bad)), None);
        }
    }

    #[test]
    fn this_process_is_in_its_own_user_namespace() {
        assert!(shares_users(std::process::id()) && !shares_users(0));
        assert_eq!(Credentials::of(0), None);
        assert!(Credentials::of(std::process::id()).is_some());
    }
}

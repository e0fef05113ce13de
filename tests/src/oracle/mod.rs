//! Judges: OpenZFS's own programs and its kernel module check what we wrote.
//!
//! [`zdb`] parses the output of `zdb` (whose exit status is 0 even if space leaked). [`kernel`] boots a
//! virtual machine with the kernel module on copies of the images. If a judge is not available, it returns
//! [`Verdict::Absent`] with a reason. Callers report the reason instead of passing silently.

pub mod kernel;
pub mod objects;
mod permissions;
pub mod totals;
pub mod zdb;

/// The verdict of a judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No errors.
    Clean,
    /// The errors in the judge's words, one per line.
    Faults(Vec<String>),
    /// No judge is available, and why.
    Absent(String),
}

impl Verdict {
    /// Whether the judge was available and found no errors.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == Self::Clean
    }

    /// The errors that `before` did not contain, for pools that already had errors.
    ///
    /// Two errors are equal if their words are. For exit statuses only their number counts.
    #[must_use]
    pub fn beyond(&self, before: &Self) -> Self {
        let (Self::Faults(lines), Self::Faults(old)) = (self, before) else {
            return self.clone();
        };
        let words = |line: &str| match line.split_once("exit status") {
            Some((judge, rest)) => {
                let number = rest.split(':').next().unwrap_or_default();
                format!("{judge}exit status{number}")
            }
            None => line.to_owned(),
        };
        let mut known: Vec<String> = old.iter().map(|line| words(line)).collect();
        let mut new = lines.clone();
        // Each old error excuses one new one.
        new.retain(|line| {
            let found = known.iter().position(|old| *old == words(line));
            found.map(|at| known.swap_remove(at)).is_none()
        });
        if new.is_empty() {
            return Self::Clean;
        }
        Self::Faults(new)
    }

    /// Fails the test if there are errors. Prints a message if no judge was available.
    ///
    /// # Panics
    /// With the errors.
    pub fn require(&self, what: &str) {
        match self {
            Self::Clean => {}
            Self::Faults(lines) => panic!("{what}:\n  {}", lines.join("\n  ")),
            Self::Absent(why) => eprintln!("{what}: not judged: {why}"),
        }
    }
}

/// Splits a program's output into lines; carriage returns count as line ends.
fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes)
        .split(['\n', '\r'])
        .map(|line| line.trim_end().to_owned())
        .filter(|line| !line.trim().is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_complaints_count_against_an_unclean_pool() {
        let faults =
            |lines: &[&str]| Verdict::Faults(lines.iter().map(|line| (*line).to_owned()).collect());
        let before = faults(&["object 7 leaked", "zdb -d: exit status Some(2): 5 | 6"]);
        let same = faults(&["zdb -d: exit status Some(2): 8 | 9", "object 7 leaked"]);
        assert_eq!(same.beyond(&before), Verdict::Clean);
        for more in [
            &["object 7 leaked", "object 7 leaked"][..],
            &["object 8 leaked"],
            &["zdb -d: exit status Some(3): 5 | 6"],
        ] {
            assert!(matches!(faults(more).beyond(&before), Verdict::Faults(new) if new.len() == 1));
        }
        assert_eq!(faults(&["x"]).beyond(&Verdict::Clean), faults(&["x"]));
        assert_eq!(Verdict::Clean.beyond(&before), Verdict::Clean);
    }
}

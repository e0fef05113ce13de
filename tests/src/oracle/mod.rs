//! Judges from outside: OpenZFS's own programs and its kernel module look at what we wrote.
//!
//! [`zdb`] reads the text of `zdb` (its exit status is 0 even when space leaked); [`kernel`] boots a
//! virtual machine with the kernel module on copies of the images. Both say [`Verdict::Absent`] with a
//! reason where they are not to be had; callers pass on that reason instead of passing the test in silence.

pub mod kernel;
pub mod zdb;

/// What a judge said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong.
    Clean,
    /// What is wrong, a line each, in the judge's words.
    Faults(Vec<String>),
    /// There is no judge here, and why.
    Absent(String),
}

impl Verdict {
    /// Whether the judge was there and found nothing.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == Self::Clean
    }

    /// Ends the test if something is wrong; says so if nobody judged.
    ///
    /// # Panics
    /// With the faults.
    pub fn require(&self, what: &str) {
        match self {
            Self::Clean => {}
            Self::Faults(lines) => panic!("{what}:\n  {}", lines.join("\n  ")),
            Self::Absent(why) => eprintln!("{what}: not judged: {why}"),
        }
    }
}

/// Ends the words of a program in a way that tests can compare: carriage returns are line ends.
fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes)
        .split(['\n', '\r'])
        .map(|line| line.trim_end().to_owned())
        .filter(|line| !line.trim().is_empty())
        .collect()
}

//! The zstd levels, as encoded in the property and in a block's header.

/// A zstd level code: 1 to 19 for `zstd-1` to `zstd-19`, 103 to 123 for the fast ones.
///
/// Page `docs/format/compression.md`, "zstd levels".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZstdLevel(u8);

/// The fast numbers of the codes from [`FAST_CODE_FIRST`] on.
const FAST: [u16; 21] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000,
];
const FAST_CODE_FIRST: u8 = 103;

impl ZstdLevel {
    /// Plain `zstd`, which is level 3.
    pub const DEFAULT: ZstdLevel = ZstdLevel(3);

    /// Returns the level with this code. 0 is the default; `None` for codes that no writer stores.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::DEFAULT),
            1..=19 => Some(Self(code)),
            _ => {
                let index = usize::from(code.checked_sub(FAST_CODE_FIRST)?);
                FAST.get(index).map(|_| Self(code))
            }
        }
    }
    /// Returns the level in a `compression` property value (function number in the low 7 bits, code above).
    #[must_use]
    pub fn from_property(value: u64) -> Option<Self> {
        if value & 0x7f != 16 {
            return None;
        }
        Self::from_code(u8::try_from(value >> 7).ok()?)
    }
    /// `zstd-N`, N from 1 to 19.
    #[must_use]
    pub fn standard(level: u8) -> Option<Self> {
        (1..=19).contains(&level).then_some(Self(level))
    }
    /// `zstd-fast-N`. Only 1 to 10, the tens up to 100, 500 and 1000 exist.
    #[must_use]
    pub fn fast(number: u16) -> Option<Self> {
        let index = FAST.iter().position(|known| *known == number)?;
        Some(Self(
            FAST_CODE_FIRST.checked_add(u8::try_from(index).ok()?)?,
        ))
    }
    /// The code stored in a block's header.
    #[must_use]
    pub fn code(self) -> u8 {
        self.0
    }
    /// The level in zstd's own numbering: 1 to 19, or the negative fast number.
    #[must_use]
    pub fn number(self) -> i32 {
        let fast = self
            .0
            .checked_sub(FAST_CODE_FIRST)
            .and_then(|index| FAST.get(usize::from(index)));
        match fast {
            Some(number) => i32::from(*number).saturating_neg(),
            None => i32::from(self.0),
        }
    }
}

impl Default for ZstdLevel {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_code_has_its_number() {
        let known: Vec<(u8, i32)> = (0..=255)
            .filter_map(|code| ZstdLevel::from_code(code).map(|level| (code, level.number())))
            .collect();
        assert_eq!(known.len(), 1 + 19 + 21);
        assert_eq!(known[0], (0, 3));
        assert_eq!(known[19], (19, 19));
        assert_eq!(known[20], (103, -1));
        assert_eq!(known[29], (112, -10));
        assert_eq!(known[30], (113, -20));
        assert_eq!(known[38], (121, -100));
        assert_eq!(known[40], (123, -1000));
        assert_eq!(ZstdLevel::fast(500).unwrap().code(), 122);
        assert_eq!(ZstdLevel::fast(11), None);
        assert_eq!(ZstdLevel::standard(20), None);
        assert_eq!(
            ZstdLevel::from_property(16 + 128 * 7),
            ZstdLevel::standard(7)
        );
        assert_eq!(ZstdLevel::from_property(15), None);
    }
}

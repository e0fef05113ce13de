//! The position of an iteration over a ZAP, and its persistent 64-bit cookie.
//!
//! Page `docs/format/zap-fat.md`, "Order and cookies".

use super::ZapHashing;

/// The cookie of a finished iteration.
pub const COOKIE_END: u64 = u64::MAX;

/// A position in the order of all entries. The entries at or after it are still to be visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct ZapPosition {
    /// The hash, with unused bits cleared, in the upper bits.
    pub hash: u64,
    /// Collision differentiator of entries with equal hash.
    pub cd: u32,
}

impl ZapPosition {
    /// The cookie, which clients may keep across remounts.
    #[must_use]
    pub fn to_cookie(self, hashing: &ZapHashing) -> u64 {
        let low = self
            .hash
            .checked_shr(64u32.saturating_sub(hashing.bits))
            .unwrap_or(0);
        low | u64::from(self.cd).checked_shl(hashing.bits).unwrap_or(0)
    }
    /// Decodes a cookie; `None` for [`COOKIE_END`].
    ///
    /// Any number is a valid position: a differentiator above the limit counts as 0.
    #[must_use]
    pub fn from_cookie(cookie: u64, hashing: &ZapHashing) -> Option<Self> {
        if cookie == COOKIE_END {
            return None;
        }
        let hash = cookie
            .checked_shl(64u32.saturating_sub(hashing.bits))
            .unwrap_or(0);
        let cd = cookie.checked_shr(hashing.bits).unwrap_or(0);
        let cd = u32::try_from(cd)
            .ok()
            .filter(|cd| *cd < hashing.cd_limit())
            .unwrap_or(0);
        Some(Self { hash, cd })
    }
    /// The position just after an entry; `None` if there can be no further entry.
    ///
    /// It always has a cookie of its own, so a listing by cookies terminates.
    #[must_use]
    pub fn after(hash: u64, cd: u32, hashing: &ZapHashing) -> Option<Self> {
        match cd.checked_add(1).filter(|cd| *cd < hashing.cd_limit()) {
            Some(cd) => Some(Self { hash, cd }),
            None => {
                let step = 1u64.checked_shl(64u32.saturating_sub(hashing.bits))?;
                let hash = hash.checked_add(step)?;
                Some(Self { hash, cd: 0 })
            }
        }
    }
}

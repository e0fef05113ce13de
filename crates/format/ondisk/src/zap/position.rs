//! Where an iteration over a ZAP stands, and the 64-bit cookie that names the place for good.
//!
//! Page `docs/format/zap-fat.md`, "Order and cookies".

use super::ZapHashing;

/// The cookie of an iteration that has seen everything.
pub const COOKIE_END: u64 = u64::MAX;

/// A place in the order of all entries: the entries at or after it are still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct ZapPosition {
    /// Hash as kept, in the upper bits.
    pub hash: u64,
    /// Collision differentiator among entries of equal hash.
    pub cd: u32,
}

impl ZapPosition {
    /// The cookie clients may hold over remounts.
    #[must_use]
    pub fn to_cookie(self, hashing: &ZapHashing) -> u64 {
        let low = self
            .hash
            .checked_shr(64u32.saturating_sub(hashing.bits))
            .unwrap_or(0);
        low | u64::from(self.cd).checked_shl(hashing.bits).unwrap_or(0)
    }
    /// The place a cookie names, `None` for [`COOKIE_END`]. Any number is a place: a
    /// differentiator over the limit counts as 0.
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
    /// The place just behind an entry; `None` if nothing can follow. It always has a cookie of
    /// its own, so that a listing continued by cookies comes to an end.
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

//! The hash that determines the order and position of ZAP entries.
//!
//! Page `docs/format/zap-fat.md`, "The hash".

/// ECMA-182, reflected.
const POLYNOMIAL: u64 = 0xc96c_5795_d787_0f42;

const TABLE: [u64; 256] = table();

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "evaluated by the compiler; loop bounds are the array's"
)]
const fn table() -> [u64; 256] {
    let mut table = [0u64; 256];
    let mut index = 0u64;
    while index < 256 {
        let mut crc = index;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (if crc & 1 == 1 { POLYNOMIAL } else { 0 });
            bit += 1;
        }
        #[allow(clippy::cast_possible_truncation, reason = "below 256")]
        {
            table[index as usize] = crc;
        }
        index += 1;
    }
    table
}

/// Continues the CRC-64 `crc` over `bytes`.
///
/// The CRC is inverted neither at the start nor at the end. Its initial value is the ZAP's salt.
#[must_use]
pub fn zap_crc64(crc: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(crc, |crc, &byte| {
        let [low, ..] = crc.to_le_bytes();
        let word = TABLE.get(usize::from(low ^ byte)).copied().unwrap_or(0);
        (crc >> 8) ^ word
    })
}

/// The hash function of a ZAP, from its salt and flags. Page `docs/format/zap-fat.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapHashing {
    /// The initial value of the CRC, a random number chosen when the ZAP is created.
    pub salt: u64,
    /// The number of upper hash bits in use: 28, or 48 with the flag `HASH64`.
    pub bits: u32,
    /// Whether the first word of a key is already its hash.
    pub is_prehashed: bool,
}

impl ZapHashing {
    /// The hash function of a microzap, and of a fat ZAP without flags.
    #[must_use]
    pub fn plain(salt: u64) -> Self {
        Self {
            salt,
            bits: 28,
            is_prehashed: false,
        }
    }
    /// The hash of a name. The name must be normalised as the ZAP's `normflags` require, and have no NUL.
    #[must_use]
    pub fn name(&self, hash_form: &[u8]) -> u64 {
        self.keep(zap_crc64(self.salt, hash_form))
    }
    /// The hash of a key of 64-bit words.
    #[must_use]
    pub fn words(&self, words: &[u64]) -> u64 {
        if self.is_prehashed {
            return self.keep(words.first().copied().unwrap_or(0));
        }
        self.keep(
            words
                .iter()
                .fold(self.salt, |crc, word| zap_crc64(crc, &word.to_le_bytes())),
        )
    }
    /// The exclusive upper bound of collision differentiators.
    #[must_use]
    pub fn cd_limit(&self) -> u32 {
        if self.bits == 48 { 0xffff } else { 0xffff_ffff }
    }
    /// Clears the hash bits that this ZAP does not use.
    #[must_use]
    pub fn keep(&self, crc: u64) -> u64 {
        let dropped = 64u32.saturating_sub(self.bits);
        crc.checked_shr(dropped)
            .and_then(|kept| kept.checked_shl(dropped))
            .unwrap_or(0)
    }
}

//! The four-byte header of a packed list, and decoding by it.
//! Page `docs/format/nvlist.md`, "Stream header".

use crate::{EncodeError, NvList, native, xdr};
use millpond_ondisk::{DecodeError, Endian, Reader};

/// The encoding of a packed list, from its first four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// XDR, big-endian on every machine; labels and MOS objects.
    Xdr,
    /// The writer's memory image in the writer's byte order; cache files, history, resume tokens.
    Native(Endian),
}

impl Encoding {
    /// Reads the header from the first four bytes.
    ///
    /// # Errors
    /// If there are fewer than four bytes, or the encoding or byte order is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("nvlist", bytes, Endian::Big);
        let [encoding, order, _, _] = reader.array()?;
        match (encoding, order) {
            // Readers ignore the byte order of XDR, which is 0 on big-endian pools.
            (1, _) => Ok(Self::Xdr),
            (0, 1) => Ok(Self::Native(Endian::Little)),
            (0, 0) => Ok(Self::Native(Endian::Big)),
            (0, _) => Err(DecodeError::new("nvlist", "byte order does not exist", 1)),
            _ => Err(DecodeError::new("nvlist", "encoding does not exist", 0)),
        }
    }
    pub(crate) fn header(self) -> [u8; 4] {
        match self {
            Self::Xdr => [1, 1, 0, 0],
            Self::Native(Endian::Little) => [0, 1, 0, 0],
            Self::Native(Endian::Big) => [0, 0, 0, 0],
        }
    }
}

impl NvList {
    /// Reads a packed list of either encoding and byte order.
    ///
    /// Ignores bytes after the list: labels and MOS objects are padded with zeros.
    ///
    /// # Errors
    /// [`DecodeError`] with the byte offset, by the rules of `docs/format/nvlist.md`, "What a reader checks".
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_prefix(bytes).map(|(list, _)| list)
    }
    /// As [`NvList::decode`]; also returns the length of the packed list in bytes.
    ///
    /// # Errors
    /// As [`NvList::decode`].
    pub fn decode_prefix(bytes: &[u8]) -> Result<(Self, usize), DecodeError> {
        let (endian, native) = match Encoding::decode(bytes)? {
            Encoding::Xdr => (Endian::Big, false),
            Encoding::Native(endian) => (endian, true),
        };
        let mut reader = Reader::new("nvlist", bytes, endian);
        reader.skip(4)?;
        let list = if native {
            native::decode_list(&mut reader)?
        } else {
            xdr::decode_list(&mut reader, 0)?
        };
        Ok((list, reader.position()))
    }
    /// Packs the list as XDR, with stream header.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub fn encode_xdr(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = Encoding::Xdr.header().to_vec();
        xdr::encode_list(self, &mut bytes, 0)?;
        within_length(bytes)
    }
    /// Packs the list in the native encoding of a little-endian writer, with stream header.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub fn encode_native(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = Encoding::Native(Endian::Little).header().to_vec();
        native::encode_list(self, &mut bytes)?;
        within_length(bytes)
    }
}

/// Sizes are signed 32-bit integers.
fn within_length(bytes: Vec<u8>) -> Result<Vec<u8>, EncodeError> {
    if i32::try_from(bytes.len()).is_err() {
        return Err(EncodeError::TooLong);
    }
    Ok(bytes)
}

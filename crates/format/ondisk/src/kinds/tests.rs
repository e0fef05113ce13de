use super::*;

#[test]
fn each_checksum_function_has_its_number_word_and_uses() {
    use ChecksumKind::*;
    let words = "inherit on off label gang_header zilog fletcher2 fletcher4 sha256 zilog2 noparity \
                 sha512 skein edonr blake3";
    for (number, word) in words.split(' ').enumerate() {
        let number = u8::try_from(number).unwrap();
        let kind = ChecksumKind::from_number(number).unwrap();
        assert_eq!((kind.number(), kind.name()), (number, word));
    }
    assert_eq!(ChecksumKind::from_number(15), None);
    let those = |is: fn(ChecksumKind) -> bool| -> Vec<ChecksumKind> {
        ChecksumKind::ALL
            .into_iter()
            .filter(|kind| is(*kind))
            .collect()
    };
    assert_eq!(
        those(ChecksumKind::is_dedup_strong),
        [Sha256, Sha512, Skein, Blake3]
    );
    assert_eq!(those(ChecksumKind::is_salted), [Skein, Edonr, Blake3]);
    assert_eq!(
        those(ChecksumKind::is_embedded),
        [Label, GangHeader, Zilog, Zilog2]
    );
}

#[test]
fn each_compression_function_has_its_number_and_word() {
    let words = "inherit on uncompressed lzjb empty gzip-1 gzip-2 gzip-3 gzip-4 gzip-5 gzip-6 gzip-7 \
                 gzip-8 gzip-9 zle lz4 zstd";
    for (number, word) in words.split(' ').enumerate() {
        let number = u8::try_from(number).unwrap();
        let kind = CompressionKind::from_number(number).unwrap();
        assert_eq!((kind.number(), kind.name()), (number, word));
    }
    assert_eq!(CompressionKind::from_number(17), None);
    // A level that zlib does not have is mapped to the nearest one.
    assert_eq!(CompressionKind::Gzip(0).number(), 5);
    assert_eq!(CompressionKind::Gzip(200).number(), 13);
}

#[test]
fn a_self_describing_type_is_read_bit_by_bit() {
    let content = ["u8", "u16", "u32", "u64", "ZAP"];
    let classes = [
        ByteswapClass::U8,
        ByteswapClass::U16,
        ByteswapClass::U32,
        ByteswapClass::U64,
        ByteswapClass::Zap,
    ];
    for encrypted in [0, 0x20] {
        for (metadata, word) in [(0, "data"), (0x40, "metadata")] {
            for (number, (what, class)) in (0..).zip(content.iter().zip(classes)) {
                let kind = ObjectType(0x80 | metadata | encrypted | number);
                assert!(kind.is_self_describing() && kind.is_valid());
                assert_eq!(kind.name(), format!("bswap {what} {word}"));
                assert_eq!(kind.byteswap(), Some(class));
                assert_eq!(kind.is_metadata(), metadata != 0);
                assert_eq!(kind.is_encrypted(), encrypted != 0);
            }
        }
    }
    // There are ten conversions; the bits could express more.
    assert_eq!(ObjectType(0x89).byteswap(), Some(ByteswapClass::Acl));
    assert_eq!(ObjectType(0x89).name(), "bswap other");
    assert_eq!(ObjectType(0x8a).byteswap(), None);
    assert!(!ObjectType(0x9f).is_valid());
}

#[test]
fn a_type_that_does_not_exist_is_treated_with_the_greatest_care() {
    let last = ObjectType(53);
    assert!(last.is_valid() && !last.is_self_describing());
    for number in [54, 0x7f] {
        let kind = ObjectType(number);
        assert!(!kind.is_valid() && !kind.is_self_describing());
        assert_eq!((kind.byteswap(), kind.name()), (None, "UNKNOWN"));
        assert!(kind.is_metadata() && !kind.is_encrypted());
    }
}

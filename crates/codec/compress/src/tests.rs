//! Tests every function against recorded bytes, against itself, against zstd's own library, and with random
//! bytes.

use super::*;
use proptest::prelude::*;

const TEXT: &[u8] = include_bytes!("../../../../LICENSE-APACHE");

const ALL: [CompressionKind; 13] = [
    CompressionKind::Lzjb,
    CompressionKind::Gzip(1),
    CompressionKind::Gzip(2),
    CompressionKind::Gzip(3),
    CompressionKind::Gzip(4),
    CompressionKind::Gzip(5),
    CompressionKind::Gzip(6),
    CompressionKind::Gzip(7),
    CompressionKind::Gzip(8),
    CompressionKind::Gzip(9),
    CompressionKind::Zle,
    CompressionKind::Lz4,
    CompressionKind::Zstd,
];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| u8::try_from((byte as char).to_digit(16).unwrap()).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] * 16 + pair[1])
        .collect()
}

fn fox() -> Vec<u8> {
    b"The quick brown fox jumps over the lazy dog. "
        .iter()
        .copied()
        .cycle()
        .take(4096)
        .collect()
}

fn runs() -> Vec<u8> {
    let mut bytes = vec![b'A'; 10];
    bytes.extend([0; 300]);
    bytes.extend(b"BC");
    bytes.extend([0; 3]);
    bytes.extend([b'D'; 70]);
    bytes.resize(1024, 0);
    bytes
}

fn recorded() -> Vec<(CompressionKind, Vec<u8>, Vec<u8>)> {
    let repeat = |byte: &str, count: usize| byte.repeat(count);
    let fox_lz4 = format!(
        "00000047 ff1e 54686520717569636b2062726f776e20666f78206a756d7073206f76657220746865206c617a7920646f672e20 2d00 {} ca 506f672e2054",
        repeat("ff", 15)
    );
    let fox_gzip = "789cedca571180301445412b57016a628092d07921109a7ab0c1ccf9de759dd79afb7a5495ec5c14ecd290e7b8c90e9fb47f3c95cfadc6da428e4c2693c96432994c2693c964f21ff30b5becbe7d";
    let fox_zstd = |level: &str| {
        format!(
            "0000003b {level}0028a5 0010b50100d40254686520717569636b2062726f776e20666f78206a756d7073206f76657220746865206c617a7920646f672e200100853ef45519"
        )
    };
    let runs_lz4 =
        "00000024 154101001f000100ff196f4243000000440100320f7601ff190f0200ff3d500000000000";
    let runs_zstd = "0000001c 030028a5 0000bd000050414100424300000044000410007b2a2168a1a8fb6201";
    let runs_gzip = "789c7374840186514034707206122e540103ed955130a20100944215a8";
    let runs_zle = format!(
        "09 {} ff ab 01 4243 42 3f {} 05 {} ff ff ff 7e",
        repeat("41", 10),
        repeat("44", 64),
        repeat("44", 6)
    );
    let runs_lzjb = format!(
        "fa41180100fc01fc42fc42fc428042f44243002544fc0100420049fc03 fffc42fc42fc42fc42fc42fc42fc42fc42 {}",
        repeat("00", 48)
    );
    vec![
        (CompressionKind::Lz4, hex(&fox_lz4), fox()),
        (CompressionKind::Zstd, hex(&fox_zstd("03")), fox()),
        (CompressionKind::Zstd, hex(&fox_zstd("70")), fox()),
        (CompressionKind::Gzip(6), hex(fox_gzip), fox()),
        (CompressionKind::Lz4, hex(runs_lz4), runs()),
        (CompressionKind::Zstd, hex(runs_zstd), runs()),
        (CompressionKind::Gzip(6), hex(runs_gzip), runs()),
        (CompressionKind::Zle, hex(&runs_zle), runs()),
        (CompressionKind::Lzjb, hex(&runs_lzjb), runs()),
    ]
}

#[test]
fn recorded_blocks_decode_with_and_without_a_tail() {
    let lengths = [75, 67, 67, 78, 40, 36, 29, 93, 94];
    for ((kind, stored, plain), length) in recorded().into_iter().zip(lengths) {
        assert_eq!(stored.len(), length, "{kind:?}");
        let mut tailed = stored.clone();
        tailed.extend([0xa5; 437]);
        for source in [&stored, &tailed] {
            let mut back = vec![0xee; plain.len()];
            assert_eq!(decompress(kind, source, &mut back), Ok(()), "{kind:?}");
            assert!(back == plain, "{kind:?}");
        }
    }
}

#[test]
fn recorded_blocks_are_refused_for_any_other_logical_size() {
    for (kind, stored, plain) in recorded() {
        for length in [plain.len() - 512, plain.len() - 1, plain.len() + 1] {
            // lzjb and zle do not mark their end, so a shorter or longer block can be valid.
            if matches!(kind, CompressionKind::Lzjb | CompressionKind::Zle) {
                continue;
            }
            let mut back = vec![0; length];
            assert!(decompress(kind, &stored, &mut back).is_err(), "{kind:?}");
        }
    }
}

#[test]
fn recorded_blocks_cut_short_are_refused() {
    for (kind, stored, plain) in recorded() {
        for cut in 0..stored.len() {
            let mut back = vec![0; plain.len()];
            assert!(
                decompress(kind, &stored[..cut], &mut back).is_err(),
                "{kind:?} cut to {cut}"
            );
        }
    }
}

#[test]
fn our_zle_stream_equals_the_recorded_one() {
    let (kind, stored, plain) = recorded().remove(7);
    assert_eq!(
        compress(kind, ZstdLevel::DEFAULT, &plain, 1024),
        Some(stored)
    );
}

#[test]
fn the_payload_of_an_embedded_pointer_decodes() {
    let payload = hex("00000018 2103 0001 00 51 8039666a04 0a00 0f0200ff d85000000000 00");
    let mut back = [0xee; 512];
    decompress(CompressionKind::Lz4, &payload, &mut back).unwrap();
    assert_eq!(back[..12], hex("0300000000000080 39666a04"));
    assert!(back[12..].iter().all(|byte| *byte == 0));
}

#[test]
fn the_version_word_is_understood_in_its_four_historic_forms() {
    let expected = ZstdHeader {
        frame_bytes: 0x3b,
        level: ZstdLevel::standard(7).unwrap(),
        version: 10405,
    };
    for word in ["070028a5", "07a52800", "a5280007", "0028a507"] {
        let header = ZstdHeader::decode(&hex(&format!("0000003b {word}"))).unwrap();
        assert_eq!(header, expected, "{word}");
    }
    assert!(ZstdHeader::decode(&hex("0000003b 140028a5")).is_err());
    assert!(ZstdHeader::decode(&hex("0000003b 030028")).is_err());
}

#[test]
fn functions_that_are_never_stored_are_named_in_the_error() {
    for kind in [
        CompressionKind::Inherit,
        CompressionKind::On,
        CompressionKind::Empty,
    ] {
        let function = kind.name();
        assert_eq!(
            decompress(kind, &[0; 512], &mut [0; 512]),
            Err(DecompressError::NotStored { function })
        );
    }
    assert_eq!(
        decompress(CompressionKind::Off, &[7; 512], &mut [0; 512]),
        Ok(())
    );
    assert!(decompress(CompressionKind::Off, &[7; 511], &mut [0; 512]).is_err());
}

#[test]
fn every_function_and_level_round_trips_text_and_saves_space() {
    for kind in ALL {
        // Text has no zeros that zle could save.
        let encoded = compress(kind, ZstdLevel::DEFAULT, TEXT, TEXT.len() + 256).unwrap();
        let mut back = vec![0; TEXT.len()];
        decompress(kind, &encoded, &mut back).unwrap();
        assert!(back == TEXT, "{kind:?}");
        let share = encoded.len() * 100 / TEXT.len();
        assert!(
            kind == CompressionKind::Zle || share < 75,
            "{kind:?} {share} %"
        );
    }
    for code in 0..=255 {
        let Some(level) = ZstdLevel::from_code(code) else {
            continue;
        };
        let encoded = compress(CompressionKind::Zstd, level, TEXT, TEXT.len() + 256).unwrap();
        assert_eq!(encoded[4], level.code());
        let mut back = vec![0; TEXT.len()];
        decompress(CompressionKind::Zstd, &encoded, &mut back).unwrap();
        assert!(back == TEXT, "zstd code {code}");
    }
}

#[test]
fn output_beyond_the_limit_is_refused() {
    let noise = noise(8192, 1);
    for kind in ALL {
        assert_eq!(
            compress(kind, ZstdLevel::DEFAULT, &noise, 7168),
            None,
            "{kind:?}"
        );
        let fits = compress(kind, ZstdLevel::DEFAULT, &fox(), 4200).unwrap();
        for limit in [0, 1, 4, 8, 9, fits.len() - 1] {
            assert_eq!(
                compress(kind, ZstdLevel::DEFAULT, &fox(), limit),
                None,
                "{kind:?}"
            );
        }
        let exact = compress(kind, ZstdLevel::DEFAULT, &fox(), fits.len());
        assert_eq!(exact, Some(fits), "{kind:?}");
    }
}

#[test]
fn every_function_compresses_a_16_mib_block() {
    let mut large = TEXT.repeat((16 << 20) / TEXT.len() + 1);
    large.truncate(16 << 20);
    for kind in [
        CompressionKind::Lzjb,
        CompressionKind::Gzip(1),
        CompressionKind::Lz4,
        CompressionKind::Zstd,
    ] {
        let encoded = compress(kind, ZstdLevel::DEFAULT, &large, 15 << 20).unwrap();
        let mut back = vec![0; large.len()];
        decompress(kind, &encoded, &mut back).unwrap();
        assert!(back == large, "{kind:?}");
    }
}

#[test]
fn lzjb_copies_from_before_the_start_are_refused() {
    let refused = DecompressError::corrupt("lzjb", "copy from before the start");
    for source in [[1, 0, 0, 0], [2, b'a', 0, 0], [2, b'a', 0, 2]] {
        assert_eq!(
            decompress(CompressionKind::Lzjb, &source, &mut [0; 64]),
            Err(refused)
        );
    }
}

#[test]
fn lengths_from_disk_never_reach_past_either_end() {
    let mut room = [0; 100];
    for kind in [CompressionKind::Lz4, CompressionKind::Zstd] {
        assert!(decompress(kind, &[0xff; 64], &mut room).is_err());
    }
    assert!(
        decompress(
            CompressionKind::Zstd,
            &hex("ffffffff 030028a5 00"),
            &mut room
        )
        .is_err()
    );
    // Literals, then zeros, that would exceed the logical size.
    let mut literals = vec![63; 65];
    literals.extend([63; 65]);
    assert!(decompress(CompressionKind::Zle, &literals, &mut room).is_err());
    assert!(decompress(CompressionKind::Zle, &[255], &mut room).is_err());
}

#[test]
fn a_zstd_frame_that_swells_beyond_its_block_is_stopped() {
    let swollen = zstd_c(3, &vec![0; 16 << 20], true);
    assert!(swollen.len() < 4096);
    assert!(decompress(CompressionKind::Zstd, &swollen, &mut [0; 4096]).is_err());
    let swollen = zstd_c(3, &vec![0; 16 << 20], false);
    assert!(decompress(CompressionKind::Zstd, &swollen, &mut [0; 4096]).is_err());
}

#[test]
fn a_zstd_frame_with_too_large_a_window_is_refused() {
    // No size, a window of 2^(10 + exponent) bytes, and one last raw block of three bytes.
    let block = |exponent: u8| {
        let frame = [0, exponent << 3, 3 << 3 | 1, 0, 0, b'a', b'b', b'c'];
        let mut block = vec![0, 0, 0, 8, 3, 0, 0x28, 0xa5];
        block.extend(frame);
        block
    };
    let mut plain = [0; 3];
    decompress(CompressionKind::Zstd, &block(14), &mut plain).unwrap();
    assert_eq!(plain, *b"abc");
    assert!(decompress(CompressionKind::Zstd, &block(15), &mut plain).is_err());
}

/// A stored block encoded by zstd's own library, as OpenZFS does it.
fn zstd_c(level: i32, source: &[u8], content_size: bool) -> Vec<u8> {
    use zstd_safe::{CCtx, CParameter, FrameFormat};
    let mut context = CCtx::try_create().unwrap();
    for parameter in [
        CParameter::CompressionLevel(level),
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ContentSizeFlag(content_size),
        CParameter::ChecksumFlag(false),
    ] {
        context.set_parameter(parameter).unwrap();
    }
    let mut frame = vec![0; zstd_safe::compress_bound(source.len())];
    let length = context.compress2(&mut frame[..], source).unwrap();
    let mut block = u32::try_from(length).unwrap().to_be_bytes().to_vec();
    block.extend([3, 0, 0x28, 0xa5]);
    block.extend(&frame[..length]);
    block
}

/// Decodes a stored block with zstd's own library, if that gives a whole block of `lsize` bytes.
fn zstd_c_back(block: &[u8], lsize: usize) -> Option<Vec<u8>> {
    use zstd_safe::{DCtx, DParameter, FrameFormat};
    let length = u32::from_be_bytes(block.get(..4)?.try_into().unwrap());
    let frame = block.get(8..)?.get(..usize::try_from(length).unwrap())?;
    let mut context = DCtx::try_create().unwrap();
    context
        .set_parameter(DParameter::Format(FrameFormat::Magicless))
        .unwrap();
    let mut plain = vec![0; lsize];
    let length = context.decompress(&mut plain[..], frame).ok()?;
    (length == lsize).then_some(plain)
}

/// Reproducible noise.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

#[test]
fn frames_of_the_c_library_decode_at_every_level() {
    let mixed: Vec<u8> = TEXT
        .chunks(700)
        .enumerate()
        .flat_map(|(index, chunk)| {
            let mut part = chunk.to_vec();
            part.extend(noise(90, index as u64));
            part.extend(vec![u8::try_from(index % 7).unwrap(); index * 13 % 400]);
            part
        })
        .collect();
    let contents = [
        TEXT.to_vec(),
        noise(20_000, 3),
        mixed,
        runs(),
        vec![5; 131_072],
    ];
    for level in (1..=19).chain([-1, -3, -10, -100, -1000]) {
        for plain in &contents {
            for content_size in [false, true] {
                let block = zstd_c(level, plain, content_size);
                let mut back = vec![0; plain.len()];
                decompress(CompressionKind::Zstd, &block, &mut back).unwrap();
                assert!(back == *plain, "level {level}");
            }
        }
    }
}

#[test]
fn our_frames_decode_in_the_c_library() {
    for code in [1, 2, 3, 6, 9, 12, 15, 19, 103, 107, 112, 123] {
        let level = ZstdLevel::from_code(code).unwrap();
        for plain in [TEXT.to_vec(), runs(), fox()] {
            let block = compress(CompressionKind::Zstd, level, &plain, plain.len() + 256).unwrap();
            assert_eq!(zstd_c_back(&block, plain.len()), Some(plain), "code {code}");
        }
    }
}

fn damaged(block: &[u8], seed: u64) -> Vec<u8> {
    let random_bytes = noise(64, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes = block.to_vec();
    for pair in random_bytes
        .chunks(4)
        .take(1 + usize::from(random_bytes[63] % 4))
    {
        let at = usize::from(u16::from_le_bytes([pair[0], pair[1]])) % bytes.len();
        if pair[3] % 2 == 0 {
            bytes[at] ^= 1 << (pair[2] % 8);
        } else {
            bytes[at] = pair[2];
        }
    }
    bytes
}

#[test]
fn damaged_zstd_blocks_decode_only_as_in_the_c_library() {
    let (mut accepted, mut refused) = (0, 0);
    for level in [1, 3, 9, 19, -10] {
        for plain in [&TEXT[..4096], &runs()[..], &fox()[..]] {
            let block = zstd_c(level, plain, false);
            for seed in 0..600u64 {
                let mut hostile = block[..8].to_vec();
                hostile.extend(damaged(&block[8..], seed));
                let mut back = vec![0; plain.len()];
                if decompress(CompressionKind::Zstd, &hostile, &mut back).is_err() {
                    // The C library accepts some damage that this decoder detects.
                    refused += 1;
                    continue;
                }
                accepted += 1;
                let theirs = zstd_c_back(&hostile, plain.len());
                assert!(theirs == Some(back), "level {level} seed {seed}");
            }
        }
    }
    assert!(accepted > 200 && refused > 200, "{accepted} {refused}");
}

#[test]
fn damaged_blocks_of_every_function_are_survived() {
    for kind in ALL {
        for plain in [&TEXT[..6000], &runs()[..]] {
            let block = compress(kind, ZstdLevel::DEFAULT, plain, 8192).unwrap();
            for seed in 0..300 {
                let mut back = vec![0; plain.len()];
                // Any result is fine, but no panic.
                let _ = decompress(kind, &damaged(&block, seed), &mut back);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_content_round_trips(
        parts in proptest::collection::vec((any::<u8>(), 0usize..200, any::<bool>(), any::<u64>()), 0..30),
        level in 1u8..=6,
    ) {
        let plain: Vec<u8> = parts.into_iter().flat_map(|(byte, count, same, seed)| {
            if same { vec![byte; count] } else { noise(count, seed) }
        }).collect();
        for kind in ALL {
            let level = ZstdLevel::standard(level).unwrap();
            let room = plain.len() * 2 + 64;
            let mut encoded = vec![0; room];
            let length = compress_into(kind, level, &plain, &mut encoded).unwrap();
            let mut back = vec![0xee; plain.len()];
            prop_assert_eq!(decompress(kind, &encoded[..length], &mut back), Ok(()), "{:?}", kind);
            prop_assert!(back == plain, "{:?}", kind);
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600), lsize in 0usize..5000) {
        let mut back = vec![0; lsize];
        for kind in ALL {
            let _ = decompress(kind, &bytes, &mut back);
        }
        // The same bytes with valid framing, so that they reach the decoder.
        for kind in [CompressionKind::Lz4, CompressionKind::Zstd] {
            let mut framed = u32::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
            if kind == CompressionKind::Zstd {
                framed.extend([3, 0, 0x28, 0xa5]);
            }
            framed.extend(&bytes);
            let _ = decompress(kind, &framed, &mut back);
        }
    }
}

//! JSON output of the commands: one object per line, names that are not UTF-8 in base64.

use serde_json::{Map, Value};

/// Puts a name under `key`, or under `key_b64` if it is not UTF-8.
pub fn put_name(map: &mut Map<String, Value>, key: &str, name: &[u8]) {
    match std::str::from_utf8(name) {
        Ok(text) => map.insert(key.to_owned(), text.into()),
        Err(_) => map.insert(format!("{key}_b64"), base64(name).into()),
    };
}

/// Base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        for place in 0..4 {
            if place <= group.len() {
                let digit = word >> (18 - 6 * place) & 63;
                text.push(char::from(DIGITS[digit as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe]), "//4=");
    }

    #[test]
    fn a_json_name_has_one_of_two_keys() {
        let mut map = Map::new();
        put_name(&mut map, "path", b"a");
        put_name(&mut map, "target", b"\xff");
        assert_eq!(
            Value::Object(map).to_string(),
            r#"{"path":"a","target_b64":"/w=="}"#
        );
    }
}

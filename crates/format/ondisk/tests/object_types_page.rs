//! Verifies that the table of `docs/format/object-types.md` matches the code.
#![forbid(unsafe_code)]

use millpond_ondisk::ObjectType;

#[test]
fn the_page_of_object_types_matches_the_code() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../docs/format/object-types.md"
    );
    let page = std::fs::read_to_string(path).unwrap();
    let mut rows = 0_u8;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", number, name, swap, meta, secret, ""] = cells.as_slice() else {
            continue;
        };
        let Ok(number) = number.parse::<u8>() else {
            continue;
        };
        let kind = ObjectType(number);
        assert_eq!(number, rows, "rows are in order");
        assert_eq!(*name, kind.name());
        assert_eq!(*swap, format!("{:?}", kind.byteswap().unwrap()), "{name}");
        assert_eq!(*meta == "yes", kind.is_metadata(), "{name}");
        assert_eq!(*secret == "yes", kind.is_encrypted(), "{name}");
        rows += 1;
    }
    assert_eq!(rows, 54);
    assert!(!ObjectType(rows).is_valid(), "a type is not on the page");
}

//! What `sharenfs` may say.

/// Options with a value, or with one that may be left out: of exports(5), and those that ZFS has from elsewhere.
const WITH_VALUE: [&str; 20] = [
    "rw",
    "ro",
    "sec",
    "root",
    "root_mapping",
    "anon",
    "anonuid",
    "anongid",
    "fsid",
    "mountpoint",
    "mp",
    "refer",
    "replicas",
    "xprtsec",
    "log",
    "window",
    "index",
    "none",
    "maxio",
    "charset",
];

/// Options without a value, each with the prefix `no_` or without.
const SWITCHES: [&str; 9] = [
    "wdelay",
    "subtree_check",
    "auth_nlm",
    "acl",
    "root_squash",
    "all_squash",
    "pnfs",
    "hide",
    "secure_locks",
];

/// Options without a value.
const WORDS: [&str; 13] = [
    "sync",
    "async",
    "secure",
    "insecure",
    "insecure_locks",
    "nohide",
    "crossmnt",
    "nordirplus",
    "security_label",
    "aclok",
    "nosub",
    "nosuid",
    "public",
];

/// Whether a value of `sharenfs` is `on`, `off` or a list of options as exports(5) has them.
pub(crate) fn is_share_value(text: &str) -> bool {
    text == "on" || text == "off" || text.split(',').all(is_option)
}

fn is_option(option: &str) -> bool {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    if WITH_VALUE.contains(&name) {
        return value != Some("");
    }
    let switch = name.strip_prefix("no_").unwrap_or(name);
    value.is_none() && (WORDS.contains(&name) || SWITCHES.contains(&switch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_exports_are_taken_and_other_words_are_not() {
        for text in [
            "on",
            "off",
            "rw",
            "rw=@10.0.0.0/8:host,ro=@192.168.0.0/16,no_root_squash",
            "sec=sys,rw,crossmnt,no_subtree_check",
            "async,insecure,nohide,fsid=0,anonuid=65534,no_wdelay",
        ] {
            assert!(is_share_value(text), "{text}");
        }
        for text in [
            "",
            "-maproot=root",
            "ON",
            "Off",
            "sss",
            "rw,",
            "rw=",
            "rw,sss",
            "async=1",
        ] {
            assert!(!is_share_value(text), "{text}");
        }
    }
}

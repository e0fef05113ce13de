//! The names in `openzfs.txt`.

/// What Millpond does with a name, where the program's tables do not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Partial,
    NoEffect,
    Refused,
}

#[derive(Debug, Clone)]
pub struct Name {
    pub text: &'static str,
    /// `2.3`, `2.4`, `later` or `undocumented`.
    pub release: &'static str,
    /// The verdict and its note, which may be empty.
    pub verdict: Option<(Verdict, &'static str)>,
}

#[derive(Debug)]
pub struct Section {
    /// `zpool create`, `pool properties`, …; the alias of a command is not part of it.
    pub title: Name,
    pub alias: Option<&'static str>,
    pub names: Vec<Name>,
}

/// The sections in the order of the file.
pub fn sections() -> Vec<Section> {
    let mut sections: Vec<Section> = vec![];
    for line in include_str!("openzfs.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(line) = line.strip_prefix('[') {
            let (title, rest) = line.split_once(']').expect(line);
            let (title, alias) = match title.split_once(" (") {
                Some((title, alias)) => (title, alias.strip_suffix(')')),
                None => (title, None),
            };
            let (release, verdict) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            let verdict = (!verdict.is_empty()).then(|| read_verdict(verdict));
            sections.push(Section {
                title: Name {
                    text: title,
                    release,
                    verdict,
                },
                alias,
                names: vec![],
            });
            continue;
        }
        let names = &mut sections.last_mut().expect("a section first").names;
        let (release, rest) = line.split_once(' ').expect(line);
        match rest.split_once(": ") {
            Some((text, verdict)) => names.push(Name {
                text,
                release,
                verdict: Some(read_verdict(verdict)),
            }),
            None => names.extend(rest.split(' ').map(|text| Name {
                text,
                release,
                verdict: None,
            })),
        }
    }
    sections
}

fn read_verdict(text: &'static str) -> (Verdict, &'static str) {
    let (word, note) = text.split_once(": ").unwrap_or((text, ""));
    let verdict = match word {
        "partial" => Verdict::Partial,
        "no effect" => Verdict::NoEffect,
        "refused" => Verdict::Refused,
        _ => panic!("no verdict: {text}"),
    };
    (verdict, note)
}

//! Matching a pattern at a place of a string.

/// Captures of a pattern.
const CAPTURES_MAX: usize = 32;
/// Parts of a pattern that wait for the match of the rest.
const DEPTH_MAX: usize = 200;
/// Steps after which the host is asked whether to stop.
const STOP_INTERVAL: u64 = 1 << 14;

/// A captured part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Captured {
    Part(usize, usize),
    Position(usize),
}

/// Why a search cannot be completed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Message(String),
    /// The pattern is too complex: OpenZFS reports it like other calls that are too deep.
    TooDeep,
    NoSteps,
    Stopped,
}

type Outcome<T> = Result<T, Failure>;

/// A match.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) begin: usize,
    pub(super) end: usize,
    captures: Vec<Captured>,
}

impl Found {
    pub(super) fn captures(&self) -> &[Captured] {
        &self.captures
    }

    /// The captures, or the whole match if the pattern has none.
    pub(super) fn captures_or_whole(&self) -> Vec<Captured> {
        match self.captures.is_empty() {
            true => vec![Captured::Part(self.begin, self.end)],
            false => self.captures.clone(),
        }
    }
}

/// A capture that has begun.
#[derive(Clone, Copy)]
enum Open {
    /// The end is not known yet.
    Begun(usize),
    Done(Captured),
}

pub(super) struct Matcher<'a> {
    source: &'a [u8],
    pattern: &'a [u8],
    captures: [Open; CAPTURES_MAX],
    count: usize,
    depth: usize,
    steps_left: u64,
    stop: Option<&'a (dyn Fn() -> bool + 'a)>,
    stop_at: u64,
}

impl<'a> Matcher<'a> {
    pub(super) fn new(
        source: &'a [u8],
        pattern: &'a [u8],
        steps: u64,
        stop: Option<&'a (dyn Fn() -> bool + 'a)>,
    ) -> Self {
        Self {
            source,
            pattern,
            captures: [Open::Begun(0); CAPTURES_MAX],
            count: 0,
            depth: 0,
            steps_left: steps,
            stop,
            stop_at: steps.saturating_sub(STOP_INTERVAL),
        }
    }

    pub(super) fn steps_left(&self) -> u64 {
        self.steps_left
    }

    /// Matches the pattern at one place.
    pub(super) fn at(&mut self, begin: usize) -> Outcome<Option<Found>> {
        self.count = 0;
        self.depth = 0;
        let Some(end) = self.matches(begin, 0)? else {
            return Ok(None);
        };
        let mut captures = Vec::with_capacity(self.count);
        for open in &self.captures[..self.count] {
            match open {
                Open::Done(captured) => captures.push(*captured),
                Open::Begun(_) => return Err(message("unfinished capture")),
            }
        }
        Ok(Some(Found {
            begin,
            end,
            captures,
        }))
    }

    fn step(&mut self, count: usize) -> Outcome<()> {
        let count = count as u64;
        if self.steps_left <= count {
            self.steps_left = 0;
            return Err(Failure::NoSteps);
        }
        self.steps_left -= count;
        if self.steps_left < self.stop_at {
            self.stop_at = self.steps_left.saturating_sub(STOP_INTERVAL);
            if self.stop.is_some_and(|is_stopped| is_stopped()) {
                return Err(Failure::Stopped);
            }
        }
        Ok(())
    }

    /// Where the match of the pattern from `p` on ends, if it matches the source from `s` on.
    fn matches(&mut self, s: usize, p: usize) -> Outcome<Option<usize>> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Failure::TooDeep);
        }
        let outcome = self.matches_inside(s, p);
        self.depth -= 1;
        outcome
    }

    fn matches_inside(&mut self, mut s: usize, mut p: usize) -> Outcome<Option<usize>> {
        loop {
            self.step(1)?;
            let Some(byte) = self.pattern.get(p) else {
                return Ok(Some(s));
            };
            let next = self.pattern.get(p + 1).copied();
            match (byte, next) {
                (b'(', Some(b')')) => {
                    return self.begin_capture(Open::Done(Captured::Position(s)), s, p + 2);
                }
                (b'(', _) => return self.begin_capture(Open::Begun(s), s, p + 1),
                (b')', _) => return self.end_capture(s, p + 1),
                (b'$', None) => return Ok((s == self.source.len()).then_some(s)),
                (b'%', Some(b'b')) => match self.balanced(s, p + 2)? {
                    Some(end) => (s, p) = (end, p + 4),
                    None => return Ok(None),
                },
                (b'%', Some(b'f')) => match self.frontier(s, p + 2)? {
                    Some(end) => p = end,
                    None => return Ok(None),
                },
                (b'%', Some(digit @ b'0'..=b'9')) => match self.repeated(s, digit)? {
                    Some(end) => (s, p) = (end, p + 2),
                    None => return Ok(None),
                },
                _ => {
                    let end = self.item_end(p)?;
                    let is_match = self.single(s, p, end)?;
                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if is_match && let Some(end) = self.matches(s + 1, end + 1)? {
                                return Ok(Some(end));
                            }
                            p = end + 1;
                        }
                        Some(b'+') if !is_match => return Ok(None),
                        Some(b'+') => return self.longest(s + 1, p, end),
                        Some(b'*') => return self.longest(s, p, end),
                        Some(b'-') => return self.shortest(s, p, end),
                        _ if !is_match => return Ok(None),
                        _ => (s, p) = (s + 1, end),
                    }
                }
            }
        }
    }

    /// The end of the item that begins at `p`: a byte, a class or a set.
    fn item_end(&mut self, p: usize) -> Outcome<usize> {
        match self.pattern[p] {
            b'%' if p + 1 >= self.pattern.len() => {
                Err(message("malformed pattern (ends with '%')"))
            }
            b'%' => Ok(p + 2),
            b'[' => {
                let mut end = p + 1;
                if self.pattern.get(end) == Some(&b'^') {
                    end += 1;
                }
                // The first byte is in the set, even if it is a bracket.
                loop {
                    let byte = self.pattern.get(end);
                    end += 1 + usize::from(byte == Some(&b'%'));
                    match self.pattern.get(end) {
                        Some(b']') if byte.is_some() => break,
                        None => return Err(message("malformed pattern (missing ']')")),
                        Some(_) => {}
                    }
                }
                self.step((end - p) / 4)?;
                Ok(end + 1)
            }
            _ => Ok(p + 1),
        }
    }

    /// Whether the byte at `s` matches the item from `p` to `end`.
    fn single(&mut self, s: usize, p: usize, end: usize) -> Outcome<bool> {
        let Some(byte) = self.source.get(s).copied() else {
            return Ok(false);
        };
        Ok(match self.pattern[p] {
            b'.' => true,
            b'%' => is_in_class(byte, self.pattern[p + 1]),
            b'[' => {
                self.step((end - p) / 4)?;
                is_in_set(byte, &self.pattern[p + 1..end - 1])
            }
            own => own == byte,
        })
    }

    /// As many repetitions as possible.
    fn longest(&mut self, s: usize, p: usize, end: usize) -> Outcome<Option<usize>> {
        let mut count = 0;
        while self.single(s + count, p, end)? {
            self.step(1)?;
            count += 1;
        }
        loop {
            if let Some(end) = self.matches(s + count, end + 1)? {
                return Ok(Some(end));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    /// As few repetitions as possible.
    fn shortest(&mut self, mut s: usize, p: usize, end: usize) -> Outcome<Option<usize>> {
        loop {
            if let Some(end) = self.matches(s, end + 1)? {
                return Ok(Some(end));
            }
            if !self.single(s, p, end)? {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn begin_capture(&mut self, open: Open, s: usize, p: usize) -> Outcome<Option<usize>> {
        if self.count >= CAPTURES_MAX {
            return Err(message("too many captures"));
        }
        self.captures[self.count] = open;
        self.count += 1;
        let end = self.matches(s, p)?;
        if end.is_none() {
            self.count -= 1;
        }
        Ok(end)
    }

    fn end_capture(&mut self, s: usize, p: usize) -> Outcome<Option<usize>> {
        let open = self.captures[..self.count].iter();
        let last = open.rev().position(|open| matches!(open, Open::Begun(_)));
        let Some(last) = last.map(|last| self.count - 1 - last) else {
            return Err(message("invalid pattern capture"));
        };
        let before = self.captures[last];
        if let Open::Begun(begin) = before {
            self.captures[last] = Open::Done(Captured::Part(begin, s));
        }
        let end = self.matches(s, p)?;
        if end.is_none() {
            self.captures[last] = before;
        }
        Ok(end)
    }

    /// `%bxy`: from an `x` to its `y`.
    fn balanced(&mut self, s: usize, p: usize) -> Outcome<Option<usize>> {
        let Some([open, close]) = self.pattern.get(p..p + 2) else {
            return Err(message("malformed pattern (missing arguments to '%b')"));
        };
        if self.source.get(s) != Some(open) {
            return Ok(None);
        }
        let mut level = 1;
        for place in s + 1..self.source.len() {
            self.step(1)?;
            let byte = self.source[place];
            if byte == *close {
                level -= 1;
                if level == 0 {
                    return Ok(Some(place + 1));
                }
            } else if byte == *open {
                level += 1;
            }
        }
        Ok(None)
    }

    /// `%f[set]`: a place where the set begins to match. Returns the end of the set.
    fn frontier(&mut self, s: usize, p: usize) -> Outcome<Option<usize>> {
        if self.pattern.get(p) != Some(&b'[') {
            return Err(message("missing '[' after '%f' in pattern"));
        }
        let end = self.item_end(p)?;
        let set = &self.pattern[p + 1..end - 1];
        let before = match s {
            0 => 0,
            _ => self.source[s - 1],
        };
        let after = self.source.get(s).copied().unwrap_or(0);
        Ok((!is_in_set(before, set) && is_in_set(after, set)).then_some(end))
    }

    /// `%1`: the text of a capture once more.
    fn repeated(&mut self, s: usize, digit: u8) -> Outcome<Option<usize>> {
        let number = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let captured = self.captures[..self.count].get(number);
        let (begin, end) = match captured {
            Some(Open::Done(Captured::Part(begin, end))) => (*begin, *end),
            Some(Open::Done(Captured::Position(_))) => return Ok(None),
            _ => {
                let shown = char::from(digit);
                return Err(Failure::Message(format!("invalid capture index %{shown}")));
            }
        };
        let text = &self.source[begin..end];
        let is_there = self.source[s..].starts_with(text);
        self.step(text.len() / 16)?;
        Ok(is_there.then_some(s + end - begin))
    }
}

fn message(text: &str) -> Failure {
    Failure::Message(text.to_owned())
}

/// Whether a byte belongs to a class like `%a`. A capital letter means all other bytes.
fn is_in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => crate::number::is_space(byte),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    is_in != class.is_ascii_uppercase()
}

/// Whether a byte belongs to a set, given without its brackets.
fn is_in_set(byte: u8, set: &[u8]) -> bool {
    let (is_listed, mut rest) = match set {
        [b'^', rest @ ..] => (false, rest),
        rest => (true, rest),
    };
    loop {
        rest = match rest {
            [] => return !is_listed,
            [b'%', class, rest @ ..] => {
                if is_in_class(byte, *class) {
                    return is_listed;
                }
                rest
            }
            [first, b'-', last, rest @ ..] => {
                if (*first..=*last).contains(&byte) {
                    return is_listed;
                }
                rest
            }
            [own, rest @ ..] => {
                if *own == byte {
                    return is_listed;
                }
                rest
            }
        };
    }
}

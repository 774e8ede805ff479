//! A cursor over JSON text: steps through objects and arrays without building anything.
//!
//! It trusts its input less than it seems: on text that is not JSON every step returns `None` and the caller gives up.
//! It does not validate what it skips beyond strings and brackets; the request scanner (`scan`) does.

use memchr::memchr2;

/// Deepest nesting that `skip` follows.
const MAX_DEPTH: u32 = 256;

/// A position in JSON text.
#[derive(Debug, Clone)]
pub struct Walk<'a> {
    rest: &'a [u8],
}

impl<'a> Walk<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    /// The next byte that is not white space.
    pub fn peek(&mut self) -> Option<u8> {
        while let Some((&first, rest)) = self.rest.split_first() {
            if matches!(first, b' ' | b'\t' | b'\n' | b'\r') {
                self.rest = rest;
            } else {
                return Some(first);
            }
        }
        None
    }

    /// Takes `byte` if it is next.
    pub fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.rest = self.rest.get(1..).unwrap_or_default())
    }

    /// Takes a string and returns its raw text, escapes as they are, without the quotes.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        self.take(b'"')?;
        let text = self.rest;
        let mut at = 0;
        loop {
            let found = at + memchr2(b'"', b'\\', text.get(at..)?)?;
            if text.get(found) == Some(&b'"') {
                self.rest = text.get(found + 1..)?;
                return text.get(..found);
            }
            at = found + 2;
        }
    }

    /// Takes any value and returns its raw text.
    pub fn skip(&mut self) -> Option<&'a [u8]> {
        let first = self.peek()?;
        let start = self.rest;
        match first {
            b'"' => {
                self.string()?;
            }
            b'{' | b'[' => self.skip_container()?,
            _ => self.skip_scalar()?,
        }
        start.get(..start.len() - self.rest.len())
    }

    fn skip_scalar(&mut self) -> Option<()> {
        let end = self
            .rest
            .iter()
            .position(|b| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r'))
            .unwrap_or(self.rest.len());
        self.rest = self.rest.get(end..)?;
        (end > 0).then_some(())
    }

    fn skip_container(&mut self) -> Option<()> {
        let mut depth = 0_u32;
        loop {
            match self.rest.split_first()? {
                (b'"', _) => {
                    self.string()?;
                    continue;
                }
                (b'{' | b'[', _) => depth += 1,
                (b'}' | b']', _) => depth -= 1,
                _ => {}
            }
            self.rest = self.rest.get(1..)?;
            match depth {
                0 => return Some(()),
                MAX_DEPTH.. => return None,
                _ => {}
            }
        }
    }

    /// Walks an object: `member` gets each raw key and must take its value.
    pub fn object(&mut self, mut member: impl FnMut(&'a [u8], &mut Self) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let key = self.string()?;
            self.take(b':')?;
            member(key, self)?;
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    /// Walks an array: `item` must take each item.
    pub fn array(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(b'[')?;
        if self.take(b']').is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            if self.take(b',').is_none() {
                return self.take(b']');
            }
        }
    }

    /// Takes a value and reads it as a whole number; other values are taken and give `None` inside.
    pub fn number(&mut self) -> Option<Option<u64>> {
        let raw = self.skip()?;
        Some(std::str::from_utf8(raw).ok().and_then(|text| text.parse().ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_sees_keys_values_and_the_end() {
        let text = br#" {"a" : [1, {"x\"]":2}, "s"], "b":{"c":null} , "n": 12 } tail"#;
        let mut seen = Vec::new();
        let mut cursor = Walk::new(text);

        let end = cursor.object(|key, at| {
            seen.push((key.to_vec(), at.skip()?.to_vec()));
            Some(())
        });

        assert_eq!(end, Some(()));
        assert_eq!(seen[0].1, br#"[1, {"x\"]":2}, "s"]"#);
        assert_eq!(seen[1].1, br#"{"c":null}"#);
        assert_eq!(seen[2].1, b"12");
        assert_eq!(cursor.peek(), Some(b't'));
    }

    #[test]
    fn every_truncation_is_refused() {
        let text = br#"{"a":[1,{"b":"c\\\""}],"d":true}"#;
        for end in 0..text.len() {
            let mut cursor = Walk::new(&text[..end]);
            assert_eq!(cursor.object(|_, at| at.skip().map(|_| ())), None, "cut at {end}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_recursion() {
        let text = vec![b'['; 100_000];
        assert_eq!(Walk::new(&text).skip(), None);
    }
}

//! Lists of token ids: checking and reading them at memory speed, or near it.
//!
//! A token-id prompt of 1 MiB has 150,000 numbers. A loop over digits costs a wrongly predicted branch for each; these
//! functions have no branch on the number of digits. None of them decides what is an error: what they do not take is
//! left to [`Cursor`](super::json::Cursor). Source: the budget of 1 ms a MiB, measured in `benches/hot_path.rs`.

use memchr::memchr;

use super::json::digits;

/// Bytes of a list of numbers that are checked at once.
pub(super) const LIST_CHUNK: usize = 256;

/// Whether all bytes but the first and the last could stand where they stand in `1,22,333` or `1, 22, 333`.
///
/// Looks only at neighbours and has no early exit, so that it is vectorised.
pub(super) fn is_list(window: &[u8]) -> bool {
    let digit = |byte: u8| byte.wrapping_sub(b'0') < 10;
    let bad = window.windows(3).fold(false, |bad, triple| {
        let [before, byte, after] = *triple else { return true };
        let number = digit(byte) & (digit(after) | (after == b','));
        let comma = (byte == b',') & (digit(after) | (after == b' '));
        let space = (byte == b' ') & (before == b',') & digit(after);
        let leading_zero = (byte == b'0') & !digit(before) & digit(after);
        bad | leading_zero | !(number | comma | space)
    });
    !bad
}

/// Reads plain whole numbers of a list whose separators all look like its first one: `,` or `, `.
///
/// Works on eight bytes at once, without a branch on the number of digits and with one load a number: a loop over
/// digits costs a wrongly predicted branch a number. What it does not read needs a closer look; it is not an error.
#[derive(Debug, Clone, Copy)]
pub struct Ids<'a> {
    text: &'a [u8],
    separator: u64,
    mask: u64,
    width: usize,
}

const LOW_BITS: u64 = 0x0101_0101_0101_0101;

impl<'a> Ids<'a> {
    /// A reader for the list that goes on at `at` with a number.
    #[must_use]
    pub fn new(text: &'a [u8], at: usize) -> Self {
        let start = text.get(at..).unwrap_or_default();
        match start.get(digits(start, 0)..) {
            Some([b',', b' ', ..]) => {
                Self { text, separator: u64::from_le_bytes(*b", \0\0\0\0\0\0"), mask: 0xffff, width: 2 }
            }
            _ => Self { text, separator: u64::from(b','), mask: 0xff, width: 1 },
        }
    }

    /// The offset behind the separator of the number at `at`. `None` if there is anything else: a number of more than
    /// seven digits or with a leading zero, the last number, another separator.
    #[must_use]
    pub fn skip(&self, at: usize) -> Option<usize> {
        let (_, next) = self.next(at)?;
        let leading_zero = self.text.get(at) == Some(&b'0') && next > at + 1 + self.width;
        (!leading_zero).then_some(next)
    }

    /// The digits of the number at `at`, for [`eight_digits`], and the offset behind its separator.
    #[inline]
    fn next(&self, at: usize) -> Option<(u64, usize)> {
        let window = u64::from_le_bytes(*self.text.get(at..)?.first_chunk::<8>()?);
        // A byte is a digit if xor with '0' leaves less than ten: adding 0x76 then leaves its top bit clear.
        let nibbles = window ^ (LOW_BITS * 0x30);
        let other = (((nibbles & (LOW_BITS * 0x7f)) + LOW_BITS * 0x76) | nibbles) & (LOW_BITS * 0x80);
        // The top bit stands for "none of the eight": its byte is a digit then, and no separator.
        let bits = (other | 1 << 63).trailing_zeros() & !7;
        if bits == 0 || (window >> bits) & self.mask != self.separator {
            return None;
        }
        Some((nibbles << (64 - bits), at + bits as usize / 8 + self.width))
    }
}

/// Value of eight decimal digits, the first in the lowest byte.
const fn eight_digits(nibbles: u64) -> u32 {
    let pairs = (nibbles.wrapping_mul(10)).wrapping_add(nibbles >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100)).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff) as u32
}

/// Bytes of text that one lane reads at a time.
const LANE_TEXT: usize = 512;
/// Most ids in it, the one that its end lies in included.
const LANE_IDS: usize = LANE_TEXT / 2 + 8;

/// Reads one part of a list. Four of these side by side: where the next number starts is only known when this one has
/// been looked at, so a single reader waits for its own last load most of the time.
#[derive(Debug, Clone, Copy)]
struct Lane {
    at: usize,
    end: usize,
    used: usize,
    digits: [u64; LANE_IDS],
}

impl Lane {
    const EMPTY: Self = Self { at: 0, end: 0, used: 0, digits: [0; LANE_IDS] };

    /// Reads one number if this lane has one left. False if there is something else.
    #[inline]
    fn step(&mut self, ids: &Ids<'_>) -> bool {
        if self.at >= self.end {
            return true;
        }
        let (Some((value, next)), Some(place)) = (ids.next(self.at), self.digits.get_mut(self.used)) else {
            return false;
        };
        *place = value;
        self.used += 1;
        self.at = next;
        true
    }

    /// Calls `put` with what was read. Numbers are made here and not while reading, so that it is vectorised.
    fn give(&self, put: &mut impl FnMut(&[u8])) {
        let mut ids = [[0; 4]; LANE_IDS];
        for (id, digits) in ids.iter_mut().zip(self.digits.get(..self.used).unwrap_or_default()) {
            *id = eight_digits(*digits).to_le_bytes();
        }
        put(ids.get(..self.used).unwrap_or_default().as_flattened());
    }
}

/// Calls `put` with the plain ids from `at` on, four bytes each, lowest first. Gives the offset of what it did not take,
/// which always is the start of an element.
pub fn plain_ids(text: &[u8], mut at: usize, mut put: impl FnMut(&[u8])) -> usize {
    let ids = Ids::new(text, at);
    let mut lanes = [Lane::EMPTY; 4];
    while let Some(end) = four(&ids, &mut lanes, at) {
        for lane in &lanes {
            lane.give(&mut put);
        }
        at = end;
    }
    let [lane, ..] = &mut lanes;
    loop {
        *lane = Lane { at, end: usize::MAX, used: 0, ..*lane };
        while lane.step(&ids) {}
        lane.give(&mut put);
        at = lane.at;
        if lane.used < LANE_IDS {
            return at;
        }
    }
}

/// Reads the next four lanes, and gives the offset behind them. `None` if they are not all plain ids.
fn four(ids: &Ids<'_>, lanes: &mut [Lane; 4], at: usize) -> Option<usize> {
    let mut start = at;
    for lane in lanes.iter_mut() {
        let end = start + LANE_TEXT;
        let comma = memchr(b',', ids.text.get(end..end + 8)?)?;
        (lane.at, lane.end, lane.used) = (start, end + comma + ids.width, 0);
        start = lane.end;
    }
    together(ids, lanes);
    for lane in lanes.iter_mut() {
        while lane.at < lane.end {
            if !lane.step(ids) {
                return None;
            }
        }
    }
    // A lane that read past its end did so because its end was no separator.
    lanes.iter().all(|lane| lane.at == lane.end).then_some(start)
}

/// Reads one number in each lane in turn, until one lane is at its end or at something else. The offsets are locals, as
/// a detour through memory would cost what the lanes gain.
fn together(ids: &Ids<'_>, lanes: &mut [Lane; 4]) {
    let [first, second, third, fourth] = lanes;
    let (mut a, mut b, mut c, mut d) = (first.at, second.at, third.at, fourth.at);
    let mut count = 0;
    let places = first.digits.iter_mut().zip(&mut second.digits).zip(third.digits.iter_mut().zip(&mut fourth.digits));
    for ((in_first, in_second), (in_third, in_fourth)) in places {
        if a >= first.end || b >= second.end || c >= third.end || d >= fourth.end {
            break;
        }
        let (Some(one), Some(two), Some(three), Some(four)) = (ids.next(a), ids.next(b), ids.next(c), ids.next(d))
        else {
            break;
        };
        (*in_first, a) = one;
        (*in_second, b) = two;
        (*in_third, c) = three;
        (*in_fourth, d) = four;
        count += 1;
    }
    for (lane, at) in lanes.iter_mut().zip([a, b, c, d]) {
        (lane.at, lane.used) = (at, count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_of_every_length_are_read() {
        let next = |text: &str| Ids::new(text.as_bytes(), 0).next(0).map(|(digits, next)| (eight_digits(digits), next));
        for (text, value, next_at) in
            [("0,11111111", 0, 2), ("7, 111111", 7, 3), ("1234567,1", 1_234_567, 8), ("123456, 1", 123_456, 8)]
        {
            assert_eq!(next(text), Some((value, next_at)), "{text}");
        }
        for text in ["-1,1111111", "12345678,1", "1,2", "", "x,1111111", ",11111111", "50256]xxxxx", "1 ,111111"] {
            assert_eq!(next(text), None, "{text}");
        }
        let skip = |text: &str| Ids::new(text.as_bytes(), 0).skip(0);
        assert_eq!([skip("01,1111111"), skip("0,11111111"), skip("10, 1111111")], [None, Some(2), Some(4)]);
        assert_eq!(Ids::new(b"1, 2,33333333", 0).next(3), None, "another separator");
    }

    proptest! {
        #[test]
        fn plain_ids_are_those_that_a_parser_reads(
            list in prop::collection::vec(prop_oneof![4 => 0_u32..200_000, 1 => 0_u32..10], 1..2000),
            spaced in any::<bool>(),
            odd in prop::option::of((any::<prop::sample::Index>(), prop_oneof![Just("-1"), Just("1.5"), Just("12345678"), Just("\"7\""), Just("[1"), Just(" 4")])),
        ) {
            let mut elements: Vec<String> = list.iter().map(u32::to_string).collect();
            let mut plain = list.len();
            if let Some((at, text)) = odd {
                plain = at.index(list.len());
                elements[plain] = text.to_owned();
            }
            let text = format!("{}]}}", elements.join(if spaced { ", " } else { "," }));
            let mut bytes = Vec::new();
            let at = plain_ids(text.as_bytes(), 0, |piece| bytes.extend_from_slice(piece));

            let taken = bytes.len() / 4;
            let expected: Vec<u8> = list.iter().take(taken).flat_map(|id| id.to_le_bytes()).collect();
            prop_assert_eq!(&bytes, &expected);
            prop_assert!(taken <= plain, "took {} of {}", taken, plain);
            // Only a list that ends, or an odd element, stops it.
            prop_assert!(taken + 8 > plain.min(list.len()), "took only {} of {}", taken, plain);
            let rest = elements.iter().skip(taken).cloned().collect::<Vec<_>>().join(if spaced { ", " } else { "," });
            // The white space before an element may be taken with the separator before it.
            let left = text.split_at(at).1.trim_start().to_owned();
            prop_assert_eq!(left, format!("{}]}}", rest.trim_start()));
        }
    }
}

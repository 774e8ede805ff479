//! The known word that a mistyped one most likely means.
//!
//! Levenshtein distance, at most a third of the word's length: beyond that a guess confuses more than it helps.

/// The known word nearest to `word`, if one is near.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    known
        .iter()
        .map(|candidate| (distance(word, candidate), *candidate))
        .min()
        .filter(|(distance, _)| *distance <= limit)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions and substitutions that turn one word into the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.chars()) {
            let substituted = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = substituted.min(*cell + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_edits() {
        for (a, b, edits) in
            [("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("same", "same", 0), ("ab", "ba", 2)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn only_a_near_word_is_suggested() {
        let known = ["max_prompt_tokens", "max_output_tokens", "on_excess"];

        assert_eq!(nearest("max_output_tokenz", &known), Some("max_output_tokens"));
        assert_eq!(nearest("colour", &known), None);
    }
}

//! What a sequence will say, known in full before it runs.
//!
//! Length, end and text follow from prompt, seed and parameters, so stop strings are found at submission and the engine
//! is asked for exactly the tokens up to them, as if it had looked after each token.
//! Real engines hold back as many characters as a stop string could still take; so do streams here.
//! Source: captures `stream/completions-stop*`, `stream/chat-stop_token_ids`.

use std::sync::Arc;

use crate::simulator::text;

/// Why a sequence ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finish {
    /// `max_tokens` reached.
    Length,
    /// The end-of-sequence token.
    Eos,
    /// A stop string.
    Stop(String),
    /// One of `stop_token_ids`.
    StopToken(u32),
}

impl Finish {
    /// `finish_reason` of the OpenAI endpoints.
    pub(super) fn reason(&self) -> &'static str {
        if *self == Self::Length { "length" } else { "stop" }
    }
}

/// When a sequence may end.
#[derive(Debug, Clone, Default)]
pub(super) struct StopRules {
    pub(super) max_tokens: usize,
    pub(super) min_tokens: usize,
    pub(super) ignore_eos: bool,
    pub(super) strings: Vec<String>,
    pub(super) token_ids: Vec<u32>,
    pub(super) keep_stop_string: bool,
    /// Mean length of an answer that ends by itself.
    pub(super) mean: usize,
}

/// The output of one sequence.
#[derive(Debug, Clone)]
pub(super) struct Output {
    pub(super) seed: u64,
    pub(super) length: usize,
    pub(super) finish: Finish,
    /// Bytes of the text that are shown, when a stop string cuts it.
    cut: Option<usize>,
    /// Bytes held back until the end, because a stop string might begin there.
    hold: usize,
    script: Option<Arc<[u32]>>,
}

impl Output {
    /// Plans the output that `seed` names.
    pub(super) fn plan(seed: u64, rules: &StopRules) -> Self {
        let natural = text::natural_length(seed, rules.mean).max(rules.min_tokens) + 1;
        let (length, finish) = if rules.ignore_eos || natural > rules.max_tokens {
            (rules.max_tokens, Finish::Length)
        } else {
            (natural, Finish::Eos)
        };
        let mut output = Self { seed, length, finish, cut: None, hold: 0, script: None };
        if !rules.strings.is_empty() || !rules.token_ids.is_empty() {
            output.find_stop(rules);
        }
        output
    }

    /// Plans the output `words`, cut at `max_tokens`: arguments of a tool call.
    pub(super) fn scripted(seed: u64, words: &str, max_tokens: usize) -> Self {
        let script: Arc<[u32]> = text::tokenize(words).into();
        let natural = script.len() + 1;
        let (length, finish) = if natural > max_tokens { (max_tokens, Finish::Length) } else { (natural, Finish::Eos) };
        Self { seed, length, finish, cut: None, hold: 0, script: Some(script) }
    }

    /// Id of token `index`.
    pub(super) fn token(&self, index: usize) -> u32 {
        if self.finish == Finish::Eos && index + 1 == self.length {
            return text::EOS;
        }
        match &self.script {
            Some(script) => script.get(index).copied().unwrap_or(text::EOS),
            None => text::output_token(self.seed, index),
        }
    }

    /// Whether the last token is one that shows no text.
    fn silent_end(&self) -> bool {
        matches!(self.finish, Finish::Eos | Finish::StopToken(_))
    }

    /// Appends the text of tokens `from..to` to `all`, without regard to stop strings.
    pub(super) fn append(&self, from: usize, to: usize, all: &mut String) {
        let end = if self.silent_end() { to.min(self.length.saturating_sub(1)) } else { to };
        let ids: Vec<u32> = (from..end).map(|index| self.token(index)).collect();
        all.push_str(&text::detokenize(&ids));
    }

    /// How much of `all`, the text of the first `generated` tokens, may be shown.
    pub(super) fn visible(&self, all: &str, generated: usize) -> usize {
        let end = if generated >= self.length { all.len() } else { all.len().saturating_sub(self.hold) };
        all.floor_char_boundary(self.cut.map_or(end, |cut| end.min(cut)))
    }

    /// The whole text.
    pub(super) fn text(&self) -> String {
        let mut all = String::new();
        self.append(0, self.length, &mut all);
        all.truncate(self.visible(&all, self.length));
        all
    }

    fn find_stop(&mut self, rules: &StopRules) {
        self.hold = rules.strings.iter().map(String::len).max().unwrap_or(0).saturating_sub(1);
        let mut all = String::new();
        for index in 0..self.length {
            let id = self.token(index);
            if index + 1 > rules.min_tokens && rules.token_ids.contains(&id) {
                (self.length, self.finish) = (index + 1, Finish::StopToken(id));
                return;
            }
            let searched = all.floor_char_boundary(all.len().saturating_sub(self.hold));
            all.push_str(&text::detokenize(&[id]));
            if index + 1 < rules.min_tokens.max(1) {
                continue;
            }
            let tail = all.get(searched..).unwrap_or_default();
            let hit = rules.strings.iter().filter_map(|stop| tail.find(stop.as_str()).map(|at| (at, stop))).min();
            if let Some((at, stop)) = hit {
                let kept = if rules.keep_stop_string { stop.len() } else { 0 };
                self.cut = Some(searched + at + kept);
                (self.length, self.finish) = (index + 1, Finish::Stop(stop.clone()));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(max_tokens: usize) -> StopRules {
        StopRules { max_tokens, mean: 128, ignore_eos: true, ..StopRules::default() }
    }

    #[test]
    fn ignore_eos_runs_to_max_tokens_and_otherwise_the_answer_ends_by_itself() {
        assert_eq!(Output::plan(1, &rules(1000)).length, 1000);
        let natural = Output::plan(1, &StopRules { ignore_eos: false, ..rules(1000) });
        assert!((64..=193).contains(&natural.length), "{}", natural.length);
        assert_eq!(natural.finish, Finish::Eos);
        let longer = Output::plan(1, &StopRules { ignore_eos: false, min_tokens: 500, ..rules(1000) });
        assert_eq!(longer.length, 501);
    }

    #[test]
    fn a_stop_string_across_tokens_ends_the_text_before_it() {
        let plain = Output::plan(3, &rules(50)).text();
        let words: Vec<&str> = plain.split(' ').skip(1).collect();
        let stop = format!("{} {}", words[10], words[11].chars().next().unwrap());

        let output = Output::plan(3, &StopRules { strings: vec![stop.clone()], ..rules(50) });

        assert_eq!(output.finish, Finish::Stop(stop.clone()));
        assert!(plain.starts_with(&output.text()) && !output.text().contains(&stop));
        assert!(output.length <= 12);
    }

    #[test]
    fn text_is_held_back_while_a_stop_string_might_begin() {
        let output = Output::plan(3, &StopRules { strings: vec!["never seen".to_owned()], ..rules(20) });
        let mut all = String::new();
        output.append(0, 5, &mut all);

        assert_eq!(output.visible(&all, 5), all.len() - 9);
        assert_eq!(output.visible(&all, 20), all.len(), "at the end all is shown");
    }

    #[test]
    fn a_stop_token_shows_no_text() {
        let id = text::output_token(3, 4);
        let first = (0..5).find(|at| text::output_token(3, *at) == id).unwrap();

        let output = Output::plan(3, &StopRules { token_ids: vec![id], ..rules(20) });

        assert_eq!((output.length, &output.finish), (first + 1, &Finish::StopToken(id)));
        assert_eq!(text::tokenize(&output.text()).len(), first);
    }

    #[test]
    fn a_script_is_said_word_for_word() {
        let output = Output::scripted(1, "{\"city\": \"Paris\"}", 100);

        assert_eq!(output.text(), "{\"city\": \"Paris\"}");
        assert_eq!(output.finish, Finish::Eos);
        assert_eq!(Output::scripted(1, "{\"city\": \"Paris\"}", 2).finish, Finish::Length);
    }
}

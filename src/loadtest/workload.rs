//! What is asked: prompts of drawn lengths, shared prefixes, conversations; every byte from the seed.
//!
//! Synthetic text is of short common words, one token each in most vocabularies; what the engine counted is in `usage`
//! and is what reports show. The nonce comes from the seed as well, behind the shared prefix: two runs of one seed send
//! the same bytes, so give runs that must not share a cache different seeds. Later turns of a conversation carry a made-up
//! answer, not the engine's, or two runs could not be compared.

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, Zipf};
use serde_json::{Value, json};

use super::{
    body::{Style, body},
    clock::whole,
    lengths::{Shape, draw},
    prompts::Prompt,
    trace::Row,
};

/// One token each with the space before it.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "it", "for", "was", "on", "with", "as", "at", "by", "from", "this",
    "have", "or", "one", "had", "not", "but", "what", "all", "were", "when", "we", "there", "can", "an", "your",
    "which", "said", "if", "do", "will", "each", "about", "how", "up", "out", "them", "then", "she", "many", "some",
    "so", "these", "would", "other", "into", "has", "more", "two", "like", "him", "see", "time", "could", "no", "make",
    "than", "first",
];

/// A share of the traffic with its own name and key.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Name in reports.
    pub name: String,
    /// Weight among the tenants.
    pub share: f64,
    /// Environment variable with its key.
    pub key_variable: Option<String>,
}

/// What requests look like.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Endpoint, model and body members.
    pub style: Style,
    /// Mean prompt tokens, shared prefix not counted.
    pub input: usize,
    /// Mean answer tokens.
    pub output: usize,
    /// Shape of both.
    pub shape: Shape,
    /// Tokens of the prefix that the requests of a group share.
    pub shared_prefix: usize,
    /// Groups of the prefix, and the exponent of their popularity.
    pub groups: (usize, f64),
    /// Turns of a conversation.
    pub turns: usize,
    /// Put a nonce in front of what is not shared.
    pub nonce: bool,
    /// Prompts of a file instead of synthetic ones.
    pub prompts: Vec<Prompt>,
    /// Tenants; empty for none.
    pub tenants: Vec<Tenant>,
    /// Share of requests that are cancelled after some tokens.
    pub cancel_rate: f64,
    /// Share of requests whose answer is read slowly.
    pub slow_readers: f64,
    /// Seed of everything.
    pub seed: u64,
}

/// One request, ready to send.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The body.
    pub body: Bytes,
    /// Prompt tokens asked for, all turns so far.
    pub input: usize,
    /// Answer tokens asked for.
    pub output: usize,
    /// Turn of its conversation, from 0.
    pub turn: usize,
    /// Group of its prefix.
    pub group: usize,
    /// Index of its tenant.
    pub tenant: Option<usize>,
    /// Leave after this many token chunks.
    pub cancel_after: Option<usize>,
    /// Read slowly.
    pub slow: bool,
}

/// One conversation: its turns are sent one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// The turns.
    pub turns: Vec<Request>,
}

/// A generator for one purpose, so that one flag does not shift the draws of another.
#[must_use]
pub fn rng(seed: u64, purpose: u64) -> StdRng {
    StdRng::seed_from_u64(xxhash_rust::xxh3::xxh3_64_with_seed(&purpose.to_le_bytes(), seed))
}

/// Synthetic text of about this many tokens.
fn words(rng: &mut StdRng, tokens: usize) -> String {
    let mut text = String::with_capacity(tokens * 5);
    for at in 0..tokens {
        if at > 0 {
            text.push(' ');
        }
        text.push_str(WORDS.get(rng.random_range(0..WORDS.len())).copied().unwrap_or("the"));
    }
    text
}

impl Spec {
    /// The sessions that hold `requests` requests.
    #[must_use]
    pub fn sessions(&self, requests: usize) -> Vec<Session> {
        let turns = self.turns.max(1);
        let prefixes = self.prefixes();
        let mut draws = Draws::new(self);
        let mut left = requests;
        let mut sessions = Vec::with_capacity(requests.div_ceil(turns));
        while left > 0 {
            let here = turns.min(left);
            left -= here;
            sessions.push(self.session(here, &prefixes, &mut draws));
        }
        sessions
    }

    fn prefixes(&self) -> Vec<String> {
        if self.shared_prefix == 0 {
            return Vec::new();
        }
        let mut rng = rng(self.seed, 1);
        (0..self.groups.0.max(1)).map(|_| words(&mut rng, self.shared_prefix)).collect()
    }

    fn session(&self, turns: usize, prefixes: &[String], draws: &mut Draws) -> Session {
        let group = draws.group();
        let tenant = draws.tenant(&self.tenants);
        let mut messages: Vec<Value> = Vec::new();
        let mut input = 0;
        if let Some(prefix) = prefixes.get(group) {
            messages.push(json!({ "role": "system", "content": prefix }));
            input += self.shared_prefix;
        }
        let file = self.prompts.get(draws.prompt(self.prompts.len()));
        let mut made = Vec::with_capacity(turns);
        for turn in 0..turns {
            let nonce = if self.nonce && turn == 0 { draws.nonce() } else { String::new() };
            let output = file.and_then(|prompt| prompt.output).unwrap_or_else(|| draws.output(self));
            match file.filter(|_| turn == 0) {
                Some(prompt) => {
                    let asked = with_nonce(&prompt.messages, &nonce);
                    input += asked.iter().map(|message| message.to_string().len() / 4).sum::<usize>();
                    messages.extend(asked);
                }
                None => {
                    let tokens = draws.input(self);
                    input += tokens;
                    let text = nonce + &words(&mut draws.text, tokens);
                    messages.push(json!({ "role": "user", "content": text }));
                }
            }
            made.push(Request {
                body: body(&self.style, &messages, output),
                input,
                output,
                turn,
                group,
                tenant,
                cancel_after: draws.cancel(self.cancel_rate, output),
                slow: draws.slow(self.slow_readers),
            });
            if turn + 1 < turns {
                input += output;
                messages.push(json!({ "role": "assistant", "content": words(&mut draws.text, output) }));
            }
        }
        Session { turns: made }
    }

    /// One session of one request for each row of a trace; equal block hashes give equal text.
    #[must_use]
    pub fn of_trace(&self, rows: &[Row]) -> Vec<Session> {
        let mut draws = Draws::new(self);
        let mut sessions = Vec::with_capacity(rows.len());
        for row in rows {
            let mut text = String::new();
            let mut left = row.input;
            for hash in &row.blocks {
                let here = left.min(row.block_tokens);
                left -= here;
                text.push_str(&words(&mut rng(self.seed ^ hash, 2), here));
                text.push(' ');
            }
            if row.blocks.is_empty() && self.nonce {
                text.push_str(&draws.nonce());
            }
            text.push_str(&words(&mut draws.text, left));
            let messages = [json!({ "role": "user", "content": text })];
            let request = Request {
                body: body(&self.style, &messages, row.output),
                input: row.input,
                output: row.output,
                turn: 0,
                group: 0,
                tenant: draws.tenant(&self.tenants),
                cancel_after: draws.cancel(self.cancel_rate, row.output),
                slow: draws.slow(self.slow_readers),
            };
            sessions.push(Session { turns: vec![request] });
        }
        sessions
    }

    /// A canary: one short prompt, one token.
    #[must_use]
    pub fn probe(&self, index: u64) -> Bytes {
        let text = words(&mut rng(self.seed ^ index, 3), 8);
        body(&self.style, &[json!({ "role": "user", "content": text })], 1)
    }
}

/// The nonce goes in front of the last message, behind whatever may be shared.
fn with_nonce(messages: &Value, nonce: &str) -> Vec<Value> {
    let mut messages: Vec<Value> = messages.as_array().cloned().unwrap_or_default();
    if let Some(Value::String(content)) = messages.last_mut().and_then(|message| message.get_mut("content")) {
        content.insert_str(0, nonce);
    }
    messages
}

/// The random streams, one a purpose.
struct Draws {
    lengths: StdRng,
    text: StdRng,
    group: StdRng,
    scenario: StdRng,
    nonce: StdRng,
    zipf: Option<Zipf<f64>>,
    next_prompt: usize,
}

impl Draws {
    fn new(spec: &Spec) -> Self {
        let (groups, exponent) = spec.groups;
        Self {
            lengths: rng(spec.seed, 10),
            text: rng(spec.seed, 11),
            group: rng(spec.seed, 12),
            scenario: rng(spec.seed, 13),
            nonce: rng(spec.seed, 14),
            zipf: Zipf::new(groups.max(1) as f64, exponent).ok(),
            next_prompt: 0,
        }
    }

    fn input(&mut self, spec: &Spec) -> usize {
        draw(spec.shape, spec.input, &mut self.lengths)
    }

    fn output(&mut self, spec: &Spec) -> usize {
        draw(spec.shape, spec.output, &mut self.lengths)
    }

    fn group(&mut self) -> usize {
        let group = &mut self.group;
        self.zipf.as_ref().map_or(0, |zipf| whole(zipf.sample(group)).saturating_sub(1))
    }

    fn prompt(&mut self, count: usize) -> usize {
        let at = self.next_prompt;
        self.next_prompt += 1;
        at.checked_rem(count).unwrap_or(0)
    }

    fn nonce(&mut self) -> String {
        format!("[{:016x}] ", self.nonce.random::<u64>())
    }

    fn tenant(&mut self, tenants: &[Tenant]) -> Option<usize> {
        let total: f64 = tenants.iter().map(|tenant| tenant.share).sum();
        if tenants.is_empty() {
            return None;
        }
        let mut left = self.scenario.random::<f64>() * total;
        let found = tenants.iter().position(|tenant| {
            left -= tenant.share;
            left < 0.0
        });
        Some(found.unwrap_or(tenants.len() - 1))
    }

    fn cancel(&mut self, rate: f64, output: usize) -> Option<usize> {
        let (chosen, at) = (self.scenario.random::<f64>(), self.scenario.random::<f64>());
        (chosen < rate).then(|| whole(1.0 + at * (output.saturating_sub(1)) as f64 / 2.0))
    }

    fn slow(&mut self, rate: f64) -> bool {
        self.scenario.random::<f64>() < rate
    }
}

#[cfg(test)]
mod tests {
    use super::super::{body::Api, prompts, trace};
    use super::*;
    use crate::simulator::text::tokenize;

    fn spec() -> Spec {
        let style = Style {
            api: Api::Chat,
            model: "m".into(),
            ignore_eos: true,
            per_chunk_usage: false,
            extra: serde_json::Map::new(),
        };
        Spec {
            style,
            input: 100,
            output: 16,
            shape: Shape::Fixed,
            shared_prefix: 0,
            groups: (1, 1.0),
            turns: 1,
            nonce: false,
            prompts: Vec::new(),
            tenants: Vec::new(),
            cancel_rate: 0.0,
            slow_readers: 0.0,
            seed: 7,
        }
    }

    fn messages(request: &Request) -> Vec<Value> {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        body["messages"].as_array().unwrap().clone()
    }

    fn content(request: &Request, at: usize) -> String {
        messages(request)[at]["content"].as_str().unwrap().to_owned()
    }

    #[test]
    fn the_same_seed_makes_the_same_bytes_and_another_seed_others() {
        let busy =
            Spec { shape: Shape::Lognormal, shared_prefix: 32, groups: (8, 1.2), turns: 3, nonce: true, ..spec() };
        let sessions = busy.sessions(50);
        assert_eq!(sessions, busy.sessions(50));
        assert_ne!(sessions, Spec { seed: 8, ..busy }.sessions(50));
    }

    #[test]
    fn a_word_is_a_token() {
        let text = content(&spec().sessions(1)[0].turns[0], 0);
        assert_eq!(tokenize(&text).len(), 100, "{text}");
    }

    #[test]
    fn the_nonce_makes_every_prompt_its_own_behind_the_shared_prefix() {
        let spec = Spec { nonce: true, shared_prefix: 20, ..spec() };
        let sessions = spec.sessions(2);
        let (a, b) = (&sessions[0].turns[0], &sessions[1].turns[0]);
        assert_eq!(content(a, 0), content(b, 0));
        assert_ne!(content(a, 1).get(..19), content(b, 1).get(..19));
    }

    #[test]
    fn a_later_turn_begins_with_the_whole_turn_before() {
        let sessions = Spec { turns: 3, ..spec() }.sessions(7);
        assert_eq!(sessions.iter().map(|session| session.turns.len()).collect::<Vec<_>>(), [3, 3, 1]);
        let (first, third) = (messages(&sessions[0].turns[0]), messages(&sessions[0].turns[2]));
        assert_eq!((third.len(), &third[0]), (5, &first[0]));
        assert_eq!(sessions[0].turns[2].input, 3 * 100 + 2 * 16);
    }

    #[test]
    fn group_popularity_follows_zipf() {
        let spec = Spec { shared_prefix: 4, groups: (10, 1.0), ..spec() };
        let sessions = spec.sessions(20_000);
        let first = sessions.iter().filter(|session| session.turns[0].group == 0).count() as f64 / 20_000.0;
        // 1 / H(10) = 0.3414.
        assert!((first - 0.3414).abs() < 0.015, "{first}");
    }

    #[test]
    fn tenants_get_their_shares() {
        let tenant = |name: &str, share| Tenant { name: name.into(), share, key_variable: None };
        let sessions = Spec { tenants: vec![tenant("a", 3.0), tenant("b", 1.0)], ..spec() }.sessions(4000);
        let first = sessions.iter().filter(|session| session.turns[0].tenant == Some(0)).count();
        assert!((2880..3120).contains(&first), "{first}");
    }

    #[test]
    fn equal_blocks_of_a_trace_are_equal_text() {
        let rows = trace::read(
            "{\"timestamp\":0,\"input_length\":1100,\"output_length\":5,\"hash_ids\":[1,2,3]}\n{\"timestamp\":9,\"input_length\":1200,\"output_length\":5,\"hash_ids\":[1,2,4]}",
        )
        .unwrap();
        let sessions = spec().of_trace(&rows);
        let (a, b) = (content(&sessions[0].turns[0], 0), content(&sessions[1].turns[0], 0));
        let common = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
        assert_eq!(tokenize(a.get(..common).unwrap()).len() / 64, 1024 / 64);
        assert!((1100..=1103).contains(&tokenize(&a).len()));
    }

    #[test]
    fn prompts_of_a_file_are_taken_in_turn_with_their_own_lengths() {
        let prompts = prompts::read("{\"prompt\":\"a\",\"output_tokens\":7}\n{\"prompt\":\"b\"}").unwrap();
        let sessions = Spec { prompts, ..spec() }.sessions(3);
        let seen: Vec<_> = sessions.iter().map(|s| (content(&s.turns[0], 0), s.turns[0].output)).collect();
        assert_eq!(seen, [("a".to_owned(), 7), ("b".to_owned(), 16), ("a".to_owned(), 7)]);
    }
}

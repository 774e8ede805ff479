//! Output caps: what the engine may be asked for, whatever shape the request gives its limit.
//!
//! Every occurrence of every limit is judged and rewritten, the endpoint's own fields and those of the other dialects
//! alike: whichever duplicate an engine takes, the cap holds. A cap counts over all answers to one request, so it is
//! divided by `n` (or `best_of`, whose searches and beams cost as much) times the prompts of a batch.

use bytes::Bytes;

use crate::{
    config::{Caps, OnExcess},
    dialect::{
        json::{Cursor, Kind},
        scan::{self, Fields, Span},
        splice::Splices,
    },
    error::{ErrorKind, GatewayError, Stage},
    types::Endpoint,
};

/// The caps of one request: of model and key the stricter one, each with its own word on excess.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Prompt tokens.
    pub prompt: Option<u64>,
    /// Output tokens over all choices.
    pub output: Option<u64>,
    /// Output tokens over all choices above which the request is refused; between the two it is lowered.
    pub refuse: Option<u64>,
    /// Output tokens of each choice when the request names no limit.
    pub fill: Option<u64>,
    /// Whether output is lowered to fit the model's context.
    pub clamps: bool,
}

impl Limits {
    /// What holds for a request of this model with this key.
    #[must_use]
    pub fn new(model: &Caps, key: Option<&Caps>) -> Self {
        let all = || [Some(model), key].into_iter().flatten();
        let refusing = || all().filter(|caps| caps.on_excess == OnExcess::Reject);
        Self {
            prompt: all().filter_map(|caps| caps.max_prompt_tokens).min(),
            output: all().filter_map(|caps| caps.max_output_tokens).min(),
            refuse: refusing().filter_map(|caps| caps.max_output_tokens).min(),
            fill: all().filter_map(|caps| caps.default_output_tokens).min(),
            clamps: all().any(|caps| caps.on_excess == OnExcess::Clamp),
        }
    }

    /// Whether output is bounded at all.
    #[must_use]
    pub fn bounds_output(&self) -> bool {
        self.output.is_some() || self.fill.is_some()
    }
}

/// Fields that bound the output of some endpoint.
const NAMES: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

/// Fields that the engine reads at this endpoint; the first one is added where there is none.
const fn own(endpoint: Endpoint) -> &'static [&'static str] {
    match endpoint {
        Endpoint::Responses => &["max_output_tokens"],
        Endpoint::Chat => &["max_tokens", "max_completion_tokens"],
        _ => &["max_tokens"],
    }
}

fn field(fields: &Fields, name: &str) -> Option<Span> {
    match name {
        "max_tokens" => fields.max_tokens,
        "max_completion_tokens" => fields.max_completion_tokens,
        "max_output_tokens" => fields.max_output_tokens,
        _ => fields.min_tokens,
    }
}

/// The output of one request: what it asked for, what it gets.
#[derive(Debug)]
pub struct Output<'a> {
    body: &'a [u8],
    fields: &'a Fields,
    own: &'static [&'static str],
    limits: Limits,
    /// Whether the request generates.
    generates: bool,
    /// Whether zero is a limit that engines read as none at all to generate.
    zero: bool,
    /// Answers that the engine generates.
    choices: u64,
    /// Cap of each answer.
    each: Option<u64>,
    /// Largest of the limits that the engine reads.
    asked: Option<u64>,
}

impl<'a> Output<'a> {
    /// Judges a request's limits.
    ///
    /// # Errors
    /// `OverCap` naming field, value and cap, or `BadRequest` for a value that is no whole number above zero.
    pub fn judge(body: &'a [u8], fields: &'a Fields, endpoint: Endpoint, limits: Limits) -> Result<Self, GatewayError> {
        let mut output = Self {
            body,
            fields,
            own: own(endpoint),
            limits,
            generates: endpoint.generates(),
            zero: endpoint == Endpoint::Completions,
            choices: 1,
            each: None,
            asked: None,
        };
        if !output.generates {
            return Ok(output);
        }
        let capped = limits.bounds_output();
        let (choices, word) = choices(body, fields, endpoint, capped)?;
        output.choices = choices;
        output.each = limits.output.map(|cap| cap / choices);
        if output.each == Some(0) {
            return Err(output.excess(word, choices));
        }
        if capped {
            for name in NAMES.into_iter().chain(["min_tokens"]) {
                for span in set(body, fields, name) {
                    output.hold(span, name)?;
                }
            }
        }
        let last = output.own.iter().filter_map(|name| field(fields, name));
        output.asked = last.filter_map(|span| whole(body, span, output.zero)).max();
        Ok(output)
    }

    /// Answers that the engine generates for the request.
    #[must_use]
    pub fn choices(&self) -> u64 {
        self.choices
    }

    /// The limit of each answer that the request itself names, lowered to the cap. `None` if it names none.
    #[must_use]
    pub fn named(&self) -> Option<u64> {
        self.asked.map(|asked| self.each.map_or(asked, |each| asked.min(each)))
    }

    /// The limit of each answer that the engine will read; `None` if nothing bounds it.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.named().or_else(|| self.filled())
    }

    /// The limit that a request without one gets.
    fn filled(&self) -> Option<u64> {
        match (self.limits.fill, self.each) {
            (Some(fill), Some(each)) => Some(fill.min(each)),
            (fill, each) => fill.or(each),
        }
    }

    /// Lowers the limit of each answer to `room` tokens, at least one.
    pub fn fit(&mut self, room: u64) {
        let room = room.max(1);
        self.each = Some(self.each.map_or(room, |each| each.min(room)));
    }

    /// Whether a limit is lower than the request names it.
    #[must_use]
    pub fn lowered(&self) -> bool {
        self.asked > self.named()
    }

    /// Writes the limits into the request.
    pub fn splice(&self, splices: &mut Splices) {
        if !self.generates || (!self.limits.bounds_output() && self.each.is_none()) {
            return;
        }
        let (body, fields) = (self.body, self.fields);
        if let Some(each) = self.each {
            for name in NAMES.into_iter().chain(["min_tokens"]) {
                for span in set(body, fields, name) {
                    if whole(body, span, true).is_some_and(|value| value > each) {
                        splices.replace(span, Bytes::from(each.to_string()));
                    }
                }
            }
        }
        // A room in the context bounds what is named only: without a limit the engine takes what there is.
        let Some(fill) = self.filled().filter(|_| self.limits.bounds_output()) else { return };
        // The last occurrence is what an engine reads; one that is null is no limit.
        let named = self.own.iter().any(|name| field(fields, name).is_some_and(|span| span.of(body) != b"null"));
        let fill = fill.to_string();
        for name in self.own {
            let last = field(fields, name);
            for span in occurrences(fields, name, last).filter(|span| span.of(body) == b"null") {
                if !named || last != Some(span) {
                    splices.replace(span, Bytes::from(fill.clone()));
                }
            }
        }
        if let (true, Some(name)) = (self.own.iter().all(|name| field(fields, name).is_none()), self.own.first()) {
            splices.add_member(fields, name, &fill);
        }
    }

    fn hold(&self, span: Span, name: &'static str) -> Result<(), GatewayError> {
        let zero = self.zero || name == "min_tokens";
        let most = self.each.unwrap_or(u64::MAX);
        match whole(self.body, span, zero) {
            Some(value) => match self.limits.refuse {
                Some(refuse) if value > refuse / self.choices => Err(self.excess(name, value)),
                _ => Ok(()),
            },
            // Negative, fractional, a string: no engine reads it as a number under the cap for sure.
            None if self.each.is_some() => {
                let from = u8::from(!zero);
                let message = format!("{name} must be a whole number from {from} to {most}");
                Err(GatewayError::new(ErrorKind::BadRequest, Stage::Admit, message).param(name))
            }
            None => Ok(()),
        }
    }

    fn excess(&self, name: &'static str, value: u64) -> GatewayError {
        let cap = self.limits.refuse.or(self.limits.output).unwrap_or_default();
        let over = if self.choices > 1 { format!(" over all {} choices", self.choices) } else { String::new() };
        let message = format!("{name} is {value}; this gateway allows at most {cap} output tokens{over}");
        GatewayError::new(ErrorKind::OverCap, Stage::Admit, message).param(name)
    }
}

/// Answers that the engine generates for one request, and the field that says so: the largest of `n` and `best_of`, in
/// any occurrence, times the prompts of a batch.
fn choices(
    body: &[u8],
    fields: &Fields,
    endpoint: Endpoint,
    capped: bool,
) -> Result<(u64, &'static str), GatewayError> {
    let (mut most, mut word) = (1, "n");
    for (name, last) in [("n", fields.n), ("best_of", fields.best_of)] {
        for span in occurrences(fields, name, last).filter(|span| span.of(body) != b"null") {
            let Some(value) = whole(body, span, false) else {
                if capped {
                    let message = format!("{name} must be a whole number of at least 1");
                    return Err(GatewayError::new(ErrorKind::BadRequest, Stage::Admit, message).param(name));
                }
                continue;
            };
            if value > most {
                (most, word) = (value, name);
            }
        }
    }
    if endpoint == Endpoint::Completions {
        let prompts = occurrences(fields, "prompt", fields.prompt).map(|span| batch(body, span)).max().unwrap_or(1);
        if prompts > most {
            word = "prompt";
        }
        most = most.saturating_mul(prompts);
    }
    Ok((most, word))
}

/// Prompts in a `prompt`: a list of strings or of lists has several, anything else is one.
fn batch(body: &[u8], span: Span) -> u64 {
    let mut cursor = Cursor::new(body, span.start);
    if cursor.kind() != Kind::Array {
        return 1;
    }
    let mut count = 0;
    let Ok(mut more) = cursor.open(b'[', b']') else { return 1 };
    while more {
        if cursor.kind() == Kind::Scalar {
            // Token ids of one prompt.
            return count + 1;
        }
        count += 1;
        more = cursor.value().is_ok() && cursor.more(b']').unwrap_or(false);
    }
    count.max(1)
}

/// A whole number above zero, or from zero on.
fn whole(body: &[u8], span: Span, zero: bool) -> Option<u64> {
    scan::int_value(body, span).and_then(|value| u64::try_from(value).ok()).filter(|value| zero || *value > 0)
}

/// Every value of a field that is not null.
fn set<'a>(body: &'a [u8], fields: &'a Fields, name: &'a str) -> impl Iterator<Item = Span> + 'a {
    occurrences(fields, name, field(fields, name)).filter(|span| span.of(body) != b"null")
}

/// All value spans of a field, earlier duplicates first.
pub(super) fn occurrences<'a>(
    fields: &'a Fields,
    name: &'a str,
    last: Option<Span>,
) -> impl Iterator<Item = Span> + 'a {
    fields.duplicates_of(name).chain(last)
}

#[cfg(test)]
mod tests;

//! A model's chat template, rendered as transformers renders it.
//!
//! The template is Jinja written for Python: methods of strings and dicts, `raise_exception`, `strftime_now`, and a
//! `tojson` of their own. It comes with the model and is trusted as the model is; it cannot load anything.

use std::collections::BTreeMap;

use minijinja::{Environment, Error, ErrorKind, State, Value, syntax::SyntaxConfig, value::Kwargs};
use serde::Deserialize;

use super::python;

/// Steps that one rendering may take; a conversation of a thousand turns takes some hundred thousand.
const FUEL: u64 = 20_000_000;

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct TemplateError {
    what: &'static str,
    #[source]
    cause: Error,
}

/// The part of `tokenizer_config.json` that templates read.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct TokenizerConfig {
    /// The template, or several by name.
    #[serde(default)]
    chat_template: Option<Templates>,
    #[serde(flatten)]
    other: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Debug, Clone, Deserialize)]
struct Named {
    name: String,
    template: String,
}

impl TokenizerConfig {
    /// The template inside; of several the one named `default`.
    #[must_use]
    pub fn template(&self) -> Option<&str> {
        match self.chat_template.as_ref()? {
            Templates::One(text) => Some(text),
            Templates::Named(all) => {
                all.iter().find(|named| named.name == "default").map(|named| named.template.as_str())
            }
        }
    }

    /// `bos_token` and its like, by name.
    fn tokens(&self) -> BTreeMap<String, Value> {
        let text = |value: &serde_json::Value| {
            value.as_str().or_else(|| value.get("content").and_then(serde_json::Value::as_str)).map(Value::from)
        };
        let tokens = self.other.iter().filter(|(key, _)| key.ends_with("_token"));
        tokens.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
    }
}

/// How a template wants the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// One text; engines join the parts.
    Text,
    /// A list of parts.
    Parts,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: BTreeMap<String, Value>,
    format: ContentFormat,
    length: usize,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles a template; special tokens come from the tokenizer's configuration.
    ///
    /// # Errors
    /// When it is no template.
    pub fn new(source: &str, config: &TokenizerConfig) -> Result<Self, TemplateError> {
        let wrong = |cause| TemplateError { what: "the chat template cannot be compiled", cause };
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(wrong)?;
        let mut environment = Environment::new();
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, state, value| match python::word(value) {
            Some(word) => Ok(out.write_str(&word)?),
            None => minijinja::escape_formatter(out, state, value),
        });
        environment.set_fuel(Some(FUEL));
        environment.add_filter("tojson", |value: &Value, options: Kwargs| python::tojson(value, &options));
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |state: &State<'_, '_>, format: String| {
            let now = state.lookup("__now").and_then(|now| i64::try_from(now).ok()).unwrap_or_default();
            strftime(&format, now)
        });
        environment.add_template_owned(NAME, source.to_owned()).map_err(wrong)?;
        Ok(Self { environment, tokens: config.tokens(), format: content_format(source), length: source.len() })
    }

    /// How it wants the content of messages.
    #[must_use]
    pub fn format(&self) -> ContentFormat {
        self.format
    }

    /// Bytes of its source: more text than these, each time round, it cannot add.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The text of a conversation. `variables` are `messages`, `tools` and whatever else the request sets; `now` is the
    /// time in seconds since 1970 for templates that print the date.
    ///
    /// # Errors
    /// When the template refuses the conversation, or reads what is not there.
    pub fn render(&self, variables: Vec<(String, Value)>, now: i64) -> Result<String, TemplateError> {
        let wrong = |cause| TemplateError { what: "the chat template refuses the conversation", cause };
        let mut all = self.tokens.clone();
        all.extend(variables);
        all.insert("__now".to_owned(), now.into());
        let template = self.environment.get_template(NAME).map_err(wrong)?;
        template.render(Value::from_pairs(all)).map_err(wrong)
    }
}

/// Whether the template goes through the parts of a content: then engines give it parts, else one text.
///
/// Both engines look for a loop over `content`; so a loop over something that ends in that word is one.
fn content_format(source: &str) -> ContentFormat {
    let loops = source.split("{%").skip(1).filter_map(|rest| rest.split_once("%}").map(|(inside, _)| inside));
    let parts = loops.map(|inside| inside.trim_matches(['-', '+']).trim()).any(|inside| {
        let Some((_, over)) = inside.strip_prefix("for ").and_then(|rest| rest.split_once(" in ")) else {
            return false;
        };
        let over = over.split(['|', ' ']).next().unwrap_or_default();
        over.trim_end_matches(['\'', '"', ']']).ends_with("content")
    });
    if parts { ContentFormat::Parts } else { ContentFormat::Text }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The directives of `strftime` that chat templates use, in UTC; others stay as they are.
fn strftime(format: &str, now: i64) -> String {
    let (days, seconds) = (now.div_euclid(86_400), now.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let name = |names: &[&'static str], at: i64| -> &'static str {
        usize::try_from(at).ok().and_then(|at| names.get(at).copied()).unwrap_or_default()
    };
    let (month_name, day_name) = (name(&MONTHS, month - 1), name(&DAYS, days.rem_euclid(7)));
    let short = |word: &'static str| word.get(..3).unwrap_or(word).to_owned();
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year.rem_euclid(100))),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&short(month_name)),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&short(day_name)),
            Some('H') => out.push_str(&format!("{:02}", seconds / 3600)),
            Some('M') => out.push_str(&format!("{:02}", seconds / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", seconds % 60)),
            Some('%') | None => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
        }
    }
    out
}

/// Year, month and day of a day since 1970 in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Counted from 1 March of the year 0, in eras of 400 years, so that a leap day comes last.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, json: &str) -> Result<String, TemplateError> {
        let config: TokenizerConfig =
            serde_json::from_str(r#"{"bos_token":"<s>","eos_token":{"content":"</s>","lstrip":false},"x":1}"#).unwrap();
        let variables: BTreeMap<String, Value> = serde_json::from_str(json).unwrap();
        // 2026-12-01 04:05:06 UTC
        ChatTemplate::new(source, &config)?.render(variables.into_iter().collect(), 1_796_097_906)
    }

    #[test]
    fn templates_written_for_python_render() {
        for (source, json, want) in [
            ("{{ bos_token }}{{ x.strip().upper() }}{{ eos_token }}", r#"{"x":" a "}"#, "<s>A</s>"),
            ("{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}", r#"{"x":{"b":1,"a":2}}"#, "b=1;a=2;"),
            (
                "{%- for m in x %}\n    {%- if m == 2 %}{% break %}{% endif %}\n{{ m }}\n{%- endfor %}",
                r#"{"x":[1,2,3]}"#,
                "1",
            ),
            (
                "{{ 'a' in x }} {{ x.startswith('a') }} {{ x[1:] }} {{ x.split('b')[-1] }}",
                r#"{"x":"abc"}"#,
                "True True bc c",
            ),
            ("{{ x | tojson }}", r#"{"x":{"b":[1,"<&>"],"a":null}}"#, r#"{"b": [1, "<&>"], "a": null}"#),
            ("{{ strftime_now('%d %b %Y, %A %H:%M:%S') }}", "{}", "01 Dec 2026, Tuesday 04:05:06"),
            (
                "{% set ns = namespace(n=0) %}{% for m in x %}{% set ns.n = ns.n + m %}{% endfor %}{{ ns.n }}",
                r#"{"x":[1,2]}"#,
                "3",
            ),
            ("  {% if x is defined and x is not none %}\nyes\n  {% endif %}", r#"{"x":""}"#, "yes\n"),
        ] {
            assert_eq!(render(source, json).unwrap(), want, "{source}");
        }
    }

    #[test]
    fn a_refusal_is_an_error_with_its_own_words() {
        let error = render("{{ raise_exception('roles must alternate') }}", "{}").unwrap_err();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
        assert!(render("{% if %}", "{}").is_err());
        assert!(
            render("{% for i in range(1000000) %}{% for j in range(1000000) %}x{% endfor %}{% endfor %}", "{}")
                .is_err()
        );
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (days, want) in [
            (0, (1970, 1, 1)),
            (11_016, (2000, 2, 29)),
            (19_782, (2024, 2, 29)),
            (20_788, (2026, 12, 1)),
            (-1, (1969, 12, 31)),
        ] {
            assert_eq!(civil(days), want);
        }
    }

    #[test]
    fn a_loop_over_content_wants_parts() {
        for (source, want) in [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", ContentFormat::Text),
            ("{% for m in messages %}{%- for c in m['content'] -%}{% endfor %}{% endfor %}", ContentFormat::Parts),
            ("{% for c in message.content | list %}{% endfor %}", ContentFormat::Parts),
            ("{% for c in content %}{% endfor %}", ContentFormat::Parts),
        ] {
            assert_eq!(content_format(source), want, "{source}");
        }
    }
}

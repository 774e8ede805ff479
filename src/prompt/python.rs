//! JSON as Python writes it: what `tojson` gives in the chat templates of Hugging Face models.
//!
//! `json.dumps(value, ensure_ascii=False)`: a space behind commas and colons, numbers as `repr` prints them, no escapes
//! but those that JSON needs. Each byte counts, since a tokenizer reads it.

use std::fmt::Write as _;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

/// Deepest value that is printed.
const DEPTH: usize = 64;

/// The filter `tojson`.
///
/// # Errors
/// For a value that is no JSON, or nested too deep, and for unknown arguments.
pub(super) fn tojson(value: &Value, options: &Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get::<Option<usize>>("indent")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let separators: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let mut printer = Printer {
        out: String::new(),
        indent,
        sort: sort.unwrap_or(false),
        ascii: ascii.unwrap_or(false),
        comma: if indent.is_some() { "," } else { ", " }.to_owned(),
        colon: ": ".to_owned(),
    };
    if let Some(pair) = separators.filter(|pair| !pair.is_none() && !pair.is_undefined()) {
        printer.comma = pair.get_item_by_index(0)?.to_string();
        printer.colon = pair.get_item_by_index(1)?.to_string();
    }
    printer.value(value, 0)?;
    Ok(Value::from_safe_string(printer.out))
}

/// What `str` gives in Python where Jinja would print something else.
pub(super) fn word(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::None => Some("None".to_owned()),
        ValueKind::Bool => Some(if value.is_true() { "True" } else { "False" }.to_owned()),
        ValueKind::Number if !value.is_integer() => f64::try_from(value.clone()).ok().map(float),
        _ => None,
    }
}

struct Printer {
    out: String,
    indent: Option<usize>,
    sort: bool,
    ascii: bool,
    comma: String,
    colon: String,
}

impl Printer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deep for tojson"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(('[', ']'), items.len(), depth, |this, at| {
                    items.get(at).map_or(Ok(()), |item| this.value(item, depth + 1))
                })?;
            }
            kind => {
                let message = format!("a value of kind {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort {
            keys.sort();
        }
        self.list(('{', '}'), keys.len(), depth, |this, at| {
            let Some(key) = keys.get(at) else { return Ok(()) };
            match key.as_str() {
                Some(text) => this.string(text),
                None => this.string(&key.to_string()),
            }
            this.out.push_str(&this.colon.clone());
            this.value(&value.get_item(key)?, depth + 1)
        })
    }

    fn list(
        &mut self,
        (open, close): (char, char),
        count: usize,
        depth: usize,
        mut item: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for at in 0..count {
            if at > 0 {
                self.out.push_str(&self.comma.clone());
            }
            self.line(depth + 1);
            item(self, at)?;
        }
        if count > 0 {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                letter if (letter as u32) < 0x20 || (self.ascii && !letter.is_ascii()) => {
                    let mut units = [0; 2];
                    for unit in letter.encode_utf16(&mut units) {
                        write!(self.out, "\\u{unit:04x}").unwrap_or_default();
                    }
                }
                letter => self.out.push(letter),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python's `repr` prints it: shortest digits, an exponent below -4 and from 16 on, never without a point.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str, options: &[(&str, Value)]) -> String {
        let value: Value = serde_json::from_str(text).unwrap();
        let options = Kwargs::from_iter(options.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        tojson(&value, &options).unwrap().to_string()
    }

    #[test]
    fn json_is_printed_as_python_prints_it() {
        // Right sides from Python 3: json.dumps(json.loads(x), ensure_ascii=False).
        for (text, want) in [
            (r#"{"b":1,"a":[1,2.50,true,null,"x"]}"#, r#"{"b": 1, "a": [1, 2.5, true, null, "x"]}"#),
            (
                r#"{"f":1.0,"g":1e2,"h":1e16,"i":1e-5,"j":-0.0}"#,
                r#"{"f": 1.0, "g": 100.0, "h": 1e+16, "i": 1e-05, "j": -0.0}"#,
            ),
            (r#""\u00fc \u2028 <b> & 'q' \u0001 \/""#, "\"ü \u{2028} <b> & 'q' \\u0001 /\""),
            ("[]", "[]"),
            (r#"{"a":{}}"#, r#"{"a": {}}"#),
            ("18446744073709551615", "18446744073709551615"),
        ] {
            assert_eq!(json(text, &[]), want, "{text}");
        }
    }

    #[test]
    fn options_are_those_of_transformers() {
        let text = r#"{"b":[1,{}],"a":"ü"}"#;
        assert_eq!(json(text, &[("indent", 2.into())]), "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": \"ü\"\n}");
        assert_eq!(json(text, &[("sort_keys", true.into())]), r#"{"a": "ü", "b": [1, {}]}"#);
        assert_eq!(json(text, &[("ensure_ascii", true.into())]), r#"{"b": [1, {}], "a": "\u00fc"}"#);
        assert_eq!(json(text, &[("separators", Value::from(vec![",", ":"]))]), r#"{"b":[1,{}],"a":"ü"}"#);
    }
}

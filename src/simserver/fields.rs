//! Typed reads of a request body, with the engine's own message when a type is wrong.
//!
//! Unknown fields are ignored by both engines, `null` is the same as absence, and booleans may be text ("true").
//! Source: captures `errors/wrong_type_*`, `errors/no_messages`.

use serde_json::{Map, Value};

use super::{
    config::Flavor,
    errors::{ApiError, shown, shown_map},
};

/// A request body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) flavor: Flavor,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(flavor: Flavor, map: &'a Map<String, Value>) -> Self {
        Self { flavor, map }
    }

    /// The value, unless it is absent or null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The value, or the engine's "Field required".
    pub(super) fn required(&self, name: &str) -> Result<&'a Value, ApiError> {
        self.get(name).ok_or_else(|| self.missing(name))
    }

    pub(super) fn missing(&self, name: &str) -> ApiError {
        ApiError::schema(self.flavor, "missing", &[name], "Field required", &shown_map(self.map))
    }

    fn wrong(&self, name: &str, kind: &str, message: &str, value: &Value) -> ApiError {
        ApiError::schema(self.flavor, kind, &[name], message, &shown(self.flavor, value))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "string_type", "Input should be a valid string", other)),
        }
    }

    pub(super) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.wrong(name, "list_type", "Input should be a valid list", other)),
        }
    }

    pub(super) fn boolean(&self, name: &str) -> Result<bool, ApiError> {
        let Some(value) = self.get(name) else { return Ok(false) };
        let text = value.as_str().map(str::to_ascii_lowercase);
        match (value, text.as_deref()) {
            (Value::Bool(flag), _) => Ok(*flag),
            (_, Some("true" | "1" | "yes" | "on" | "t" | "y")) => Ok(true),
            (_, Some("false" | "0" | "no" | "off" | "f" | "n")) => Ok(false),
            (Value::Number(number), _) if number.as_u64() == Some(1) => Ok(true),
            (Value::Number(number), _) if number.as_u64() == Some(0) => Ok(false),
            _ => {
                let message = "Input should be a valid boolean, unable to interpret input";
                Err(self.wrong(name, "bool_parsing", message, value))
            }
        }
    }

    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = match value {
            Value::Number(number) => number.as_i64().or_else(|| number.as_f64().and_then(whole)),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        let message = "Input should be a valid integer";
        whole.map(Some).ok_or_else(|| self.wrong(name, "int_type", message, value))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        let message = "Input should be a valid number, unable to parse string as a number";
        number.map(Some).ok_or_else(|| self.wrong(name, "float_parsing", message, value))
    }

    /// A list of strings, or one string.
    pub(super) fn strings(&self, name: &str) -> Result<Vec<String>, ApiError> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(list)) => {
                list.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>().ok_or_else(|| {
                    self.wrong(name, "string_type", "Input should be a valid string", &Value::Array(list.clone()))
                })
            }
            Some(other) => Err(self.wrong(name, "string_type", "Input should be a valid string", other)),
        }
    }
}

/// An integral float as an integer (JSON `5.0`).
fn whole(value: f64) -> Option<i64> {
    if value.fract() == 0.0 && value.abs() < 9e15 { format!("{value:.0}").parse().ok() } else { None }
}

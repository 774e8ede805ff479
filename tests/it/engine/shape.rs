//! The shape of JSON text: keys in their order, types in place of values.
//!
//! `serde_json` sorts keys, and their order is what is compared here, so the text is walked as it is.

/// `{"a":1,"b":["x",null]}` becomes `{"a":0,"b":["",null]}`.
pub(super) fn shape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            let end = string_end(rest);
            let (string, after) = rest.split_at(end);
            out.push_str(if after.trim_start().starts_with(':') { string } else { "\"\"" });
            rest = after;
        } else if first == '-' || first.is_ascii_digit() {
            out.push('0');
            rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || "+-.eE".contains(c));
        } else {
            if !first.is_whitespace() {
                out.push(first);
            }
            rest = rest.strip_prefix(first).unwrap_or_default();
        }
    }
    // A list of numbers has no length.
    while out.contains("0,0") {
        out = out.replace("0,0", "0");
    }
    out
}

fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Shapes of a stream's events, each once, in order of first appearance.
pub(super) fn stream_shapes(stream: &str) -> Vec<String> {
    let mut shapes = Vec::new();
    for event in stream.split("\n\n").filter(|event| !event.is_empty()) {
        let lines: Vec<String> = event
            .lines()
            .map(|line| match line.strip_prefix("data: ") {
                Some(data) if data.starts_with('{') => format!("data: {}", shape(data)),
                _ => line.to_owned(),
            })
            .collect();
        let event = lines.join("\n");
        if !shapes.contains(&event) {
            shapes.push(event);
        }
    }
    shapes
}

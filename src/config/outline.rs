//! Where each key of the file is: key path to line, and line and column back to key path.
//!
//! Read from the parser's events, apart from the typed read: checks that come later (duplicate names, a limit above
//! another) can still name the line. A node reached through an alias or a merge key keeps the line of its definition.

use serde_saphyr::granit_parser::{Event, Parser};

/// A key or value of the file.
#[derive(Debug)]
struct Node {
    path: String,
    line: usize,
    /// From 1, in characters.
    column: usize,
    /// The value, of a scalar that is no key.
    value: Option<String>,
}

/// An open map or list.
enum Frame {
    Map { path: String, key: Option<String> },
    List { path: String, next: usize },
}

/// All nodes, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Outline {
    nodes: Vec<Node>,
}

impl Outline {
    /// Reads the outline; a syntax error is a line and a text.
    pub(super) fn read(text: &str) -> Result<Self, (usize, String)> {
        let mut outline = Self::default();
        let mut frames: Vec<Frame> = Vec::new();
        for item in Parser::new_from_str(text) {
            let (event, span) = item.map_err(|error| (error.marker().line(), error.info()))?;
            let (line, column) = (span.start.line(), span.start.col() + 1);
            let (path, is_key) = match event {
                Event::Scalar(..) | Event::Alias(..) | Event::MappingStart(..) | Event::SequenceStart(..) => {
                    enter(frames.last_mut(), &event)
                }
                Event::MappingEnd | Event::SequenceEnd => {
                    frames.pop();
                    continue;
                }
                _ => continue,
            };
            let value = match &event {
                Event::Scalar(value, ..) if !is_key => Some(value.to_string()),
                _ => None,
            };
            match &event {
                Event::MappingStart(..) => frames.push(Frame::Map { path: path.clone(), key: None }),
                Event::SequenceStart(..) => frames.push(Frame::List { path: path.clone(), next: 0 }),
                _ => {}
            }
            outline.nodes.push(Node { path, line, column, value });
        }
        Ok(outline)
    }

    /// Whether the file holds nothing but comments.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Line of the key at a path, else of the nearest key above it.
    pub(super) fn line(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(node) = self.nodes.iter().find(|node| node.path == path) {
                return Some(node.line);
            }
            path = path.rfind(['.', '[']).and_then(|end| path.get(..end))?;
        }
    }

    /// Whether the file has the key.
    pub(super) fn has(&self, path: &str) -> bool {
        self.nodes.iter().any(|node| node.path == path)
    }

    /// The scalar at a path.
    pub(super) fn value(&self, path: &str) -> Option<&str> {
        self.nodes.iter().filter(|node| node.path == path).find_map(|node| node.value.as_deref())
    }

    /// Path of the node at a place, else of the last node before it on the same line.
    pub(super) fn path_at(&self, line: usize, column: usize) -> Option<&str> {
        let before = |node: &&Node| node.line == line && node.column <= column;
        self.nodes.iter().filter(before).max_by_key(|node| node.column).map(|node| node.path.as_str())
    }

    /// Every distinct key path with list indices left out, for the test that the full example is full.
    #[cfg(test)]
    pub(super) fn keys(&self) -> std::collections::BTreeSet<String> {
        let strip = |path: &str| {
            let mut out = String::new();
            let mut inside = false;
            for c in path.chars() {
                match c {
                    '[' => inside = true,
                    ']' => inside = false,
                    c if !inside => out.push(c),
                    _ => {}
                }
            }
            out
        };
        self.nodes.iter().map(|node| strip(&node.path)).filter(|path| !path.is_empty()).collect()
    }
}

/// Path of the node that an event begins, and whether it is a key. Moves the enclosing frame on.
fn enter(frame: Option<&mut Frame>, event: &Event<'_>) -> (String, bool) {
    match frame {
        None => (String::new(), false),
        Some(Frame::List { path, next }) => {
            let index = *next;
            *next += 1;
            (format!("{path}[{index}]"), false)
        }
        Some(Frame::Map { path, key }) => match key.take() {
            Some(name) => (join(path, &name), false),
            None => {
                let name = match event {
                    Event::Scalar(value, ..) => value.to_string(),
                    _ => "?".to_owned(),
                };
                let full = join(path, &name);
                *key = Some(name);
                (full, true)
            }
        },
    }
}

/// A key below a path.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_line_in_block_and_flow_style() {
        let text = "a:\n  b: 1\n  c: { d: 2, e: [ { f: 3 } ] }\nlist:\n  - x: 1\n  - x: 2\n    y: 3\n";

        let outline = Outline::read(text).unwrap();

        for (path, line) in [("a", 1), ("a.b", 2), ("a.c.d", 3), ("a.c.e[0].f", 3), ("list[1].x", 6), ("list[1].y", 7)]
        {
            assert_eq!(outline.line(path), Some(line), "{path}");
        }
        assert_eq!(outline.line("list[1].missing"), Some(6), "a missing key is reported where its section begins");
        assert_eq!(outline.value("a.c.e[0].f"), Some("3"));
        assert_eq!(outline.path_at(3, 11), Some("a.c.d"));
        assert!(outline.has("a.c") && !outline.has("a.d"));
    }
}

//! The answer as it arrives: head, framing, body bytes with times, and the end.

use tokio::time::Instant;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The framing was complete.
    Clean,
    /// The peer closed before the framing was complete, or broke it.
    Cut,
    /// The peer reset the connection.
    Reset,
    /// Nothing more came.
    Timeout,
    /// There was no connection.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Part {
    #[default]
    Head,
    Size,
    Data(usize),
    DataEnd,
    Trailer,
    Length(usize),
    UntilClose,
    Done,
}

/// What came back.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// 0 while the head is incomplete.
    pub(crate) status: u16,
    /// Names as received.
    pub(crate) headers: Vec<(String, String)>,
    /// Body without framing.
    pub(crate) body: Vec<u8>,
    /// `None` while it runs.
    pub(crate) end: Option<End>,
    /// When the request was about to be sent.
    pub(crate) started: Option<Instant>,
    /// When it ended.
    pub(crate) ended: Option<Instant>,
    arrivals: Vec<(Instant, usize)>,
    method: String,
    rest: Vec<u8>,
    /// How much of `rest` was used.
    used: usize,
    part: Part,
}

impl Answer {
    pub(super) fn new(method: &str) -> Self {
        Self { method: method.to_owned(), started: Some(Instant::now()), ..Self::default() }
    }

    pub(super) fn into_rest(self) -> Vec<u8> {
        self.left().to_vec()
    }

    fn left(&self) -> &[u8] {
        &self.rest[self.used..]
    }

    /// The values of one header, joined with commas; `None` if it is absent.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let values = self.headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        let values: Vec<&str> = values.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(","))
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Whether the body holds this text.
    pub(crate) fn has(&self, text: &str) -> bool {
        self.find(text).is_some()
    }

    fn find(&self, text: &str) -> Option<usize> {
        memchr::memmem::find(&self.body, text.as_bytes())
    }

    /// How often the body holds this text.
    pub(crate) fn count(&self, text: &str) -> usize {
        memchr::memmem::find_iter(&self.body, text.as_bytes()).count()
    }

    /// When the body byte at this offset arrived.
    pub(crate) fn time_of(&self, offset: usize) -> Instant {
        let (at, _) = self.arrivals.iter().find(|(_, length)| *length > offset).expect("the byte arrived");
        *at
    }

    /// When this text began to arrive.
    pub(crate) fn time_of_text(&self, text: &str) -> Instant {
        let offset = self.find(text);
        self.time_of(offset.unwrap_or_else(|| panic!("{text:?} is not in {:?}", self.text())))
    }

    /// How long the answer took.
    pub(crate) fn took(&self) -> std::time::Duration {
        self.ended.expect("the answer ended") - self.started.expect("the request was sent")
    }

    /// Whether it is a whole 200.
    pub(crate) fn is_good(&self) -> bool {
        self.status == 200 && self.end == Some(End::Clean)
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.rest.drain(..std::mem::take(&mut self.used));
        self.rest.extend_from_slice(bytes);
        while self.part != Part::Done && self.step() {}
    }

    pub(super) fn closed(&mut self, reset: bool) {
        let complete = !reset && self.part == Part::UntilClose;
        self.finish(match (complete, reset) {
            (true, _) => End::Clean,
            (false, true) => End::Reset,
            (false, false) => End::Cut,
        });
    }

    fn finish(&mut self, end: End) -> bool {
        self.end = self.end.or(Some(end));
        self.ended = self.ended.or(Some(Instant::now()));
        self.part = Part::Done;
        false
    }

    fn take(&mut self, n: usize) {
        self.body.extend_from_slice(&self.rest[self.used..self.used + n]);
        self.used += n;
        self.arrivals.push((Instant::now(), self.body.len()));
    }

    fn line(&mut self) -> Option<String> {
        let at = memchr::memmem::find(self.left(), b"\r\n")?;
        let line = String::from_utf8_lossy(&self.left()[..at]).into_owned();
        self.used += at + 2;
        Some(line)
    }

    fn step(&mut self) -> bool {
        match self.part {
            Part::Head => self.head(),
            Part::Size => self.size(),
            Part::Data(left) => self.sized(left, Part::Data, Part::DataEnd),
            Part::Length(left) => self.sized(left, Part::Length, Part::Done),
            Part::DataEnd => self.line().map(|_| self.part = Part::Size).is_some(),
            Part::Trailer => match self.line() {
                Some(line) if line.is_empty() => self.finish(End::Clean),
                line => line.is_some(),
            },
            Part::UntilClose => {
                if !self.left().is_empty() {
                    self.take(self.left().len());
                }
                false
            }
            Part::Done => false,
        }
    }

    fn size(&mut self) -> bool {
        let Some(line) = self.line() else { return false };
        match usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16) {
            Ok(0) => self.part = Part::Trailer,
            Ok(size) => self.part = Part::Data(size),
            Err(_) => return self.finish(End::Cut),
        }
        true
    }

    fn sized(&mut self, left: usize, part: fn(usize) -> Part, then: Part) -> bool {
        let n = left.min(self.left().len());
        if n == 0 && left > 0 {
            return false;
        }
        if n > 0 {
            self.take(n);
        }
        if n < left {
            self.part = part(left - n);
            return true;
        }
        if then == Part::Done { self.finish(End::Clean) } else { self.go(then) }
    }

    fn go(&mut self, part: Part) -> bool {
        self.part = part;
        true
    }

    fn head(&mut self) -> bool {
        let Some(at) = memchr::memmem::find(self.left(), b"\r\n\r\n") else { return false };
        let head = String::from_utf8_lossy(&self.left()[..at]).into_owned();
        self.used += at + 4;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
        let Some(status) = status else { return self.finish(End::Cut) };
        if (100..200).contains(&status) {
            return true;
        }
        self.status = status;
        let fields = lines.filter_map(|line| line.split_once(':'));
        self.headers = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
        if self.method == "HEAD" || status == 204 || status == 304 {
            return self.finish(End::Clean);
        }
        let chunked =
            self.header("transfer-encoding").is_some_and(|value| value.to_ascii_lowercase().contains("chunked"));
        let length = self.header("content-length").and_then(|value| value.parse().ok());
        self.go(match length {
            _ if chunked => Part::Size,
            Some(length) => Part::Length(length),
            None => Part::UntilClose,
        })
    }
}

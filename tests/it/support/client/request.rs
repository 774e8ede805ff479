//! Requests as text.

/// What is sent.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn new(method: &str, path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: body.into() }
    }

    /// A chat with one user message, which must need no escapes.
    pub(crate) fn chat(text: &str) -> Self {
        Self::chat_with(text, "")
    }

    /// A streamed chat.
    pub(crate) fn stream(text: &str) -> Self {
        Self::chat_with(text, r#","stream":true"#)
    }

    /// A streamed chat whose client asks for usage.
    pub(crate) fn stream_with_usage(text: &str) -> Self {
        Self::chat_with(text, r#","stream":true,"stream_options":{"include_usage":true}"#)
    }

    /// A chat with more fields, each with its comma in front.
    pub(crate) fn chat_with(text: &str, fields: &str) -> Self {
        Self::body(format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]{fields}}}"#))
    }

    /// This body as a chat.
    pub(crate) fn body(body: impl Into<Vec<u8>>) -> Self {
        Self::post("/v1/chat/completions", body)
    }

    /// This body on another path.
    pub(crate) fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", path, body)
    }

    /// A GET.
    pub(crate) fn get(path: &str) -> Self {
        Self::new("GET", path, "")
    }

    /// Another method.
    pub(crate) fn method(mut self, method: &str) -> Self {
        method.clone_into(&mut self.method);
        self
    }

    /// One more header. `Content-Length`, `Content-Type` and `Host` replace the usual one.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The body as sent.
    pub(crate) fn sent_body(&self) -> &[u8] {
        &self.body
    }

    fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name))
    }

    /// The wire form.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        let mut line = |name: &str, value: &str| head.push_str(&format!("{name}: {value}\r\n"));
        if !self.has("host") {
            line("Host", "gateway.test");
        }
        if self.method == "POST" && !self.has("content-type") {
            line("Content-Type", "application/json");
        }
        let framed = self.has("content-length") || self.has("transfer-encoding");
        if !framed && (self.method == "POST" || !self.body.is_empty()) {
            line("Content-Length", &self.body.len().to_string());
        }
        for (name, value) in &self.headers {
            line(name, value);
        }
        head.push_str("\r\n");
        [head.as_bytes(), &self.body].concat()
    }
}

//! Response bodies: a whole answer, or the events of a stream as the engine produces them.
//!
//! The stream owns the ticket: when the client leaves, hyper drops the body, and with it the sequences leave the engine.
//! All events that are ready go out in one frame.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::{
    driver::Ticket,
    errors::ApiError,
    outbox::Progress,
    output::Output,
    wire::{Delta, Usage, Wire, id_list},
};

/// A response body.
#[derive(Debug)]
pub(super) enum SimBody {
    /// Everything at once.
    Whole(Option<Bytes>),
    /// Server-sent events.
    Stream(Box<EventStream>),
}

impl SimBody {
    pub(super) fn text(text: impl Into<Bytes>) -> Self {
        let bytes = text.into();
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for SimBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream) => stream.poll_events(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// One choice of a stream.
#[derive(Debug)]
struct Cursor {
    output: Output,
    prompt_tokens: usize,
    /// Text that `echo` puts before the output.
    echo: String,
    text: String,
    sent_bytes: usize,
    sent: Progress,
    begun: bool,
}

/// The events of one request.
pub(super) struct EventStream {
    ticket: Ticket,
    wire: Box<dyn Wire>,
    cursors: Vec<Cursor>,
    progress: Vec<Progress>,
    seen: u64,
    opened: bool,
    begun: bool,
    done: bool,
    token_ids: bool,
    block_size: usize,
    keep_alive: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").field("cursors", &self.cursors).field("done", &self.done).finish_non_exhaustive()
    }
}

/// What a stream says of one choice.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) output: Output,
    pub(super) prompt_tokens: usize,
    pub(super) echo: String,
}

impl EventStream {
    pub(super) fn new(ticket: Ticket, wire: Box<dyn Wire>, planned: Vec<Planned>, block_size: usize) -> Self {
        let cursors: Vec<Cursor> = planned
            .into_iter()
            .map(|Planned { output, prompt_tokens, echo }| Cursor {
                output,
                prompt_tokens,
                echo,
                text: String::new(),
                sent_bytes: 0,
                sent: Progress::default(),
                begun: false,
            })
            .collect();
        Self {
            ticket,
            wire,
            cursors,
            progress: Vec::new(),
            seen: 0,
            opened: false,
            begun: false,
            done: false,
            token_ids: false,
            block_size,
            keep_alive: None,
        }
    }

    /// Puts token ids in the events.
    pub(super) fn with_token_ids(mut self, on: bool) -> Self {
        self.token_ids = on;
        self
    }

    /// Sends a comment after each `interval` of silence.
    pub(super) fn with_keep_alive(mut self, interval: Option<Duration>) -> Self {
        self.keep_alive = interval.map(|interval| (interval, Box::pin(tokio::time::sleep(interval))));
        self
    }

    /// Waits for the first token, or the engine's death.
    pub(super) async fn first_token(&mut self) -> bool {
        let Self { ticket, seen, progress, .. } = self;
        let alive = std::future::poll_fn(|cx| ticket.outbox.poll(seen, progress, cx)).await;
        // What was read is news still.
        *seen = 0;
        alive
    }

    /// The next events; `None` at the end.
    fn poll_events(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.done {
            return Poll::Ready(None);
        }
        let mut out = String::new();
        if !self.opened {
            self.opened = true;
            self.wire.open(&mut out);
        }
        match self.ticket.outbox.poll(&mut self.seen, &mut self.progress, cx) {
            Poll::Ready(true) => self.events(&mut out),
            Poll::Ready(false) => {
                self.wire.fail(&mut out, &ApiError::dead());
                self.done = true;
            }
            Poll::Pending => {}
        }
        if out.is_empty()
            && let Some((interval, sleep)) = &mut self.keep_alive
            && sleep.as_mut().poll(cx).is_ready()
        {
            let next = Instant::now() + *interval;
            sleep.as_mut().reset(next);
            // Polled once more so that the new deadline has this task's waker.
            if sleep.as_mut().poll(cx).is_pending() {
                out.push_str(": keep-alive\n\n");
            }
        } else if let (false, Some((interval, sleep))) = (out.is_empty(), &mut self.keep_alive) {
            let next = Instant::now() + *interval;
            sleep.as_mut().reset(next);
        }
        if out.is_empty() { Poll::Pending } else { Poll::Ready(Some(Bytes::from(out))) }
    }

    /// Writes what is new of every choice, and the end when all have ended.
    fn events(&mut self, out: &mut String) {
        let open = self.progress.iter().filter(|progress| !progress.finished).count();
        let mut ended = self.cursors.iter().filter(|cursor| cursor.sent.finished).count();
        let all = self.cursors.len();
        for (index, (cursor, news)) in self.cursors.iter_mut().zip(&self.progress).enumerate() {
            if *news == cursor.sent {
                continue;
            }
            ended += usize::from(news.finished);
            let text = cursor.advance(news);
            let ids = if self.token_ids { cursor.ids(news) } else { "null".to_owned() };
            let delta = Delta {
                index,
                text: &text,
                ids: &ids,
                opens: !self.begun,
                first: !cursor.begun,
                finish: news.finished.then_some(&cursor.output.finish),
                last: open == 0 && ended == all,
                generated: news.generated,
                cached: news.cached,
            };
            self.wire.delta(out, &delta);
            self.begun = true;
            cursor.begun = true;
            cursor.sent = *news;
        }
        if open == 0 {
            self.wire.close(out, &usage(self.cursors.iter().map(|c| (c.prompt_tokens, c.sent)), self.block_size));
            self.done = true;
        }
    }
}

impl Cursor {
    /// Text to send for `news`.
    fn advance(&mut self, news: &Progress) -> String {
        self.output.append(self.sent.generated, news.generated, &mut self.text);
        let end = self.output.visible(&self.text, news.generated);
        let fresh = self.text.get(self.sent_bytes..end).unwrap_or_default();
        self.sent_bytes = self.sent_bytes.max(end);
        let mut text = std::mem::take(&mut self.echo);
        text.push_str(fresh);
        text
    }

    fn ids(&self, news: &Progress) -> String {
        let ids: Vec<u32> = (self.sent.generated..news.generated).map(|at| self.output.token(at)).collect();
        id_list(&ids)
    }
}

/// Tokens of a whole answer. Choices of one prompt count it once.
pub(super) fn usage(choices: impl Iterator<Item = (usize, Progress)>, block_size: usize) -> Usage {
    let mut usage = Usage::default();
    for (prompt, progress) in choices {
        usage.prompt += prompt;
        usage.completion += progress.generated;
        if prompt > 0 {
            usage.cached += progress.cached;
            usage.stored += (prompt / block_size * block_size).saturating_sub(progress.cached);
        }
    }
    usage
}

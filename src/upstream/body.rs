//! The body of an upstream answer, from a replica or from a hosted model: one type for all that reads answers.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::hosted::HostedBody;
use crate::error::BoxError;

/// The rest of an answer.
#[derive(Debug)]
pub enum UpstreamBody {
    /// A replica's: its bytes are what the client gets.
    Replica(Incoming),
    /// A hosted model's: under the name that the client knows.
    Hosted(Box<HostedBody>),
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Replica(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Hosted(body) => Pin::new(&mut **body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Replica(body) => body.is_end_stream(),
            Self::Hosted(body) => body.is_end_stream(),
        }
    }
}

//! A raw HTTP/1.1 client: sends exact bytes, keeps every body byte with its arrival, and says how the answer ended.

mod decode;
mod request;

use std::{net::SocketAddr, time::Duration};

use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout_at},
};

pub(crate) use self::{
    decode::{Answer, End},
    request::Request,
};

/// How long an ordinary answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One connection with the answer that is being read.
pub(crate) struct Call {
    stream: Option<TcpStream>,
    /// What has come so far.
    pub(crate) answer: Answer,
}

impl Call {
    /// Connects and sends nothing.
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self::open_with(address, None).await
    }

    /// Connects with a receive buffer of this size, for readers that stall.
    pub(crate) async fn open_with(address: SocketAddr, receive_buffer: Option<u32>) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(size) = receive_buffer {
            socket.set_recv_buffer_size(size).unwrap();
        }
        let stream = tokio::time::timeout(PATIENCE, socket.connect(address)).await;
        let stream = stream.ok().and_then(Result::ok);
        if let Some(stream) = &stream {
            stream.set_nodelay(true).unwrap();
        }
        Self { stream, answer: Answer::new("POST") }
    }

    /// Connects and sends a request.
    pub(crate) async fn start(address: SocketAddr, request: &Request) -> Self {
        let mut call = Self::open(address).await;
        call.send(request).await;
        call
    }

    /// Sends a request on this connection; its answer replaces the one before.
    pub(crate) async fn send(&mut self, request: &Request) {
        let bytes = request.bytes();
        let left = std::mem::take(&mut self.answer).into_rest();
        self.answer = Answer::new(&request.method);
        self.send_bytes(&bytes).await;
        self.answer.feed(&left);
    }

    /// Sends bytes as they are. A peer that has closed shows in the answer.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        matches!(tokio::time::timeout(PATIENCE, stream.write_all(bytes)).await, Ok(Ok(())))
    }

    /// Reads until the answer ends or the condition holds; false when time ran out first.
    pub(crate) async fn read_until(&mut self, limit: Duration, done: impl Fn(&Answer) -> bool) -> bool {
        let stop = Instant::now() + limit;
        let mut buffer = vec![0; 1 << 16];
        while self.answer.end.is_none() && !done(&self.answer) {
            let Some(stream) = &mut self.stream else {
                self.answer.end = Some(End::Refused);
                break;
            };
            match timeout_at(stop, stream.read(&mut buffer)).await {
                Err(_) => return false,
                Ok(Ok(0)) => self.answer.closed(false),
                Ok(Ok(n)) => self.answer.feed(&buffer[..n]),
                Ok(Err(_)) => self.answer.closed(true),
            }
        }
        true
    }

    /// Reads the answer to its end.
    pub(crate) async fn finish(mut self) -> Answer {
        self.rest(PATIENCE).await;
        self.answer
    }

    /// Reads the answer to its end and keeps the connection.
    pub(crate) async fn rest(&mut self, limit: Duration) {
        if !self.read_until(limit, |_| false).await {
            self.answer.end = Some(End::Timeout);
        }
    }

    /// Leaves with FIN.
    pub(crate) fn close(mut self) -> Answer {
        drop(self.stream.take());
        self.answer
    }

    /// Leaves with RST.
    pub(crate) fn reset(mut self) -> Answer {
        if let Some(stream) = self.stream.take() {
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        self.answer
    }

    /// Ends the sending side only.
    pub(crate) fn half_close(&self) {
        if let Some(stream) = &self.stream {
            SockRef::from(stream).shutdown(std::net::Shutdown::Write).unwrap();
        }
    }

    /// Whether the peer closes this connection within the limit.
    pub(crate) async fn is_closed_within(&mut self, limit: Duration) -> bool {
        let Some(stream) = &mut self.stream else { return true };
        let mut sink = [0; 1024];
        let stop = Instant::now() + limit;
        loop {
            match timeout_at(stop, stream.read(&mut sink)).await {
                Err(_) => return false,
                Ok(Ok(n)) if n > 0 => {}
                Ok(_) => return true,
            }
        }
    }
}

/// One request on its own connection.
pub(crate) async fn send(address: SocketAddr, request: &Request) -> Answer {
    Call::start(address, request).await.finish().await
}

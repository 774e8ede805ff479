use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::Instant,
};

use super::*;

impl Peer for DuplexStream {
    fn has_left(&self) -> bool {
        false
    }
}

fn pair(size: usize) -> (DuplexStream, Guarded<DuplexStream>, Arc<Activity>) {
    let (client, server) = duplex(size);
    let activity = Activity::new();
    let limits = (Duration::from_secs(10), Duration::from_secs(60));
    (client, Guarded::new(server, activity.clone(), limits.0, limits.1), activity)
}

/// After how many seconds reading fails.
async fn late_after(guarded: &mut Guarded<DuplexStream>) -> u64 {
    let start = Instant::now();
    let error = guarded.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    start.elapsed().as_secs()
}

async fn is_patient(guarded: &mut Guarded<DuplexStream>) -> bool {
    tokio::time::timeout(Duration::from_secs(100), guarded.read_to_end(&mut Vec::new())).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_fails_the_write_after_the_limit() {
    let (mut client, mut guarded, _activity) = pair(8);
    let start = Instant::now();

    guarded.write_all(b"12345678").await.unwrap();
    let error = guarded.write_all(b"9").await.unwrap_err();

    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(start.elapsed().as_secs(), 60);
    let mut seen = [0; 8];
    client.read_exact(&mut seen).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_not_cut_while_it_reads() {
    let (mut client, mut guarded, _activity) = pair(1);
    let reader = async {
        let mut seen = Vec::new();
        for _ in 0..5 {
            sleep(Duration::from_secs(50)).await;
            seen.push(client.read_u8().await.unwrap());
        }
        seen
    };

    let (written, seen) = tokio::join!(guarded.write_all(b"hello"), reader);

    written.unwrap();
    assert_eq!(seen, b"hello");
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_whole_head_is_closed_whatever_it_began_to_say() {
    for begin in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", b"POST / HTTP/1.1\r\nx: "] {
        let (mut client, mut guarded, _activity) = pair(64);
        client.write_all(begin).await.unwrap();
        assert_eq!(late_after(&mut guarded).await, 10, "{}", begin.escape_ascii());
    }
}

#[tokio::test(start_paused = true)]
async fn between_requests_a_connection_may_wait_and_the_next_head_may_not() {
    let (mut client, mut guarded, activity) = pair(64);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert_eq!(guarded.read(&mut [0; 64]).await.unwrap(), 18);
    let turn = activity.begin();
    assert!(is_patient(&mut guarded).await, "a request runs");
    client.write_all(b"its body").await.unwrap();
    assert!(is_patient(&mut guarded).await, "a body has its own limit");
    drop(turn);
    assert!(is_patient(&mut guarded).await, "no head has begun");
    client.write_all(b"G").await.unwrap();
    assert_eq!(late_after(&mut guarded).await, 10);
}

#[tokio::test(start_paused = true)]
async fn http2_is_known_by_its_whole_preface_in_pieces_too() {
    let (mut client, mut guarded, _activity) = pair(64);
    let mut seen = [0; 24];
    for piece in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".chunks(7) {
        client.write_all(piece).await.unwrap();
        guarded.read_exact(&mut seen[..piece.len()]).await.unwrap();
    }
    assert!(is_patient(&mut guarded).await);
}

#[tokio::test(start_paused = true)]
async fn only_a_refusal_of_hypers_own_is_replaced_and_arrives_whole() {
    let bare = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    let (mut client, mut guarded, _activity) = pair(16);
    client.write_all(b"NONSENSE\r\n\r\n").await.unwrap();
    guarded.read_exact(&mut [0; 12]).await.unwrap();
    let write = async {
        guarded.write_all(bare).await.unwrap();
        drop(guarded);
    };
    let mut text = String::new();
    let (_, read) = tokio::join!(write, client.read_to_string(&mut text));
    read.unwrap();
    assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\nconnection: close\r\n"), "{text}");
    assert!(text.contains("x-request-id: ") && text.ends_with("\"}}"), "{text}");

    let (mut client, mut guarded, activity) = pair(256);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    guarded.read_exact(&mut [0; 18]).await.unwrap();
    drop(activity.begin());
    guarded.write_all(bare).await.unwrap();
    let mut seen = vec![0; bare.len()];
    client.read_exact(&mut seen).await.unwrap();
    assert_eq!(seen, bare, "a request was served: its 400 is relayed");
}

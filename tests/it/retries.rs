//! Theme retries: only before the first byte, only what did not run, and few. With the default retry settings.
//!
//! BR-106, of the theme fallback, is here too; its other cases are in `fallback`.

use crate::support::{
    check::{all_good, honest, json_error},
    client::{End, Request},
    gateway::{attempts, fleet, paced},
    ms,
    replica::{
        engine::COMPLETION,
        script::{Script, reply},
    },
    sse::{content, role, text},
    until,
};

#[tokio::test]
async fn br_098_a_refused_connect_moves_on() {
    let (replicas, gateway) = fleet(2).await;
    replicas[0].kill().await;

    let answers = gateway.send_all((0..10).map(|i| Request::chat(&format!("refused {i}"))), 1).await;

    all_good(&answers, "a request that no replica read moves to the other");
    assert_eq!(replicas[1].count(), 10);
}

#[tokio::test]
async fn br_098_what_may_have_run_is_not_run_again() {
    let ends: [(&str, Script); 4] = [
        ("read then close", Script::new(|play| async move { play.close() })),
        ("read then reset", Script::new(|play| async move { play.reset() })),
        ("502", reply(502, r#"{"error":{"message":"bad"}}"#).into()),
        (
            "head then reset",
            Script::new(|play| async move {
                play.head().await?;
                play.pause(ms(20)).await?;
                play.reset()
            }),
        ),
    ];
    for (name, script) in ends {
        let (replicas, gateway) = fleet(2).await;
        for replica in &replicas {
            replica.plays(script.clone());
        }

        let answer = gateway.send(&Request::chat(name)).await;

        assert_eq!(attempts(&replicas), 1, "'{name}' may have run, and must not run again");
        assert!(!answer.is_good(), "'{name}' is no success: {}", answer.text());
        assert_ne!(answer.end, Some(End::Timeout), "'{name}' ends");
        if name.starts_with("read") {
            json_error(&answer, 502);
            gateway.only_outcome("upstream_reset", 1).await;
        }
        gateway.idle().await;
    }
}

#[tokio::test]
async fn br_101_retries_add_little_in_an_outage() {
    let (replicas, gateway) = fleet(4).await;
    for replica in &replicas {
        replica.plays(reply(503, r#"{"error":{"message":"overloaded"}}"#));
    }

    let answers = paced(&gateway, 160, ms(12)).await;

    let tried = attempts(&replicas);
    assert!(tried <= 216, "{tried} attempts for 160 requests, 1.3 x + 8 is the bound");
    assert!(answers.iter().all(|answer| answer.status == 503), "an outage is a 503");
    for replica in &replicas {
        replica.plays(reply(200, COMPLETION));
    }
    let back = until(ms(5000), async || gateway.send(&Request::chat("back?")).await.is_good());
    assert!(back.await, "served again within 5 s of the outage's end");
}

#[tokio::test]
async fn br_102_no_second_attempt_after_the_first_byte() {
    let (replicas, gateway) = fleet(2).await;
    for replica in &replicas {
        replica.plays(Script::new(|play| async move {
            play.head().await?;
            play.chunk(role() + &content("a")).await?;
            play.pause(ms(100)).await?;
            play.reset()
        }));
    }

    let answer = gateway.send(&Request::stream("x")).await;

    honest(&answer);
    assert_eq!(text(&answer.body), "a");
    gateway.only_outcome("upstream_reset", 1).await;
    assert_eq!(attempts(&replicas), 1, "text that was delivered is not delivered again");
}

#[tokio::test]
async fn br_106_context_overflow_of_every_engine_is_the_clients_400() {
    let (replicas, gateway) = fleet(2).await;
    let texts = [
        "This model's maximum context length is 8192 tokens.",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "`inputs` tokens + `max_new_tokens` must be <= 8192",
        "the request exceeds the available context size",
    ];
    let mut sent = 0;
    for message in texts {
        for code in ["400", r#""context_length_exceeded""#] {
            let body =
                format!(r#"{{"error":{{"message":"{message}","type":"BadRequestError","param":null,"code":{code}}}}}"#);
            for replica in &replicas {
                replica.plays(reply(400, body.clone()));
            }
            let answer = gateway.send(&Request::chat("long")).await;
            sent += 1;
            assert_eq!((answer.status, answer.text()), (400, body), "the engine's words reach the client");
            assert_eq!(attempts(&replicas), sent, "one attempt for a 400");
        }
    }
}

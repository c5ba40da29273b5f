//! What model calls add up to.

use super::Database;
use super::fixtures::*;

pub async fn model_calls_are_summed_at_the_end(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let row = store.run(&run_id).await.unwrap().unwrap();
    let (created, started) = (row.created_at_ms, row.started_at_ms.unwrap());
    // The first piece comes 170 ms before the reply: the call takes 200 ms, the first piece 30 ms.
    store.model_call(model_call(&run_id, created + 1_170, Some(2_000_000))).await.unwrap();
    store.model_call(model_call(&run_id, created + 3_000, Some(500_000))).await.unwrap();
    let mut end = completed("a");
    end.at_ms = started + 4_500;
    let (_, chunk, ended) = appended(append(&*store, "s", &run_id, lease.epoch, 0, vec![text("a"), end]).await);
    assert!(ended.is_some());
    let frames = chunk.unwrap().frames;
    let data = frames.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    let event: serde_json::Value = serde_json::from_str(data).unwrap();
    let expected = serde_json::json!({
        "input_tokens": 200, "output_tokens": 40, "total_tokens": 240, "cache_read_tokens": 100, "cost": 0.0025,
        "time_to_first_token": 1.0, "duration": 4.5
    });
    assert_eq!(event["metrics"], expected);
    let metrics = store.run(&run_id).await.unwrap().unwrap().metrics;
    assert_eq!((metrics.model_calls, metrics.cost_nano_usd), (2, Some(2_500_000)));
    assert_eq!((metrics.time_to_first_token_ms, metrics.duration_ms), (Some(1_000), Some(4_500)));
    assert_eq!((metrics.usage.input_tokens, metrics.usage.output_tokens), (200, 40));
}

pub async fn a_call_without_a_price_leaves_the_cost_open(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    store.model_call(model_call(&run_id, now(), Some(7))).await.unwrap();
    store.model_call(model_call(&run_id, now(), None)).await.unwrap();
    complete(&*store, "s", &run_id, lease.epoch, 0).await;
    let metrics = store.run(&run_id).await.unwrap().unwrap().metrics;
    assert_eq!((metrics.model_calls, metrics.cost_nano_usd), (2, None));
}

pub async fn a_lazy_call_is_there_before_a_later_end(database: &impl Database) {
    let store = database.open();
    for number in 0..50 {
        let session = format!("s{number}");
        let (run_id, lease) = running(&*store, &session).await;
        store.model_call(model_call(&run_id, now(), None)).await.unwrap();
        complete(&*store, &session, &run_id, lease.epoch, 0).await;
        assert_eq!(store.run(&run_id).await.unwrap().unwrap().metrics.model_calls, 1);
    }
}

pub async fn calls_of_a_run_are_told_oldest_first(database: &impl Database) {
    let store = database.open();
    let (run_id, _) = running(&*store, "s").await;
    let (other, _) = running(&*store, "t").await;
    store.model_call(model_call(&run_id, 2_000, None)).await.unwrap();
    store.model_call(model_call(&run_id, 1_000, Some(7))).await.unwrap();
    store.model_call(model_call(&other, 500, None)).await.unwrap();
    // The calls are written before anything later is.
    store.cancel(&run_id, None, "asked", 3_000).await.unwrap();
    let calls = store.model_calls(&run_id).await.unwrap();
    assert_eq!(calls.iter().map(|call| call.at_ms).collect::<Vec<_>>(), [1_000, 2_000]);
    assert_eq!((calls[0].usage.input_tokens, calls[0].duration_ms, calls[0].finish.as_str()), (100, 200, "stop"));
}

//! Budgets of runs and Models.

use std::sync::Arc;

use cadre_protocol::ids::RunId;
use cadre_store::Store;
use cadre_store::budgets::{CallBound, ModelBudget, Rates, Reserved, RunBudget};

use super::Database;
use super::fixtures::*;

/// A thousand tokens of prompt and five hundred of answer, at one and two billionths of a dollar a token.
const CALL: CallBound =
    CallBound { input_tokens: 1_000, output_tokens: 500, rates: Some(Rates { input: 1_000_000, output: 2_000_000 }) };
const COST: u64 = 2_000;

fn tokens(most: u64) -> RunBudget {
    RunBudget { max_tokens: Some(most), max_nano_usd: None }
}

fn of_model(window_ms: u64, most: u64) -> ModelBudget {
    ModelBudget { namespace: "default".into(), model: "m".into(), window_ms, max_nano_usd: most }
}

fn granted(reserved: Reserved) -> Option<u64> {
    match reserved {
        Reserved::Granted { output_tokens, .. } => Some(output_tokens),
        Reserved::Exceeded { .. } => None,
    }
}

async fn reserve(store: &dyn Store, run_id: &RunId, call_id: &str, budget: RunBudget) -> Option<u64> {
    granted(store.reserve_in_run(run_id, call_id, budget, CALL).await.unwrap())
}

pub async fn a_runs_calls_stay_within_its_budget(database: &impl Database) {
    let store = database.open();
    let (run_id, _) = running(&*store, "s").await;
    let (other, _) = running(&*store, "t").await;
    let budget = tokens(3_200);
    assert_eq!(reserve(&*store, &run_id, "a", budget).await, Some(500));
    assert_eq!(reserve(&*store, &run_id, "b", budget).await, Some(500));
    assert_eq!(reserve(&*store, &run_id, "c", budget).await, None);
    assert_eq!(reserve(&*store, &other, "a", budget).await, Some(500), "another run has its own");
    // 120 tokens instead of 1,500.
    store.settle_in_run(model_call(&run_id, now(), Some(7)), "a").await.unwrap();
    assert_eq!(reserve(&*store, &run_id, "c", budget).await, Some(500));
    store.release_in_run(&run_id, "b").await.unwrap();
    store.release_in_run(&run_id, "c").await.unwrap();
    let exceeded = store.reserve_in_run(&run_id, "d", tokens(1_183), CALL).await.unwrap();
    assert_eq!(exceeded, Reserved::Exceeded { tokens: 120, nano_usd: 7 });
    assert_eq!(reserve(&*store, &run_id, "d", tokens(1_184)).await, Some(64), "a short answer is left");
    store.release_in_run(&run_id, "d").await.unwrap();
    let cost = |most| RunBudget { max_tokens: None, max_nano_usd: Some(most) };
    assert_eq!(reserve(&*store, &run_id, "e", cost(COST + 6)).await, Some(499), "7 are spent");
    assert_eq!(reserve(&*store, &run_id, "e", cost(COST + 6)).await, Some(499), "it is the same reservation");
    assert_eq!(reserve(&*store, &run_id, "f", cost(COST + 6)).await, None);
}

pub async fn a_models_budget_begins_anew_with_its_period(database: &impl Database) {
    let store = database.open();
    let budget = of_model(1_000, 2 * COST);
    for _ in 0..2 {
        let reserved = store.reserve_in_model(&budget, CALL).await.unwrap();
        assert_eq!(reserved, Reserved::Granted { output_tokens: 500, nano_usd: COST });
    }
    let full = store.reserve_in_model(&budget, CALL).await.unwrap();
    assert_eq!(full, Reserved::Exceeded { tokens: 0, nano_usd: 2 * COST });
    assert!(granted(store.reserve_in_model(&of_model(2_000, COST), CALL).await.unwrap()).is_some());
    let other = ModelBudget { model: "n".into(), ..of_model(1_000, COST) };
    assert!(granted(store.reserve_in_model(&other, CALL).await.unwrap()).is_some());
    store.settle_in_model(&budget, COST, 100).await.unwrap();
    let reserved = store.reserve_in_model(&budget, CALL).await.unwrap();
    assert_eq!(reserved, Reserved::Granted { output_tokens: 450, nano_usd: COST - 100 }, "what is left");
    store.settle_in_model(&budget, COST - 100, 0).await.unwrap();
    assert!(granted(store.reserve_in_model(&budget, CALL).await.unwrap()).is_some(), "it was released");
}

pub async fn calls_at_the_same_time_pass_no_budget(database: &impl Database) {
    // Two programs on one database, where there can be two.
    let stores = [database.open(), database.open()];
    let (run_id, _) = running(&*stores[0], "s").await;
    let fitting = 5;
    let (budget, of_run) = (of_model(1_000, fitting * COST), tokens(fitting * 1_500));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..40 {
        let (store, budget, run_id) = (Arc::clone(&stores[number % 2]), budget.clone(), run_id.clone());
        tasks.spawn(async move {
            let in_model = granted(store.reserve_in_model(&budget, CALL).await.unwrap());
            let in_run = reserve(&*store, &run_id, &number.to_string(), of_run).await;
            (in_model.is_some(), in_run.is_some())
        });
    }
    let reserved = tasks.join_all().await;
    let count = |of: fn(&(bool, bool)) -> bool| reserved.iter().filter(|it| of(it)).count() as u64;
    assert_eq!((count(|it| it.0), count(|it| it.1)), (fitting, fitting));
}

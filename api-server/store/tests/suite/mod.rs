//! What every database must do, written against `Arc<dyn Store>`.

pub mod accept;
pub mod branches;
pub mod budgets;
pub mod crash;
pub mod fixtures;
pub mod intents;
pub mod interleavings;
pub mod jobs;
pub mod journal;
pub mod keys;
pub mod leases;
pub mod line;
pub mod metrics;
pub mod pause;
pub mod queries;
pub mod resumption;
pub mod retention;
pub mod session_list;
pub mod session_runs;
pub mod sessions;
pub mod shares;
pub mod slots;
pub mod start;
pub mod usage;
pub mod workers;

use std::sync::Arc;

use cadre_store::Store;

/// An empty, migrated database that can be opened again.
pub trait Database: Send + Sync {
    /// Opens it.
    fn open(&self) -> Arc<dyn Store>;
}

/// A test for each function of the suite; `$make` is an async expression that gives a [`Database`].
#[macro_export]
macro_rules! conformance {
    ($make:expr; $($module:ident: $($name:ident),+;)+) => {
        $(mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let database = $make.await;
                $crate::suite::$module::$name(&database).await;
            })+
        })+
    };
    ($make:expr) => {
        $crate::conformance! { $make;
            accept:
                a_run_is_accepted_with_its_session,
                a_foreign_session_and_a_taken_id_are_refused,
                a_session_is_one_components,
                a_full_queue_refuses,
                an_agents_own_queue_limit_counts_only_its_runs,
                a_key_replays_its_run_even_when_the_queue_is_full,
                a_key_with_another_body_or_component_conflicts,
                keys_of_others_and_of_run_objects_are_apart,
                a_good_claim_starts_the_run_in_the_same_commit,
                a_bad_claim_leaves_it_waiting,
                a_busy_session_can_be_refused,
                session_state_is_merged,
                the_same_key_at_the_same_time_makes_one_run;
            line:
                a_hundred_accepts_at_once_are_a_line,
                only_the_head_starts,
                the_end_of_a_run_names_the_next,
                a_cancel_ends_a_waiting_run_with_an_event,
                a_cancel_asks_a_running_run,
                a_cancel_is_limited_to_the_owner,
                a_cancelled_head_names_the_next_and_others_do_not;
            start:
                two_leases_claim_one_head,
                a_second_start_under_one_lease_is_the_same_attempt,
                a_lost_worker_is_followed_with_the_progress,
                history_is_the_newest_completed_runs,
                effects_come_from_all_runs_of_the_session,
                files_of_earlier_runs_are_named,
                only_the_newest_files_are_named,
                a_run_that_is_resumed_has_its_files_from_where_it_was;
            slots:
                an_agents_sessions_wait_for_slots,
                a_claim_takes_a_slot_or_waits,
                a_run_that_goes_on_keeps_a_limit_that_came_later,
                all_agents_share_the_servers_slots,
                many_who_give_slots_give_no_more_than_there_are;
            budgets:
                a_runs_calls_stay_within_its_budget,
                a_models_budget_begins_anew_with_its_period,
                calls_at_the_same_time_pass_no_budget;
            keys:
                a_key_resumes_a_run_once,
                a_question_takes_the_place_of_one_that_nobody_has_seen;
            shares:
                a_namespaces_queue_is_full_and_anothers_is_not,
                a_slot_goes_to_the_namespace_that_has_the_fewest,
                a_namespace_has_no_more_slots_than_its_share,
                a_claim_does_not_overtake_a_namespace_that_has_less,
                a_long_line_hides_no_other,
                a_namespaces_files_are_bounded;
            workers:
                a_worker_that_leaves_leaves_its_runs,
                a_worker_that_has_moved_keeps_its_runs,
                another_process_takes_a_workers_place,
                only_a_dead_replicas_runs_are_released_and_once,
                only_an_idle_session_loses_its_worker,
                a_workers_report_lives_as_long_as_its_connection,
                of_many_that_take_a_run_one_gets_it;
            journal:
                events_are_stored_as_they_go_out,
                events_that_are_not_kept_only_go_out,
                a_batch_sent_again_is_acknowledged_once,
                a_gap_is_told,
                an_old_epoch_is_fenced,
                a_run_that_has_not_started_is_fenced,
                a_final_batch_sent_again_is_acknowledged,
                limits_are_kept,
                a_run_can_not_grow_beyond_its_limit,
                events_are_paged_by_bytes,
                pages_end_although_a_journal_is_longer,
                small_chunks_become_few_and_nobody_can_tell,
                chunks_left_small_by_a_crash_are_joined_when_they_are_read,
                a_run_goes_on_behind_joined_chunks,
                records_become_messages_and_tools;
            branches:
                a_fork_begins_with_what_is_kept,
                a_fork_of_a_fork_keeps_both_parts,
                a_fork_knows_of_calls_that_had_begun,
                a_fork_from_the_start_keeps_nothing,
                what_has_not_ended_or_has_changed_is_not_forked,
                each_message_is_in_the_history_once,
                a_regenerated_run_leaves_the_history_unless_it_is_kept,
                a_copied_session_has_all_but_the_events,
                a_copied_run_can_go_on,
                an_empty_or_too_large_session_is_not_copied;
            resumption:
                a_run_that_failed_goes_on_under_its_id,
                a_resumed_run_waits_behind_the_line,
                stand_ins_are_forgotten,
                input_comes_before_what_follows,
                only_failed_runs_that_are_as_they_were_go_on,
                attempts_after_failures_are_counted;
            pause:
                a_paused_run_holds_its_line_and_no_slot,
                a_paused_run_leaves_the_slot_of_its_namespace,
                a_key_decides_once,
                decisions_are_merged_and_the_run_goes_on_when_all_are_there,
                the_time_of_a_pause_does_not_count,
                an_approval_is_spent_once_and_only_on_its_call,
                a_paused_session_may_lose_its_worker,
                a_cancel_that_meets_the_pause_ends_the_run,
                a_paused_run_is_cancelled_in_its_stage,
                a_paused_run_is_never_old,
                a_paused_run_takes_nothing_from_its_last_writer;
            metrics:
                model_calls_are_summed_at_the_end,
                a_call_without_a_price_leaves_the_cost_open,
                a_lazy_call_is_there_before_a_later_end,
                calls_of_a_run_are_told_oldest_first;
            leases:
                an_epoch_belongs_to_a_registration,
                only_the_holder_releases,
                the_servers_end_fences_the_worker,
                the_servers_end_may_be_for_one_epoch,
                the_servers_end_of_a_waiting_run_fences_nobody,
                heads_without_a_worker_wait;
            queries:
                lists_are_filtered_and_counted,
                the_run_of_an_object_is_found,
                counts_follow_the_runs,
                loads_name_the_last_run,
                a_detail_has_all;
            jobs:
                jobs_are_filtered_ordered_and_paged,
                a_job_shows_its_place_its_worker_and_its_key;
            intents:
                a_cancel_before_its_run_ends_it_at_once,
                a_cancel_waits_only_for_its_own_and_not_for_ever,
                a_cancel_and_its_run_at_once_never_miss_each_other;
            retention:
                keys_and_cancels_expire_but_not_those_of_open_runs,
                a_round_removes_a_bounded_number,
                old_runs_go_with_all_that_hangs_on_them,
                files_go_with_the_last_run_that_names_them,
                files_of_refused_runs_go;
            usage:
                days_are_right_however_much_of_them_is_counted,
                counting_at_once_counts_once,
                what_was_counted_outlives_its_rows,
                copies_of_runs_are_not_counted,
                one_refresh_at_a_time;
            session_list:
                sessions_are_filtered_ordered_and_paged,
                a_session_is_changed_in_parts,
                a_session_without_a_run_takes_what_it_lacks_from_the_first,
                a_session_that_was_made_keeps_what_it_was_given,
                a_part_of_a_name_means_the_same_letters_everywhere;
            session_runs:
                runs_of_a_session_are_filtered,
                large_runs_of_a_session_come_in_bounded_pieces,
                a_session_sums_tokens_and_cost_of_all_its_runs;
            sessions:
                a_deleted_session_leaves_nothing,
                what_is_asked_for_an_owner_is_theirs_or_not_there,
                blobs_are_read_in_ranges,
                blobs_belong_to_a_session,
                the_schema_is_current;
            crash:
                what_was_acknowledged_is_there_after_a_crash,
                a_closed_store_says_so;
            interleavings:
                invariants_hold;
        }
    };
}

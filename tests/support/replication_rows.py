"""The rows of Kafka's tables about replication, and the rules of replicas: the tests of each one,
or the difference.

A test is named `folder/module::function`, below `tests`. A difference is the first cell of a row of
docs/differences.md.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A row of a table: its tests, separated by blanks, or the difference that docs/differences.md
    explains, or both.
    """

    name: str
    tests: str = ""
    difference: str = ""


ELECTIONS = "replicas/rules/test_elections"
MEMBERSHIP = "replicas/test_membership"
MOVES = "replicas/rules/test_reassignments"
PARTITION = "replicas/test_partition_replicas"
QUORUM = "replicas/test_decision_log"
ROLES = "partition/replication/test_roles"
ROWS = "semantics/test_replication"
STATES = "admin/test_replica_states"
VIEWS = "replicas/rules/test_views"

TABLES: dict[str, tuple[Row, ...]] = {
    "ISR and high watermark": (
        Row("lastCaughtUpTimeMs", "replicas/rules/test_lag::test_each_line_of_the_rule"),
        Row(
            "out of sync: a follower that fetches, but slower than its leader is written, leaves "
            "after 10 s",
            "replicas/rules/test_lag::test_a_follower_that_is_slower_than_its_leader_is_written_leaves_after_the_limit "
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            ""
            "replicas/test_follower_lags::test_a_slow_member_leaves_and_the_others_commit",
        ),
        Row(
            "shrink check: every half of replica.lag.time.max.ms",
            "replicas/test_follower_lags::test_a_pause_of_the_copying_process_is_no_lag",
            "a follower that does not fetch for `replica.lag.time.max.ms`",
        ),
        Row(
            "no limit of a number of messages",
            "replicas/rules/test_lag::test_only_time_counts_and_a_level_follower_is_never_late",
        ),
        Row(
            "(re)join: the high watermark and the start of the leader's epoch",
            f"{ROLES}::test_a_replica_joins_with_everything_that_a_member_must_have "
            f"{ELECTIONS}::test_a_newcomer_that_is_away_or_leaves_or_has_another_life_is_refused",
        ),
        Row(
            "change protocol: FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION",
            f"{ELECTIONS}::test_a_proposal_of_an_old_leader_or_from_an_old_decision_is_refused",
        ),
        Row("change protocol: INVALID_REQUEST", f"{ELECTIONS}::test_an_impossible_isr_is_refused"),
        Row(
            "change protocol: INELIGIBLE_REPLICA",
            f"{ELECTIONS}::test_a_newcomer_that_is_away_or_leaves_or_has_another_life_is_refused",
        ),
        Row("change protocol: NOT_CONTROLLER, NEW_LEADER_ELECTED", "", "a controller"),
        Row(
            "while pending: an expansion counts at once",
            f"{ROWS}::test_pending_growth_counts_for_the_high_watermark_before_it_is_decided",
        ),
        Row(
            "while pending: a shrink counts when it is decided",
            "test_replica::test_a_record_that_is_only_in_the_leader_is_not_acknowledged "
            f"{ROLES}::test_the_high_watermark_is_the_least_end_of_the_maximal_isr",
        ),
        Row(
            "high watermark candidate: the least log end of the ISR",
            f"{ROWS}::test_isr_the_high_watermark_is_the_least_log_end_of_it",
        ),
        Row(
            "high watermark candidate: replicas that are caught up and not in the ISR yet",
            "",
            "a replica that has caught up counts",
        ),
        Row(
            "the high watermark moves: never backward, not below min.insync.replicas",
            f"{ROWS}::test_high_watermark_stands_still_while_the_isr_is_below_the_effective_minimum",
        ),
        Row(
            "effective min ISR: at most the number of replicas",
            f"{ELECTIONS}::test_the_required_size_is_at_most_the_number_of_replicas",
        ),
        Row(
            "followers: they take the high watermark",
            "partition/replication/test_followers::test_a_run_is_committed_in_one_call",
            "a follower takes the high watermark with its next fetch",
        ),
        Row(
            "followers: they take the log start",
            "replicas/test_deleted_records::test_a_level_follower_takes_the_log_start "
            "replicas/test_reads_after_failovers::test_deleted_records_are_deleted_in_all_directories",
        ),
        Row(
            "checkpoint: a leader starts with its stored high watermark",
            f"{ROWS}::test_checkpoint_after_an_orderly_close_a_leader_starts_with_the_stored_high_watermark",
            "high watermarks are saved every 5 s",
        ),
        Row(
            "visible bound",
            f"{ROWS}::test_visible_bound_a_reader_ends_at_the_high_watermark_and_a_position_at_the_log_end "
            f"{ROLES}::test_readers_end_at_the_high_watermark",
        ),
        Row(
            "new leader: OFFSET_NOT_AVAILABLE until the start of its epoch",
            "replicas/test_reads_after_failovers::test_a_leader_returns_nothing_before_the_start_of_its_epoch_is_committed",
            "a new leader answers `OFFSET_NOT_AVAILABLE`",
        ),
    ),
    "acks": (
        Row("0", "semantics/test_producer::test_acks_0_is_done_in_the_call_and_knows_no_offset"),
        Row("1", f"{PARTITION}::test_without_acks_all_only_the_leader_has_it_until_the_commit"),
        Row(
            "all: answered from the high watermark",
            f"{PARTITION}::test_an_append_is_acknowledged_when_all_replicas_have_it",
        ),
        Row(
            "all: NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND; the data stays",
            f"{PARTITION}::test_too_few_replicas_refuse_an_append_or_leave_it_uncommitted",
        ),
        Row(
            "all: REQUEST_TIMED_OUT",
            "test_replica::test_a_record_that_is_only_in_the_leader_is_not_acknowledged",
        ),
        Row(
            "other: INVALID_REQUIRED_ACKS",
            "config/test_topic::test_a_bad_value_is_refused_with_key_range_and_value",
        ),
        Row(
            "walk-through: RF 3, min ISR 2, then ISR 2, then ISR 1",
            f"{ROWS}::test_high_watermark_stands_still_while_the_isr_is_below_the_effective_minimum",
        ),
    ),
    "Leader epochs and truncation": (
        Row(
            "each replica has a list of epochs and start offsets",
            f"{ROLES}::test_a_decision_is_installed_over_an_older_one_only "
            f"{ROWS}::test_truncation_a_returning_leader_cuts_its_tail_where_the_epochs_part",
        ),
        Row("end offset for an epoch", f"{ROWS}::test_end_offset_for_epoch"),
        Row(
            "a follower truncates where the epochs diverge, over several epochs",
            f"{ROLES}::test_epochs_agree_as_a_search_over_all_offsets_finds "
            f"{ROLES}::test_a_follower_is_cut_where_its_epochs_and_the_leaders_diverge",
        ),
        Row(
            "no epoch information: truncation to the high watermark",
            "",
            "a follower without leader epochs",
        ),
        Row(
            "a follower below the leader's log start begins again there",
            "replicas/test_deleted_records::test_a_follower_begins_again_if_it_may_lack_a_removed_tombstone",
        ),
        Row(
            "a consumer with a stored epoch performs the check",
            f"{ROWS}::test_a_consumer_finds_the_truncation_of_an_unclean_election",
        ),
        Row(
            "the example of A and B",
            f"{ROWS}::test_truncation_a_returning_leader_cuts_its_tail_where_the_epochs_part",
        ),
    ),
    "Elections": (
        Row(
            "offline partition: a live member of the ISR",
            f"{ELECTIONS}::test_the_most_advanced_log_leads",
            "the first member of the ISR in the assignment is elected",
        ),
        Row(
            "offline partition: ISR = ISR and live",
            f"{ELECTIONS}::test_the_isr_is_what_the_elector_sees_of_it",
        ),
        Row(
            "offline, unclean: a live replica is the ISR, and recovers",
            f"{ELECTIONS}::test_an_unclean_leader_is_the_whole_isr_and_recovers "
            "replicas/test_election_policies::test_the_setting_elects_a_replica_outside_the_isr_with_a_warning",
        ),
        Row(
            "reassignment: the first of the target that is live and in the ISR",
            f"{MOVES}::test_all_replicas_are_replaced_in_kafkas_steps {MOVES}::test_an_end_needs_a_complete_leader",
        ),
        Row(
            "preferred: the head of the assignment, if live and in the ISR",
            f"{ELECTIONS}::test_the_preferred_leader_returns",
        ),
        Row("controlled shutdown", "", "controlled shutdown, `controlled.shutdown.*`"),
        Row(
            "no candidate: leader -1, the ISR is kept",
            f"{ELECTIONS}::test_a_replica_outside_of_isr_and_elr_is_never_elected",
        ),
        Row(
            "the last member of the ISR stays in it",
            f"{ELECTIONS}::test_n_failures_are_survived_by_n_plus_one_members",
        ),
        Row(
            "electLeaders: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE",
            f"{ELECTIONS}::test_a_leader_that_serves_needs_no_election {ELECTIONS}::test_the_preferred_leader_returns "
            f"{ELECTIONS}::test_an_unclean_election_trusts_a_stranger_last "
            "replicas/test_assignments::test_leaders_are_elected_on_request",
        ),
        Row(
            "automatic rebalance above 10 percent",
            "replicas/test_assignments::test_leaders_return_to_the_preferred_directories",
        ),
        Row(
            "ELR: members that leave a too small ISR",
            f"{ELECTIONS}::test_members_that_leave_a_too_small_isr_become_eligible_leaders",
        ),
        Row(
            "ELR: not after an unclean shutdown",
            f"{ELECTIONS}::test_a_member_that_leaves_incomplete_is_not_an_eligible_leader "
            "replicas/rules/test_directories::test_an_eligible_leader_that_lost_its_page_is_one_no_longer",
        ),
        Row(
            "ELR: a leader from it if the ISR has none",
            f"{ELECTIONS}::test_an_eligible_leader_leads_alone_if_no_member_is_there",
        ),
        Row("ELR: lastKnownELR, last known leader", "", "`lastKnownELR`"),
        Row(
            "an unclean shutdown is detected by the missing mark",
            "replicas/test_registration::test_replica_12_a_directory_that_was_not_closed_in_order_draws_a_new_id",
        ),
        Row(
            "n failures are survived by n + 1 members of the ISR",
            f"{ELECTIONS}::test_n_failures_are_survived_by_n_plus_one_members",
        ),
        Row(
            "n failures are survived by a majority of 2 n + 1",
            f"{ROWS}::test_n_failures_are_survived_by_a_majority_of_2n_plus_1",
        ),
    ),
    "Placement": (
        Row(
            "5 nodes, 10 partitions, RF 3",
            "replicas/rules/test_placement::test_followers_of_a_leader_differ_in_every_round",
        ),
        Row(
            "partitions 6 to 9 are added",
            "replicas/rules/test_placement::test_added_partitions_continue_the_numbers",
        ),
        Row("racks", "replicas/rules/test_placement::test_racks_take_turns"),
        Row(
            "racks for all or none",
            "replicas/rules/test_placement::test_racks_are_for_all_nodes_or_for_none",
        ),
        Row(
            "1,000 clusters, by Kafka's own classes",
            "replicas/rules/test_placement::test_a_thousand_clusters_are_placed_as_kafka_places_them",
        ),
        Row("the placer of KRaft", "", "the placement of KRaft"),
        Row(
            "INVALID_REPLICATION_FACTOR",
            "replicas/rules/test_placement::test_impossible_sizes_are_refused",
        ),
    ),
    "Reassignment": (
        Row(
            "the steps of 1 2 3 to 4 5 6",
            f"{MOVES}::test_all_replicas_are_replaced_in_kafkas_steps",
        ),
        Row(
            "completion: the whole target is in the ISR; the leader epoch is raised",
            f"{MOVES}::test_a_leader_of_the_target_stays_in_a_new_epoch {MOVES}::test_the_factor_grows_and_shrinks",
        ),
        Row(
            "cancellation; NO_REASSIGNMENT_IN_PROGRESS",
            f"{MOVES}::test_a_cancelled_reassignment_returns_to_the_replicas_before",
        ),
        Row(
            "a new target replaces the present one",
            f"{MOVES}::test_a_new_target_replaces_the_present_one",
        ),
        Row("INVALID_REPLICA_ASSIGNMENT", f"{MOVES}::test_an_impossible_target_is_refused"),
        Row(
            "another replication factor",
            "replicas/test_assignments::test_a_reassignment_changes_the_number_of_replicas",
        ),
        Row(
            "throttle",
            "replicas/test_throttles::test_the_throttle_of_a_reassignment_is_one_rate_for_all_processes "
            "replicas/test_throttles::test_the_throttles_of_a_topic_limit_the_named_replicas "
            "replicas/test_throttles::test_members_of_the_isr_are_not_throttled",
        ),
        Row(
            "a move inside of one node; `-future`",
            "",
            "moves between the log directories of one broker",
        ),
        Row(
            "`-delete`",
            "replicas/test_assignments::test_a_partition_without_copies_moves_to_another_directory",
        ),
        Row(
            "`-stray`",
            "replicas/test_deleted_topics::test_a_directory_that_was_away_loses_a_deleted_topic",
            "a partition of a deleted topic becomes `-stray`",
        ),
    ),
    "Reading from followers, verification": (
        Row(
            "client.rack: a replica of the ISR in the rack",
            "replicas/test_nearby_reads::test_a_consumer_reads_the_replica_in_its_rack "
            "replicas/test_nearby_reads::test_a_follower_that_leaves_the_isr_is_not_read",
        ),
        Row(
            "the most caught-up one",
            "replicas/test_nearby_reads::test_the_best_follower_of_several_in_the_rack_is_read",
        ),
        Row(
            "an error or an offset out of range falls back to the leader",
            "replicas/test_nearby_reads::test_a_follower_that_fails_is_replaced_by_the_leader "
            "replicas/test_nearby_reads::test_an_offset_out_of_the_range_of_a_follower_is_asked_at_the_leader",
        ),
        Row(
            "followers serve up to their own high watermark",
            f"{ROLES}::test_readers_end_at_the_high_watermark",
        ),
        Row(
            "verification",
            "replicas/test_verification::test_a_damaged_follower_is_found_and_repaired "
            "replicas/test_verification::test_equal_replicas_have_no_difference",
        ),
    ),
    "Controller": (
        Row(
            "states of a partition, and their transitions",
            f"{VIEWS}::test_a_partition_is_new_until_it_is_installed "
            f"{VIEWS}::test_a_partition_is_online_while_its_leader_is_complete "
            f"{VIEWS}::test_every_transition_is_one_of_kafkas_controller",
            "the states of partitions and replicas are stored",
        ),
        Row(
            "Online from New: the first live replica leads",
            "replicas/rules/test_topics::test_only_live_replicas_are_in_a_new_isr",
        ),
        Row(
            "states of a replica, and their transitions",
            f"{VIEWS}::test_the_state_of_a_replica_is_computed {VIEWS}::test_every_transition_is_one_of_kafkas_controller "
            f"{VIEWS}::test_steps_that_are_one_step_here_are_steps_of_kafka",
        ),
        Row("a broker joins", "test_replica::test_a_directory_that_returns_joins_again"),
        Row(
            "a broker dies",
            "test_replica::test_one_election_replaces_all_leaders_that_were_in_a_lost_directory",
        ),
        Row(
            "a topic is created",
            f"{STATES}::test_the_states_of_a_partition_from_its_decision_to_its_deletion",
        ),
        Row(
            "a topic is deleted",
            f"{STATES}::test_the_states_of_a_partition_from_its_decision_to_its_deletion "
            f"{ROWS}::test_deletion_a_directory_that_was_away_removes_the_topic_and_the_name_is_free_at_once",
            "a deletion waits for replicas that are away",
        ),
        Row("session fencing", "", "sessions, heartbeats, `broker.session.timeout.ms`"),
        Row(
            "election of the controller: the first one wins, the others see it",
            f"{STATES}::test_one_process_decides_in_a_term_and_the_others_see_it",
        ),
        Row(
            "lower controller epochs are rejected",
            f"{QUORUM}::test_quorum_3_a_process_that_decides_again_saves_the_promise "
            "replicas/test_decision_histories::test_m1_random_histories",
            "a controller",
        ),
        Row("order of a failover of the controller", "", "a controller"),
        Row(
            "KRaft: metadata are a replicated log",
            "interop/test_replica_state::test_dump_log_prints_the_decision_log",
        ),
    ),
}

RULES: dict[str, str] = {
    "QUORUM-1": f"{MEMBERSHIP}::test_quorum_1_without_the_check_a_clone_is_a_member",
    "QUORUM-2": f"{QUORUM}::test_quorum_2_without_a_majority_no_decision_is_made",
    "QUORUM-3": f"{QUORUM}::test_quorum_3_a_process_that_decides_again_saves_the_promise "
    "replicas/test_decision_histories::test_each_rule_keeps_the_decisions_of_its_history",
    "QUORUM-4": f"{QUORUM}::test_quorum_4_an_incomplete_copy_counts_for_no_majority",
    "QUORUM-5": f"{QUORUM}::test_quorum_5_a_found_record_is_settled_by_a_record_of_an_own_term",
    "QUORUM-6": f"{QUORUM}::test_quorum_6_voters_change_on_both_majorities",
    "QUORUM-7": f"{QUORUM}::test_quorum_7_a_hint_follows_decisions_of_others_without_a_lock",
    "QUORUM-8": "replicas/test_different_decisions::"
    "test_a_tail_that_counts_nowhere_is_cut_although_its_terms_are_those_of_others",
    "QUORUM-9": "replicas/test_different_decisions::test_another_directory_under_a_planned_number_is_no_vote",
    "REPLICA-1": "partition/replication/test_followers::test_a_follower_of_a_later_epoch_takes_nothing "
    f"{ROLES}::test_a_follower_is_cut_where_its_epochs_and_the_leaders_diverge",
    "REPLICA-2": f"{ROLES}::test_a_follower_is_cut_where_its_epochs_and_the_leaders_diverge "
    "replicas/test_deleted_records::test_a_copy_from_a_page_that_does_not_lead_any_more_is_not_taken",
    "REPLICA-3": f"{ROLES}::test_the_high_watermark_is_the_least_end_of_the_maximal_isr "
    f"{ROLES}::test_a_member_whose_page_was_replaced_or_whose_log_is_being_cut_does_not_count",
    "REPLICA-4": f"{PARTITION}::test_too_few_replicas_refuse_an_append_or_leave_it_uncommitted "
    "replicas/rules/test_topics::test_a_lower_required_size_ends_the_elr",
    "REPLICA-5": "test_replica::test_a_record_that_is_only_in_the_leader_is_not_acknowledged",
    "REPLICA-6": f"{ROLES}::test_a_replica_joins_with_everything_that_a_member_must_have "
    f"{ROLES}::test_a_replica_that_lacks_the_start_of_the_epoch_or_is_in_another_epoch_does_not_join",
    "REPLICA-7": f"{ELECTIONS}::test_two_shrinks_from_one_decision_do_not_both_count",
    "REPLICA-8": f"{ELECTIONS}::test_a_replica_outside_of_isr_and_elr_is_never_elected "
    f"{ELECTIONS}::test_the_most_advanced_log_leads",
    "REPLICA-9": f"{ROLES}::test_a_decision_is_installed_over_an_older_one_only",
    "REPLICA-10": "replicas/test_reads_after_failovers::"
    "test_a_leader_returns_nothing_before_the_start_of_its_epoch_is_committed "
    "replicas/test_reads_after_failovers::test_a_reader_never_returns_to_a_lower_leader_epoch",
    "REPLICA-11": f"{PARTITION}::test_replica_11_a_replica_is_complete_with_its_page_or_after_an_orderly_close "
    "replicas/rules/test_directories::test_a_follower_that_lost_its_page_leaves_the_isr",
    "REPLICA-12": "replicas/test_strangers::test_a_stranger_is_away_until_it_is_replaced "
    "replicas/test_registration::test_replica_12_a_crashed_directory_had_the_registered_opening_others_are_strangers",
    "REPLICA-13": f"{ELECTIONS}::test_after_a_power_loss_all_members_are_awaited {ELECTIONS}::test_a_durable_topic_does_not_wait",
    "REPLICA-14": "replicas/test_parallel_sync::test_a_record_is_acknowledged_when_all_directories_have_synced_it "
    "replicas/test_parallel_sync::test_a_member_that_fails_between_commit_and_sync_leaves_the_isr "
    f"{ROWS}::test_a_replica_joins_a_durable_topic_after_its_sync",
    "REPLICA-15": "partition/replication/test_followers::test_after_a_kill_the_leader_has_every_record_of_its_followers",
    "REPLICA-16": f"{PARTITION}::test_a_repeated_append_is_acknowledged_only_where_its_records_are",
    "REPLICA-17": f"{ROLES}::test_a_load_after_a_kill_begins_no_epoch",
    "REPLICA-18": "replicas/test_returning::test_an_error_of_a_disk_reaches_no_caller "
    "replicas/test_returning::test_an_error_of_the_process_is_raised_and_deposes_no_directory",
    "REPLICA-19": f"{MEMBERSHIP}::test_replica_19_open_refuses_one_directory_of_a_set_unless_it_is_alone_or_reads "
    "replicas/test_strangers::test_a_stranger_is_away_until_it_is_replaced",
    "REPLICA-20": f"{ROLES}::test_the_log_start_ends_at_the_high_watermark_and_a_replica_joins_with_it "
    "replicas/test_deleted_records::test_a_follower_begins_again_if_it_may_lack_a_removed_tombstone "
    "replicas/test_deleted_records::test_a_level_follower_takes_the_log_start",
    "REPLICA-21": "partition/replication/test_take::test_the_last_stable_offset_passes_a_transaction_with_the_high_watermark",
    "REPLICA-22": "replicas/test_decisions_of_clients::test_a_reader_of_decisions_waits_for_their_commit "
    "replicas/test_decisions_of_clients::test_a_registration_is_committed_before_the_first_data",
    "REPLICA-23": "replicas/test_deleted_topics::test_a_directory_that_was_away_loses_a_deleted_topic",
    "REPLICA-24": "replicas/test_assignments::test_a_partition_without_copies_moves_to_another_directory "
    "replicas/test_assignments::test_a_replica_that_was_added_again_is_not_removed",
    "REPLICA-25": "test_replica::test_records_of_acks_1_are_committed_by_the_housekeeper "
    "replicas/test_follower_lags::test_a_slow_member_leaves_and_the_others_commit",
    "REPLICA-26": "replicas/test_verification::test_a_reader_of_a_damaged_leader_gets_the_bytes_of_another_replica",
    "REPLICA-27": "replicas/test_nearby_reads::test_a_follower_that_leaves_the_isr_is_not_read "
    "replicas/test_nearby_reads::test_the_position_never_goes_back_to_a_lower_epoch",
    "REPLICA-28": "replicas/test_growth_of_a_log::test_a_growth_that_is_killed_at_a_main_step_loses_nothing",
}

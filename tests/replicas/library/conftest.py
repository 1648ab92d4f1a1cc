"""Each log that a test here opens is a set of three directories, and each of its topics has three
copies.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import embedlog
from tests.support.logs_as_sets import opened_as_set

FILES = "it changes or reads files of one directory"
INSIDE = "it looks into the partition object of one directory"
ZYGOTE = "its processes open one directory"
FAILOVER = "a failing call or a held lock is a failover in a set"
ENOUGH = "three directories are enough for min.insync.replicas=2"
OTHER = "the records are copied from another replica"
ALL_FULL = "all three directories are full: no majority is left, which is another error"
OTHERWISE = {  # tests that do not apply to a set as they are
    "test_damage_is_never_backed_up": OTHER,
    "test_a_segment_that_lost_its_end_is_never_backed_up": OTHER,
    "test_sealed_segments_are_byte_for_byte_what_a_close_leaves": "the decision log is not part of a backup",
    "test_who_was_killed_is_in_nobodys_way": ZYGOTE,
    "test_a_static_member_that_will_not_come_back_gives_its_place_away": ZYGOTE,
    "test_a_call_that_fails_is_an_error_of_ours_and_harms_nothing": FAILOVER,
    "test_all_engines_say_of_a_random_log_what_a_consumer_says": "it looks at the control page of the directory",
    "test_a_reader_at_the_end_follows_transactions_as_they_end": "a set has no short path to the end of one file",
    "test_too_few_directories_in_sync_refuse_a_record": ENOUGH,
    "test_the_setting_holds_from_one_record_to_the_next": ENOUGH,
    "test_a_transaction_is_refused_in_each_partition_and_can_be_aborted": ENOUGH,
    "test_what_the_log_itself_writes_is_not_refused": ENOUGH,
    "test_slow_files_do_not_stop_the_loop": FILES,
    "test_a_newer_versions_settings_survive_a_change_by_an_older_one": INSIDE,
    "test_a_deleted_topics_files_go_after_the_delay": FILES,
    "test_a_damaged_partition_can_still_be_deleted": FILES,
    "test_a_damaged_file_of_topics_stops_the_opening_and_is_left_alone": FILES,
    "test_a_description_tells_how_it_stands": FILES,
    "test_settings_that_cannot_be_change_nothing": FILES,
    "test_a_topic_that_cannot_be_leaves_no_trace[a name that a file has]": "a foreign file is the failure of one directory",
    "test_a_full_disk_at_any_step_is_taken_back": FAILOVER,
    "test_a_full_disk_is_taken_back_where_many_partitions_are_made_side_by_side": FAILOVER,
    "test_what_a_dead_process_left_half_made_is_finished_by_those_who_live": FILES,
    "test_what_a_dead_process_left_half_made_is_finished_by_the_next_opening": FILES,
    "test_many_topics_on_a_full_disk_are_taken_back_together": FAILOVER,
    "test_a_disk_that_is_full_at_any_write_of_an_append[writes-for good]": ALL_FULL,
    "test_a_disk_that_is_full_at_any_write_of_an_append[names too-for good]": ALL_FULL,
    "test_a_topic_whose_growth_fails_at_any_sync_is_readable_at_once": "a set grows by a decision, which needs no fsync",
    "test_a_write_that_is_cut_short_is_finished_or_taken_back": FILES,
    "test_configuration_check_crcs_a_damaged_batch_is_an_error_and_never_a_record": OTHER,
    "test_a_power_loss_behind_what_was_read_is_noticed": FILES,
    "test_an_epoch_that_was_seen_is_not_used_again": FILES,
    "test_a_directory_with_some_of_the_partitions_shows_what_it_has": FILES,
    "test_every_row_of_a_batch_is_seen": "its log has no housekeeper, which commits records of acks=1",
    "test_it_must_be_dirtier_than_the_ratio": INSIDE,
    "test_the_last_batch_of_a_producer_stays_if_need_be_empty": INSIDE,
    "test_a_partition_is_blank_until_somebody_writes": INSIDE,
    "test_a_refusal_leaves_nothing_behind": INSIDE,
    "test_a_decision_stands_if_its_partition_is_closed_before_the_late_flush": INSIDE,
    "test_a_frozen_decider_is_named_after_the_deadline": ZYGOTE,
    "test_who_dies_while_appending_leaves_a_whole_outcome_or_none": ZYGOTE,
    "test_a_decision_that_was_not_carried_out": FAILOVER,
    "test_an_owner_killed_behind_its_decision_has_committed": ZYGOTE,
    "test_a_clock_that_jumps_ends_no_wait_and_delays_no_sync": INSIDE,
    "test_a_lock_is_waited_for_by_another_clock": FAILOVER,
    "test_a_write_that_fails_leaves_the_lock_and_the_view_in_order": FAILOVER,
    "test_an_interpreter_that_ends_amid_sends_writes_what_it_took": "its threads end between a send and its note",
    "test_what_a_worker_has_buffered_at_its_end_is_written[forkserver]": ZYGOTE,
    "test_settings_are_a_mapping_or_keywords_in_both_spellings": "the wrapper of `open` merges settings",
    "test_a_setting_of_a_log_has_an_effect[log_cleaner_dedupe_buffer_size]": INSIDE,
    "test_a_setting_of_a_log_has_an_effect[producer_id_expiration_ms]": INSIDE,
    "test_a_setting_of_a_log_has_an_effect[max_open_files]": INSIDE,
    "test_a_setting_of_a_log_has_an_effect[lock_timeout_ms]": FAILOVER,
    "test_a_setting_of_a_log_has_an_effect[follow_links]": FAILOVER,
    "test_a_setting_of_a_producer_has_an_effect[acks]": ENOUGH,
    "test_a_setting_of_a_topic_has_an_effect[min_insync_replicas]": ENOUGH,
    "test_a_default_of_all_topics_has_the_effect_of_the_topics_own[min_insync_replicas]": ENOUGH,
    "test_what_passes_is_waited_for_in_order": FAILOVER,
    "test_records_that_are_in_do_not_fail_with_those_that_are_not": FAILOVER,
    "test_records_of_a_durable_topic_fail_if_no_sync_was_made": FAILOVER,
    "test_the_way_past_the_thread_and_the_thread_take_turns_without_a_look_at_the_log": INSIDE,
    "test_a_topic_that_cannot_be_seen_for_a_moment_keeps_its_lanes": INSIDE,
    "test_a_signal_handler_reads_inside_an_append": "a view waits for the commit, for which its own thread holds the lock",
}
SHORT = {"test_transactional_reads.py"}  # the others are slow
HOOK = Path(__file__).parents[2] / "support" / "processes_on_a_set"


@pytest.fixture(autouse=True)
def _on_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedlog, "open", opened_as_set)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HOOK), os.environ["PYTHONPATH"]]))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run without slow tests does not collect those of this directory: each of its workers would
    for nothing.
    """
    runs_slow_tests = "not slow" not in config.option.markexpr
    is_slow = collection_path.name.startswith("test_") and collection_path.name not in SHORT
    return None if runs_slow_tests or not is_slow else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    gone = [item for item in here if OTHERWISE.keys() & {item.name, item.name.split("[")[0]}]
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=gone)
    for item in here:
        if item.path.name not in SHORT:
            item.add_marker(pytest.mark.slow)

"""Each rule of replicas, switched off: the test that protects it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.campaign_report import add_counts
from tests.support.child_pytest import run_pytest
from tests.support.replication_rows import RULES as TESTS

ROLES = "partition/replication/test_roles"
PARTITION = "replicas/test_partition_replicas"

RULES: dict[str, tuple[str, str]] = {  # by rule: mutant, test
    "REPLICA-1": (
        "no_fence",
        "partition/replication/test_take::test_a_batch_that_does_not_continue_the_log_is_not_taken",
    ),
    "REPLICA-2": (
        "all_agreed",
        f"{ROLES}::test_a_follower_is_cut_where_its_epochs_and_the_leaders_diverge",
    ),
    "REPLICA-3": (
        "leaders_end_counts",
        f"{ROLES}::test_the_high_watermark_is_the_least_end_of_the_maximal_isr",
    ),
    "REPLICA-4": (
        "any_size_commits",
        f"{PARTITION}::test_too_few_replicas_refuse_an_append_or_leave_it_uncommitted",
    ),
    "REPLICA-5": (
        "absent_member_left",
        "test_replica::test_a_record_that_is_only_in_the_leader_is_not_acknowledged",
    ),
    "REPLICA-6": (
        "anybody_joins",
        f"{ROLES}::test_a_replica_joins_with_everything_that_a_member_must_have",
    ),
    "REPLICA-7": (
        "any_change_is_new",
        "replicas/rules/test_elections::test_two_shrinks_from_one_decision_do_not_both_count",
    ),
    "REPLICA-8": (
        "elect_any_replica",
        "replicas/rules/test_elections::test_a_replica_outside_of_isr_and_elr_is_never_elected",
    ),
    "REPLICA-9": (
        "older_decision_counts",
        f"{ROLES}::test_a_decision_is_installed_over_an_older_one_only",
    ),
    "REPLICA-10": (
        "shown_at_once",
        "replicas/test_reads_after_failovers::test_a_leader_returns_nothing_before_the_start_of_its_epoch_is_committed",
    ),
    "REPLICA-11": (
        "always_complete",
        f"{PARTITION}::test_replica_11_a_replica_is_complete_with_its_page_or_after_an_orderly_close",
    ),
    "REPLICA-12": (
        "strangers_continue",
        "replicas/test_registration::test_replica_12_a_crashed_directory_had_the_registered_opening_others_are_strangers",
    ),
    "REPLICA-13": (
        "no_member_is_awaited",
        "replicas/rules/test_elections::test_after_a_power_loss_all_members_are_awaited",
    ),
    "REPLICA-14": (
        "leader_syncs_alone",
        "replicas/test_parallel_sync::test_a_record_is_acknowledged_when_all_directories_have_synced_it",
    ),
    "REPLICA-15": (
        "any_epoch_leads",
        f"{ROLES}::test_an_append_needs_a_page_that_leads_in_the_required_epoch",
    ),
    "REPLICA-16": (
        "everything_survived",
        f"{PARTITION}::test_a_repeated_append_is_acknowledged_only_where_its_records_are",
    ),
    "REPLICA-17": (
        "recovery_begins_an_epoch",
        f"{ROLES}::test_a_load_after_a_kill_begins_no_epoch",
    ),
    "REPLICA-18": (
        "errors_are_raised",
        "replicas/test_returning::test_an_error_of_a_disk_reaches_no_caller",
    ),
    "REPLICA-19": (
        "one_opens_alone",
        "replicas/test_membership::test_replica_19_open_refuses_one_directory_of_a_set_unless_it_is_alone_or_reads",
    ),
    "REPLICA-20": (
        "nothing_is_lacking",
        "replicas/test_deleted_records::test_a_follower_begins_again_if_it_may_lack_a_removed_tombstone",
    ),
    "REPLICA-21": (
        "stable_at_the_marker",
        "partition/replication/test_take::test_the_last_stable_offset_passes_a_transaction_with_the_high_watermark",
    ),
    "REPLICA-22": (
        "decisions_count_at_once",
        "replicas/test_decisions_of_clients::test_a_reader_of_decisions_waits_for_their_commit",
    ),
    "REPLICA-23": (
        "deleted_topics_stay",
        "replicas/test_deleted_topics::test_a_directory_that_was_away_loses_a_deleted_topic",
    ),
    "REPLICA-24": (
        "added_again_is_removed",
        "replicas/test_assignments::test_a_replica_that_was_added_again_is_not_removed",
    ),
    "REPLICA-25": (
        "no_late_copies",
        "test_replica::test_records_of_acks_1_are_committed_by_the_housekeeper",
    ),
    "REPLICA-26": (
        "damage_is_raised",
        "replicas/test_verification::test_a_reader_of_a_damaged_leader_gets_the_bytes_of_another_replica",
    ),
    "REPLICA-27": (
        "near_at_any_offset",
        "replicas/test_nearby_reads::test_the_position_never_goes_back_to_a_lower_epoch",
    ),
    "REPLICA-28": (
        "members_last",
        "replicas/test_growth_of_a_log::test_a_growth_that_is_killed_at_a_main_step_loses_nothing",
    ),
}


def test_each_rule_of_replicas_has_a_mutant() -> None:
    assert list(RULES) == [rule for rule in TESTS if rule.startswith("REPLICA-")]
    assert len({mutant for mutant, _ in RULES.values()}) == len(RULES)


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_off_is_noticed(tmp_path: Path, rule: str) -> None:
    mutant, test = RULES[rule]
    module, _, name = test.partition("::")
    place = f"tests/{module}.py::{name}"
    run = run_pytest(
        "tests.support.mutants.plugin",
        tmp_path / "run",
        "--timeout=60",
        place,
        timeout_s=250,
        EMBEDLOG_MUTANT=mutant,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, (
        f"{mutant} is not noticed by {test}:\n{run.stdout[-3000:]}{run.stderr[-2000:]}"
    )
    add_counts("mutants", killed=1)

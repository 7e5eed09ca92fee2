"""Every broken trainer that is run for real, and what the harness must say about it."""

from dataclasses import replace

from verdict_matrix.rehearsal import REHEARSALS, Real

from harness.judge.verdict import Verdict

PASSED_OVER = r"step {}\b.* step 60\b"
RESUMED = r"differs? from the fault-free run|the resume by itself changes what is computed"
SAVED = r"second.restart|steps? (60|80|100|120)\b.*(weights|tensors|state|content|optimizer|is none)"
SLOWER = r"pace\.max_slowdown: .* slower"
BITS = r"differs? from the fault-free run: at step {}"


def _fails(bug: str, reason: str, rehearsal: str = "kill") -> Real:
    return Real(bug, rehearsal, Verdict.FAIL, reason)


def _on_docker(bug: str | None, rehearsal: str) -> Real:
    """The same row on Docker: the same reason must be found from outside of containers."""
    rows = [row for row in (*CONTROLS, *MUTANTS) if (row.bug, row.rehearsal) == (bug, rehearsal) and not row.everywhere]
    (row,) = rows
    return replace(row, backend="docker")


def _always(bug: str, reason: str, rehearsal: str, verdict: Verdict = Verdict.FAIL) -> Real:
    return Real(bug, rehearsal, verdict, reason, everywhere=True)


MUTANTS = [
    _fails("never_resumes", "resumed from step 0 and gave no reason, though a checkpoint of step [12]0"),
    _fails("restores_an_older_one", BITS.format(21)),
    _fails("one_rank_restores_an_older_one", "restored step 10, but went on with step 21|restored different steps"),
    _fails("loads_damaged_checkpoints", BITS.format(r"2\d"), "rot and kill"),
    _fails("trains_on_nan", "checkpoint that `rot` damaged, and kept what came of it", "NaN and kill"),
    _fails("ignores_spikes", "checkpoint that `rot` damaged, and kept what came of it", "huge numbers and kill"),
    _fails("dies_of_nan_for_ever", "^[0-9]+ restarts in a row without progress: .*; no fault", "NaN and kill"),
    _fails("takes_the_oldest_after_a_bad_one", PASSED_OVER.format(20), "rot and kill, drill"),
    _fails("passes_over_one_too_many", PASSED_OVER.format(40), "rot and kill, drill"),
    _fails("starts_anew_after_a_bad_one", PASSED_OVER.format(0), "rot and kill, drill"),
    _fails("takes_a_good_one_for_damaged", "checkpoint of step 60, which nothing had damaged", "rot and kill, drill"),
    _fails("saves_weights_in_half_precision", BITS.format(21)),
    _fails("optimizer_state_lost", BITS.format(22)),
    _fails("optimizer_counts_from_zero", BITS.format(22)),
    _fails("weight_decay_lost", BITS.format(22)),
    _fails("weight_decay_lost", RESUMED, "shrink and grow"),
    _fails("optimizer_state_lost", RESUMED, "shrink and grow"),
    _fails("ranks_share_their_shard", RESUMED, "shrink and grow"),
    _fails("half_of_the_weights_learns_slower", RESUMED, "shrink and grow"),
    _fails("gradients_no_longer_clipped", RESUMED, "shrink and grow"),
    _fails("learns_no_more", RESUMED, "shrink and grow"),
    _fails("weight_decay_lost", "the resume by itself changes what is computed", "shrink"),
    _fails("schedule_restarts", "learning rate " + BITS.format("[12]1")),
    _fails("random_state_lost", BITS.format(21), "kill, dropout"),
    _fails("replays_a_batch", "16 samples were repeated, first at step 21"),
    _fails(
        "skips_a_batch", "16 samples were skipped|consumed other samples than the fault-free run, first at step [12]1"
    ),
    _fails("cursor_one_off", "1 sample was skipped, first at step [12]1"),
    _fails("shuffles_differently", "consumed other samples than the fault-free run, first at step 21"),
    _fails("ranks_share_their_shard", BITS.format(21)),
    _fails("smaller_world_smaller_batch", "samples? (was|were) (repeated|skipped)|consumed other samples", "shrink"),
    _fails(
        "announces_before_durable",
        r"resumed from step \d+ and gave no reason, though .* step \d+|checkpoint of step \d+ is none: the trainer told",
        "kill after saving",
    ),
    _fails(
        "saves_in_place", r"the job failed at step [1-3]\d of 40: the command on node\d ended with", "kill while saving"
    ),
    _fails("checkpoint_thread_dies", r"checkpoint_success_min: 0\.0 % is less than 100\.0 %"),
    _fails("saves_a_stale_copy", SAVED, "kill, drill"),
    _fails("saves_the_step_before", SAVED, "kill, drill"),
    _fails("saves_zeros", SAVED, "kill, drill"),
    _fails("saves_no_optimizer", SAVED, "kill, drill"),
    _fails("saves_an_empty_optimizer", SAVED, "kill, drill"),
    _fails(
        "final_save_lacks_half_of_the_model", "the restore drill ended before it had restored anything", "kill, drill"
    ),
    _fails("saves_under_other_names", r"the job failed at step [45]\d of 120", "kill twice, drill"),
    _fails("saves_the_cursor_twice", "16 samples were skipped, first at step [24]1", "kill twice, drill"),
    _fails("makes_no_final_save", r"step 120\b", "kill, drill"),
    _fails("makes_no_save_but_the_final_one", r"step (40|60|80|100)\b", "kill, drill"),
    _fails("saves_every_third_time", r"step (60|80)\b|checkpoint", "kill, drill"),
    _fails("deletes_what_it_saves", r"step (40|60|80|100)\b", "kill, drill"),
    _fails("deletes_the_newest_at_the_end", r"step 120\b", "kill, drill"),
    _fails("deletes_all_at_the_end", "the restore drill started from scratch", "kill, drill"),
    _fails("saves_into_memory", r"step 120\b", "kill, drill"),
    _fails("saves_into_memory", r"step 120\b", "kill, no drill"),
    _fails("deletes_the_newest_at_the_end", r"step 120\b", "kill, no drill"),
    _fails("deletes_all_at_the_end", r"step 120\b", "kill, no drill"),
    _fails("keeps_the_pointer_of_the_first_life", r"step 20\b.* step 40\b", "kill twice, drill"),
    _fails("emergency_save_half_of_the_time", r"steps_rolled_back_max: \d+ is more than 0", "evict twice"),
    _fails("saves_after_the_notice", r"steps_rolled_back_max: \d+ is more than 0", "evict"),
    _fails("ignores_notices", r"steps_rolled_back_max: \d+ is more than 0", "evict"),
    _fails("hangs_on_a_dead_peer", "no step for 30 s", "kill, little patience"),
    _fails("hangs_on_a_dead_peer", "no step for 30 s", "reset"),
    _fails("counts_life_and_not_steps", "nobody in the job noticed `stuck` within 9.00 s", "stuck"),
    _fails("knows_no_sections", r"max_false_alarms: \d is more than 0", "pause"),
    _fails("believes_any_place", "no step for 30 s", "wrong rank"),
    _fails("waits_without_end", "did not give up by itself: no step for 30 s", "absent"),
    _fails("gives_up_without_a_word", "the job did not say '1 of 2 nodes'", "absent"),
    _fails("crashes_after_every_restart", r"the job failed at step 2\d of 40: the command on node\d ended with"),
    _fails("crashes_after_the_second_restart", r"the job failed at step [45]\d of 120", "kill twice, drill"),
    _fails("crashes_for_ever", "^[0-9]+ restarts in a row without progress: .*; no fault", "kill, little patience"),
    _fails("saves_no_more", r"max_restarts_without_progress: 2 restarts in a row .* than 20", "kill again and again"),
    _fails("takes_the_lemon_back", r"max_restarts_without_progress: [0-9]+ restarts in a row .* than 80", "lemon"),
    _fails("stalls_now_and_then", SLOWER, "kill, drill"),
    _fails("stalls_at_each_save", SLOWER, "kill, drill"),
    _fails("is_much_slower", SLOWER, "kill, drill"),
    _fails("gets_slower_and_slower", SLOWER, "kill, drill"),
    _fails("waits_for_its_saves", "no step for 20 s", "dead mount"),
    _fails("gradient_not_averaged", "ranks 0 and 1 disagree on the gradient norm"),
    _fails(
        "ignores_drifted_replicas",
        "at step 31 rank 1 computed with other weights than the majority, and the trainer did not say so",
        "drift",
    ),
    _fails("trains_on_without_a_shard", BITS.format(r"\d+"), "lost shard"),
    _fails(
        "compares_no_samples",
        r"at step 2\d rank 1 computed with 4 different samples.*the trainer did not say so",
        "skew",
    ),
    _fails("ends_out_of_memory", r"steps_rolled_back_max: \d+ is more than 0", "out of memory"),
    _fails("watches_the_first_gpu", "no diagnosis within 20 s of sick", "sick GPU"),
    _fails("ignores_xids", "no diagnosis within 20 s of sick", "sick GPU"),
    _fails("keeps_the_old_rate", "the learning rate is that of the configuration from before", "hot update"),
    _fails("never_resumes", "resumed from step 0 and gave no reason, though a checkpoint of step [12]0", "hot update"),
    _fails("replays_a_batch", "16 samples were repeated, first at step 21", "hot update"),
    _fails(
        "notices_the_first_drift_only", "with other weights than the majority, and the trainer did not", "drift again"
    ),
    _fails("gives_up_over_a_cuda_error", "the job failed at step 2", "CUDA error"),
    _fails("ignores_leaks", "the memory of rank 1 leaked until it ended, and the trainer did not say so", "leak"),
    _fails("drops_what_did_not_fit", BITS.format(r"2\d") + "|loss differs .*: in steps 2", "out of memory"),
    _fails("ignores_spikes", r"from step \d+ to step \d+ the loss .* usual, and the trainer did not say so", "spike"),
    _fails("goes_back_into_the_spike", "the trainer said so, and went on with these steps", "spike"),
    _fails("goes_back_and_leaves_nothing_out", r"it leaves out samples .*, but consumed some of them at step", "spike"),
    _fails("leaves_out_more_than_it_says", "16 samples were skipped, first at step", "spike"),
    _fails("leaves_out_without_a_word", "128 samples were skipped, first at step", "spike"),
    _fails("swallows_nan", "loss nan instead of"),
    _fails("lies_about_restore", "said it restored step 25, but went on with step 21"),
    _always("removes_all_before_it_saves", "the only checkpoint in the store was removed before", "kill, drill"),
    _always("saves_nothing_where_something_is", "step 80 is none: a fault had damaged what was", "rot and kill, drill"),
    _always("final_save_lacks_the_moments", "the restore drill loaded holds", "kill, drill", Verdict.INCONCLUSIVE),
    _always("deletes_the_newest_at_the_end", r"step 120\b", "kill, drill"),
    _always("passes_over_one_too_many", PASSED_OVER.format(40), "rot and kill, drill"),
    _fails("skips_the_recompute", "said it restored step 20, but went on with step 26"),
]
# On a slow disk, the checkpoint of step 20 is not yet committed when the rank is killed: these allow for it.
QUICK = ["schedule_restarts", "gradient_not_averaged"]  # run in every test session

VARIATIONS = ["stands_still_now_and_then", "slow_disk", "noisy_host", "warms_up"]
CONTROLS = [Real(None, name, Verdict.PASS, "") for name in REHEARSALS if name != "kill, little patience"]
CONTROLS += [Real(bug, name, Verdict.PASS, "") for bug in VARIATIONS for name in ("nothing", "kill", "evict twice")]

# The broken trainers that once passed, and what is healthy beside them.
ON_DOCKER = [
    *((None, name) for name in ("kill, drill", "rot and kill, drill", "shrink and grow")),
    ("takes_the_oldest_after_a_bad_one", "rot and kill, drill"),
    *((bug, "kill, drill") for bug in ("saves_a_stale_copy", "saves_an_empty_optimizer", "makes_no_final_save")),
    *((bug, "kill, drill") for bug in ("deletes_what_it_saves", "deletes_all_at_the_end", "stalls_now_and_then")),
    ("weight_decay_lost", "shrink and grow"),
]
CONTROLS += [_on_docker(*each) for each in ON_DOCKER if each[0] is None]
MUTANTS += [_on_docker(*each) for each in ON_DOCKER if each[0] is not None]

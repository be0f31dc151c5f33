"""Write the page on the methods that train the network, from the registry, tests and records.

    python docs/scripts/reproducibility.py

Writes ``docs/generated/learners.md``: for each learner the tests of what must hold, and its results
in ``docs/records`` beside the figures of the paper. A test compares the page with its sources.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from fecam import learners  # noqa: E402
from fecam.bench import spec  # noqa: E402
from fecam.bench.metrics import summarize  # noqa: E402
from fecam.learners import Entry  # noqa: E402
from records import RECORDS, read_records, task_records  # noqa: E402
from reporting import markdown  # noqa: E402

PAGE = ROOT / "docs" / "generated" / "learners.md"
TESTS = ROOT / "tests" / "learners"
GAP = "\N{EN DASH}"

EVERY_LEARNER = (
    "test_contract.test_one_task_is_plain_training",
    "test_contract.test_images_of_old_tasks_are_never_read_again",
    "test_contract.test_a_saved_state_goes_on_bit_by_bit",
    "test_contract.test_a_task_resumes_after_an_epoch",
    "test_contract.test_predictions_depend_neither_on_order_nor_on_the_batch",
)
FROZEN = (
    "test_few_shot.test_later_tasks_change_neither_the_network_nor_old_prototypes",
    "test_few_shot.test_neither_the_order_of_new_classes_nor_their_grouping_matters",
)
"""Of learners that train in the first task only."""
ATTENTION = (
    "test_few_shot.test_prototypes_may_come_in_any_order_and_each_query_has_its_own",
    "test_few_shot.test_a_block_without_output_only_normalizes_its_tokens",
    "test_few_shot.test_the_first_stage_is_that_of_d_cosine",
    "test_few_shot.test_the_second_stage_trains_the_network_and_the_block",
    "test_few_shot.test_an_episode_has_disjoint_images_of_its_classes",
)
"""Of learners with attention over prototypes."""
INVARIANTS = {
    "ft": (
        "test_methods.test_fine_tuning_equals_a_plain_loop",
        "test_methods.test_growing_the_classifier_leaves_old_logits_and_excluded_rows_unchanged",
    ),
    "ft-frozen": ("test_methods.test_the_frozen_network_does_not_change",),
    "joint": (
        "test_methods.test_joint_training_from_scratch_is_training_on_the_whole_data_set",
        "test_methods.test_a_warm_start_goes_on_from_the_weights_by_the_plan_of_later_tasks",
    ),
    "ewc": (
        "test_methods.test_ewc_without_a_penalty_is_fine_tuning",
        "test_methods.test_a_strong_penalty_holds_important_weights",
        "test_methods.test_the_fisher_information_of_logistic_regression",
        "test_methods.test_the_fisher_information_is_of_single_images_and_changes_nothing",
        "test_methods.test_squared_mean_gradients_are_the_fisher_information_divided_by_the_batch",
    ),
    "lwf": (
        "test_methods.test_lwf_without_distillation_is_fine_tuning",
        "test_methods.test_distillation_starts_at_the_entropy_of_the_teacher_without_a_gradient",
        "test_methods.test_distillation_preserves_the_old_outputs",
        "test_methods.test_the_old_network_sees_the_same_images_once_per_step",
    ),
    "lwf-mc": (
        "test_methods.test_distillation_of_sigmoids_is_literal",
        "test_prototype_methods.test_the_classifier_is_linear_whatever_the_recipe_says",
    ),
    "muc": (
        "test_sdc_muc_l2p.test_losses_of_muc_have_the_weights_of_the_task",
        "test_sdc_muc_l2p.test_side_classifiers_agree_about_the_task_and_not_about_other_images",
        "test_sdc_muc_l2p.test_the_discrepancy_is_the_sum_over_pairs",
    ),
    "sdc": (
        "test_drift.test_the_drift_equals_its_formula",
        "test_drift.test_a_common_shift_moves_every_mean_by_it",
        "test_drift.test_the_ends_are_the_mean_drift_and_that_of_the_nearest_sample",
        "test_sdc_muc_l2p.test_a_network_that_stays_is_a_nearest_mean_classifier",
        "test_sdc_muc_l2p.test_a_nearest_mean_head_predicts_as_the_method",
        "test_sdc_muc_l2p.test_the_triplet_loss_is_the_mean_over_all_triplets",
    ),
    "pass": (
        "test_prototype_methods.test_the_losses_of_pass_equal_their_formulas",
        "test_prototype_methods.test_replay_reaches_the_classifier_only",
        "test_prototype_methods.test_pass_without_a_radius_replays_means_as_ssre_does",
        "test_prototype_methods.test_pass_trains_four_rotations_and_predicts_with_every_fourth_output",
        "test_mechanisms.test_four_rotations_are_none_and_predictions_have_one_column_per_class",
    ),
    "il2a": (
        "test_prototype_methods.test_each_class_keeps_its_own_covariance_over_three_tasks",
        "test_prototype_methods."
        "test_without_covariances_il2a_replays_means_and_with_them_the_loss_is_larger",
        "test_mechanisms.test_implicit_augmentation_equals_its_formula",
        "test_mechanisms.test_implicit_augmentation_bounds_the_loss_of_samples",
        "test_mechanisms.test_pairs_have_a_symmetric_bijection",
    ),
    "ssre": (
        "test_adapters.test_new_adapters_and_folding_do_not_change_the_outputs",
        "test_adapters.test_a_folded_normalization_does_not_change_the_outputs",
        "test_adapters.test_only_adapters_get_gradients",
        "test_prototype_methods.test_the_losses_of_ssre_weight_samples_by_their_similarity",
    ),
    "replay": (
        "test_exemplars.test_replay_without_a_memory_is_fine_tuning",
        "test_exemplars.test_half_of_each_batch_are_exemplars",
    ),
    "icarl": (
        "test_exemplars.test_exemplars_are_trained_towards_the_old_outputs_not_their_labels",
        "test_exemplars.test_with_all_images_the_nearest_mean_of_exemplars_is_that_of_the_class",
        "test_exemplars.test_means_of_old_classes_follow_the_network",
        "test_exemplars.test_without_distillation_the_training_is_replay",
    ),
    "wa": (
        "test_exemplars.test_alignment_equalizes_norms_once_and_keeps_the_order_within_groups",
        "test_exemplars.test_wa_aligns_after_later_tasks_and_records_the_factor",
        "test_exemplars.test_without_distillation_the_training_is_replay",
    ),
    "bic": (
        "test_exemplars.test_the_bias_is_that_of_the_logits",
        "test_exemplars.test_two_optimizers_agree_on_the_convex_fit",
        "test_exemplars.test_bic_corrects_the_last_group_or_a_chain",
        "test_exemplars."
        "test_the_second_phase_of_bic_changes_no_weight_and_uses_images_that_were_not_trained_on",
    ),
    "der": (
        "test_exemplars.test_old_branches_do_not_change_and_old_outputs_start_where_they_were",
        "test_exemplars."
        "test_balanced_fine_tuning_sees_each_class_equally_often_and_changes_the_classifier_only",
        "test_exemplars.test_numbers_of_weights_at_full_width_after_six_tasks",
    ),
    "memo": (
        "test_exemplars.test_old_branches_do_not_change_and_old_outputs_start_where_they_were",
        "test_exemplars.test_shared_stages_are_trained_only_if_that_is_the_option",
        "test_exemplars.test_numbers_of_weights_at_full_width_after_six_tasks",
    ),
    "podnet": (
        "test_exemplars."
        "test_pooled_distillation_is_zero_for_equal_maps_whatever_their_sign_and_scale",
        "test_exemplars.test_the_nca_loss_is_literal_and_only_that_of_the_paper_has_a_margin",
        "test_exemplars.test_one_proxy_per_class_is_the_cosine_classifier",
        "test_exemplars.test_old_proxies_are_fixed_until_the_second_phase",
    ),
    "foster": (
        "test_exemplars.test_weights_of_classes_are_larger_for_rarer_ones",
        "test_exemplars.test_balanced_distillation_without_weights_is_distillation",
        "test_exemplars.test_foster_boosts_beside_the_frozen_network_and_leaves_one_network",
    ),
    "coil": (
        "test_exemplars.test_the_transport_plan_has_uniform_marginals_and_the_least_cost",
        "test_exemplars.test_transport_between_the_same_classes_copies_the_rows",
        "test_exemplars.test_new_rows_of_coil_start_as_transported_old_ones",
    ),
    "l2p": (
        "test_sdc_muc_l2p.test_l2p_trains_prompts_and_not_the_transformer",
        "test_prompts.test_features_are_those_of_the_formula",
        "test_prompts.test_prompts_per_sample_do_not_depend_on_the_batch",
    ),
    "lwf-sdc": (
        "test_drift.test_the_drift_equals_its_formula",
        "test_drift.test_a_common_shift_moves_every_mean_by_it",
        "test_moving.test_means_stay_if_the_network_does",
        "test_moving.test_methods_that_train_alike_have_the_same_weights_and_share_checkpoints",
    ),
    "ldc": (
        "test_moving.test_a_linear_drift_moves_means_and_covariances_exactly",
        "test_moving.test_means_stay_if_the_network_does",
        "test_moving.test_methods_that_train_alike_have_the_same_weights_and_share_checkpoints",
        "test_moving.test_a_nearest_mean_head_has_the_means_of_the_method",
    ),
    "adc": (
        "test_moving.test_images_move_along_the_gradient",
        "test_moving.test_more_images_are_taken_for_the_class_after_more_steps",
        "test_moving.test_without_steps_means_follow_their_nearest_images",
        "test_moving.test_means_stay_if_the_network_does",
    ),
    "dpcr": (
        "test_moving.test_the_ridge_classifier_is_that_of_all_samples_in_any_order_of_classes",
        "test_moving.test_dpcr_predicts_as_a_ridge_regression_if_the_network_stays",
        "test_moving.test_a_linear_drift_moves_means_and_covariances_exactly",
        "test_moving.test_directions_that_are_noise_are_not_directions_of_a_class",
    ),
    "efc": (
        "test_moving.test_the_metric_is_the_information_of_the_outputs",
        "test_moving.test_in_the_identity_the_metric_distance_is_the_squared_distance",
        "test_moving.test_weights_ignore_directions_that_the_metric_does_not_see",
        "test_moving.test_efc_plus_plus_replays_afterwards",
    ),
    "adagauss": (
        "test_moving.test_statistics_through_the_identity_are_those_of_the_samples",
        "test_moving.test_the_loss_against_collapse_is_lowest_at_a_covariance_of_one_or_more",
        "test_moving.test_a_batch_must_have_more_images_than_features",
    ),
    "fecam-moving": (
        "test_moving.test_a_linear_drift_moves_the_statistics_of_fecam_exactly",
        "test_moving.test_statistics_of_fecam_stay_if_the_network_does",
        "test_moving.test_features_of_the_first_network_stay_beside_those_of_the_current_one",
        "test_moving.test_methods_that_train_alike_have_the_same_weights_and_share_checkpoints",
    ),
    "finetune": (
        "test_few_shot.test_finetune_trains_small_new_rows_with_all_outputs_on_the_session_alone",
        "test_few_shot.test_the_first_task_of_finetune_is_that_of_ft_with_a_linear_classifier",
        "test_few_shot.test_finetune_forgets_the_classes_of_the_first_task",
    ),
    "d-cosine": (
        *FROZEN,
        "test_few_shot.test_a_nearest_mean_head_by_cosine_predicts_as_the_method",
        "test_few_shot.test_the_scale_is_not_trained",
    ),
    "topic": (
        "test_few_shot.test_topic_without_its_losses_is_finetune_to_the_bit",
        "test_few_shot.test_anchors_are_kept_as_images_and_hold_their_features",
        "test_few_shot.test_losses_of_anchors_equal_literal_ones",
    ),
    "cec": (
        *FROZEN,
        *ATTENTION,
        "test_few_shot.test_turned_images_are_classes_of_their_own",
        "test_few_shot.test_four_quarters_are_a_whole_turn_and_each_class_has_its_own",
    ),
    "limit": (
        *FROZEN,
        *ATTENTION,
        "test_few_shot.test_fake_new_classes_of_limit_replace_rows_of_the_classifier",
    ),
    "metafscil": (
        "test_few_shot.test_fast_weights_are_those_of_plain_training_and_the_original_stays",
        "test_few_shot.test_a_session_of_metafscil_trains_new_rows_first",
        "test_few_shot.test_sequences_change_the_network_only",
    ),
    "data-free-replay": (
        "test_few_shot.test_the_first_stage_is_that_of_d_cosine",
        "test_few_shot.test_generated_images_have_mean_0_and_deviation_1",
        "test_few_shot.test_without_generated_images_the_last_stage_is_trained_alone",
        "test_few_shot.test_what_is_old_learns_slowly_and_early_stages_not_at_all",
    ),
    "alice": (
        *FROZEN,
        "test_few_shot.test_the_margin_lowers_the_logit_of_the_class",
        "test_few_shot.test_views_of_an_image_are_mixed_alike",
        "test_few_shot.test_alice_drops_its_projector_and_averages_the_images_nearest_to_the_mean",
        "test_mechanisms.test_pairs_have_a_symmetric_bijection",
    ),
    "closer": (
        *FROZEN,
        "test_few_shot.test_losses_between_views_equal_literal_ones",
        "test_few_shot.test_closer_without_its_losses_and_with_equal_views_is_d_cosine",
        "test_few_shot.test_a_nearest_mean_head_by_cosine_predicts_as_the_method",
    ),
    "fact": (
        *FROZEN,
        "test_few_shot.test_losses_of_virtual_prototypes_equal_literal_ones",
        "test_few_shot.test_scores_by_way_of_virtual_prototypes_equal_literal_ones",
        "test_few_shot.test_maps_of_different_classes_are_mixed_with_one_share",
        "test_few_shot.test_fact_without_a_share_of_virtual_prototypes_predicts_nearest_means",
        "test_few_shot."
        "test_fact_trains_the_virtual_rows_and_not_the_frozen_copy_and_records_both_losses",
    ),
    "savc": (
        *FROZEN,
        "test_few_shot.test_savc_with_one_transform_is_d_cosine_to_the_bit",
        "test_few_shot.test_labels_of_transforms_can_be_inverted_and_the_first_is_the_image",
        "test_few_shot.test_savc_predicts_the_mean_over_transforms",
        "test_few_shot.test_the_contrastive_loss_is_literal_and_ignores_empty_places",
        "test_few_shot.test_the_queue_is_a_ring_and_the_copy_is_slow",
        "test_few_shot.test_a_crop_of_the_whole_image_is_the_image",
    ),
    "nc-fscil": (
        "test_few_shot.test_vertices_have_unit_length_equal_angles_and_sum_to_zero",
        "test_few_shot.test_dot_regression_is_zero_only_at_the_vertices",
        "test_few_shot.test_the_loss_of_nc_fscil_is_over_images_and_earlier_means",
        "test_few_shot.test_nc_fscil_trains_the_neck_alone_in_later_tasks_and_never_the_vertices",
    ),
}
"""The tests of what must hold, as file.function in ``tests/learners``."""


def missing_tests() -> list[str]:
    """Return the named tests that do not exist, and the learners without any."""
    defined = {
        f"{path.stem}.{node.name}"
        for path in TESTS.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    named = {*EVERY_LEARNER, *(test for tests in INVARIANTS.values() for test in tests)}
    untested = {entry.name for entry in learners.available()} - INVARIANTS.keys()
    return sorted((named - defined) | untested)


def page(records: Path = RECORDS) -> str:
    """Return the page."""
    contents = [
        content
        for folder in sorted(records.glob("*"))
        for content in read_records(folder)
        if content["learner"] is not None
    ]
    parts = [
        "For all of them, tests verify that one task is plain training (or the method's own first "
        "task), that images of earlier tasks are never read again, except for exemplars, that a "
        "stopped task resumes to the same bits, and that predictions do not depend on order and "
        "batch: "
        f"{_tests(EVERY_LEARNER)}.",
        *(_method(entry, contents) for entry in learners.available()),
        "### Experiments without records",
        _not_run(records),
    ]
    return "\n\n".join(parts) + "\n"


def _method(entry: Entry, contents: list[dict[str, Any]]) -> str:
    rows = [_row(content) for content in contents if content["learner"] == entry.name]
    header = [
        "experiment", "row", "seeds", "average %", "paper", "difference", "last %", "paper",
        "difference", "old %", "new %", "weights", "measured at",
    ]  # fmt: skip
    table = markdown(header, rows) if rows else "No record: it was not run here."
    return "\n\n".join(
        [
            f"### `{entry.name}`",
            f"{entry.description[0].upper()}{entry.description[1:]}. Source: {entry.source}. "
            f"Keeps {entry.keeps}.",
            f"Verified: {entry.verified}. {_tests(INVARIANTS[entry.name])}.",
            table,
        ]
    )


def _tests(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _row(content: dict[str, Any]) -> list[str]:
    """Return the row of a method in an experiment."""
    (row,) = summarize(task_records(content))
    paper = spec.load(content["experiment"]).paper.get("figures", {}).get(content["head"], {})
    compared = [text for name in ("average", "last") for text in _compared(row[name], paper, name)]
    others = [_percent(row[name]) for name in ("old", "new")]
    return [
        f"`{content['experiment']}`", content["head"], str(row["seeds"]), *compared, *others,
        f"{row['parameters']['mean']:,.0f}", _measured(content),
    ]  # fmt: skip


def _compared(ours: dict[str, Any], paper: dict[str, float], name: str) -> list[str]:
    if name not in paper:
        return [_percent(ours), GAP, GAP]
    difference = 100 * ours["mean"] - paper[name]
    return [_percent(ours), f"{paper[name]:.1f}", f"{difference:+.1f}"]


def _percent(value: dict[str, Any] | None) -> str:
    if value is None:
        return GAP
    spread = "" if value["std"] is None else f" ± {100 * value['std']:.1f}"
    return f"{100 * value['mean']:.1f}{spread}"


def _measured(content: dict[str, Any]) -> str:
    git = content["git"] or {}
    commit = (git.get("commit") or GAP)[:7] + ("*" if git.get("dirty") else "")
    return f"{commit}, {content['started'][:10]}"


def _not_run(records: Path) -> str:
    names = [
        name
        for name in spec.available()
        if spec.load(name).learners and not any((records / name).glob("*.json"))
    ]
    listed = ", ".join(f"`{name}`" for name in names) or "none"
    return f"Their figures of the paper are in the files, and were not compared here: {listed}."


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Faults that somebody could make and that give plausible wrong numbers, and who finds them.

Their tests are those of the everyday loop: none is marked slow.
"""

from tests.mutations.planting import Fault

LOSSES = (
    Fault(
        "rows without a positive count in the mean of the softmax",
        "big_align/losses/contrastive.py",
        "positives.squeeze(axis) > 0",
        "positives.squeeze(axis) >= 0",
        ["tests/losses/test_contrastive.py::test_mask_equals_slicing"],
    ),
    Fault(
        "a masked image with a label counts in cross-entropy",
        "big_align/losses/classification.py",
        "return mask & (label >= 0)",
        "return (label >= 0)",
        ["tests/losses/test_classification.py::test_equals_optax_on_the_labeled_rows_alone"],
    ),
    Fault(
        "a row is its own candidate in supervised contrast",
        "big_align/losses/supervised_contrastive.py",
        " & (rows.number[:, None] != others.number)",
        "",
        ["tests/losses/test_supervised_contrastive.py::test_by_hand"],
    ),
    Fault(
        "the bias of the sigmoid loss has the sign of the paper's formula",
        "big_align/losses/sigmoid.py",
        "logits += jnp.asarray(bias",
        "logits -= jnp.asarray(bias",
        ["tests/losses/test_sigmoid.py::test_by_hand"],
    ),
    Fault(
        "the gradient of the temperature is summed over the devices twice",
        "big_align/losses/blockwise_contrastive.py",
        "blocks.shards.sum(scale_grad.sum())",
        "blocks.shards.sum(blocks.shards.sum(scale_grad.sum()))",
        ["tests/losses/test_blockwise_contrastive.py::test_equals_the_plain_formula"],
    ),
    Fault(
        "sums of the devices are added without bringing them to one peak",
        "big_align/losses/blockwise_contrastive.py",
        "blocks.shards.sum(total * jnp.exp(peak - top))",
        "blocks.shards.sum(total)",
        ["tests/losses/test_blockwise_contrastive.py::test_equals_the_plain_formula"],
    ),
    Fault(
        "a target from texts to images is divided by the texts of its label",
        "big_align/losses/targets.py",
        "divide(column_fraction, images[labels.row])",
        "divide(column_fraction, texts[labels.row])",
        ["tests/losses/test_blockwise_contrastive.py::test_equals_the_plain_formula"],
    ),
    Fault(
        "the margin is taken from the angle of a positive",
        "big_align/losses/cluster_discrimination.py",
        "math.cos(margin) - jnp.sqrt(square)",
        "math.cos(margin) + jnp.sqrt(square)",
        [
            "tests/losses/test_cluster_discrimination.py"
            "::test_margin_is_added_to_the_angle_and_falls_everywhere"
        ],
    ),
    Fault(
        "a positive center is a negative of its own image",
        "big_align/losses/sampled_cluster_discrimination.py",
        'negatives = negatives.at[own].set(-jnp.inf, mode="drop")',
        "",
        [
            "tests/losses/test_negative_sampling.py"
            "::test_bfloat16_embeddings_on_eight_devices_equal_a_loop_over_images"
        ],
    ),
    Fault(
        "the gradient of a center leaves the sphere",
        "big_align/losses/sampled_cluster_discrimination.py",
        "(grad - along * directions)",
        "grad",
        [
            "tests/losses/test_negative_sampling.py"
            "::test_bfloat16_embeddings_on_eight_devices_equal_a_loop_over_images"
        ],
    ),
    Fault(
        "the margin of the focal loss favors given tags",
        "big_align/losses/tag_recognition.py",
        "given, margin - logits",
        "given, -margin - logits",
        ["tests/losses/test_tag_recognition.py::test_by_hand"],
    ),
)

OBJECTIVES = (
    Fault(
        "groups without a real row count in the mean",
        "big_align/objectives/parts/contrast.py",
        'jnp.maximum(rows["image_mask"].any(axis=0).sum(), 1)',
        "self._groups",
        [
            "tests/objectives/test_align.py"
            "::test_a_group_without_a_real_row_takes_no_part_in_the_mean"
        ],
    ),
    Fault(
        "pairs have the numbers of classes",
        "big_align/objectives/parts/contrast.py",
        "-1 - jnp.arange(",
        "jnp.arange(",
        ["tests/objectives/test_unicl.py::test_a_pair_has_a_label_that_no_other_row_has"],
    ),
    Fault(
        "class texts are queries beside captions",
        "big_align/objectives/iclip.py",
        'self.direction == "all"),',
        'self.direction != "image_to_text"),',
        ["tests/objectives/test_iclip.py::test_equals_the_formula_one_example_at_a_time"],
    ),
    Fault(
        "the means that a gate takes give elements no gradient",
        "big_align/models/parts/batch_norm.py",
        "added = added / count",
        "added = 0 * added / count",
        [
            "tests/models/test_batch_norm.py"
            "::test_it_is_the_plain_formula_in_value_and_every_gradient"
        ],
    ),
    Fault(
        "the mean of two tasks is over both where a batch has one",
        "big_align/objectives/multitask.py",
        "/ jnp.maximum(tasks, 1)",
        "/ 2",
        ["tests/objectives/test_multitask.py::test_a_batch_of_one_kind_has_the_loss_of_that_kind"],
    ),
    Fault(
        "a mixed image keeps its own text where its partner counts",
        "big_align/objectives/parts/mixing.py",
        'if k == "ztxt"}',
        'if k == "text"}',
        ["tests/objectives/test_mixing.py::test_unicl_is_that_of_soft_targets_in_both_directions"],
    ),
    Fault(
        "the fraction of a clipped box is that of a whole one",
        "big_align/objectives/parts/mixing.py",
        "jnp.where(cuts, outside.mean(), fraction)",
        "fraction",
        ["tests/objectives/test_mixing.py::test_cutmix_takes_a_box_whose_pixels_are_its_fraction"],
    ),
    Fault(
        "eq. 6 of IDEA is a cross-entropy, without the entropy of its targets",
        "big_align/objectives/idea.py",
        "image_to_text - entropy, text_to_image",
        "image_to_text, text_to_image",
        ["tests/objectives/test_idea.py::test_eq_6_is_that_of_numpy"],
    ),
    Fault(
        "the bound of CLIP's scale is on the wrong side",
        "big_align/objectives/parts/temperature.py",
        'jnp.minimum(params["log_scale"], self._maximum)',
        'jnp.maximum(params["log_scale"], self._maximum)',
        ["tests/objectives/test_align.py::test_the_scale_of_clip_is_bounded_from_above"],
    ),
)

TOWERS = (
    Fault(
        "patches that are kept get the positions of their neighbors",
        "big_align/models/vit.py",
        "kept = jnp.pad(kept + 1, ((0, 0), (1, 0)))",
        "kept = jnp.pad(kept, ((0, 0), (1, 0)))",
        [
            "tests/models/test_kept_patches.py"
            "::test_what_is_kept_is_a_plain_pass_over_those_patches_alone"
        ],
    ),
    Fault(
        "micro-batches draw the patches that they keep by themselves",
        "big_align/objectives/parts/encoders.py",
        'if "key" in batch else {}',
        'if "row key" in batch else {}',
        [
            "tests/objectives/test_masked_training.py"
            "::test_every_objective_learns_from_half_of_the_patches"
        ],
    ),
    Fault(
        "the gradient enters a locked tower",
        "big_align/models/dual_encoder.py",
        "return jax.lax.stop_gradient(outputs) if part in self.locked else outputs",
        "return outputs",
        [
            "tests/models/test_dual_encoder.py"
            "::test_a_locked_tower_is_in_evaluation_mode_and_gets_no_gradient"
        ],
    ),
    Fault(
        "a locked tower is in training mode",
        "big_align/models/dual_encoder.py",
        "train and part not in self.locked",
        "train",
        [
            "tests/models/test_dual_encoder.py"
            "::test_a_locked_tower_is_in_evaluation_mode_and_gets_no_gradient"
        ],
    ),
)

PLACEMENT = (
    Fault(
        "a batch is placed one row further",
        "big_align/parallel/batches.py",
        "return array[first : first + high - low]",
        "return array[np.arange(first + 1, first + 1 + high - low) % len(array)]",
        [
            "tests/parallel/devices/test_meshes.py"
            "::test_a_batch_lies_as_it_was_loaded_whatever_the_order_of_devices"
        ],
    ),
    Fault(
        "the rows of a process are taken for neighbors when they are placed",
        "big_align/parallel/batches.py",
        "first = np.searchsorted(rows, low)",
        "first = low % len(array)",
        [
            "tests/parallel/devices/test_meshes.py::test_what_every_process_has_loaded_lies_where_it_belongs"
        ],
    ),
    Fault(
        "the rows of a process are taken for neighbors when they are loaded",
        "big_align/parallel/batches.py",
        "(mine[:, None] * rows + np.arange(rows))",
        "(mine[0] * rows + np.arange(len(mine) * rows))",
        [
            "tests/parallel/devices/test_meshes.py::test_what_every_process_has_loaded_lies_where_it_belongs"
        ],
    ),
    Fault(
        "outputs of micro-batches are not brought back to the order of the batch",
        "big_align/training/step.py",
        "x = x.reshape(x.shape[0], mesh.size, -1, *x.shape[2:]).swapaxes(0, 1)",
        "x = x.reshape(x.shape[0], mesh.size, -1, *x.shape[2:])",
        ["tests/training/test_step_by_hand.py::test_every_row_keeps_its_place_in_the_batch"],
    ),
    Fault(
        "moments of split parameters are whole on every device",
        "big_align/parallel/logical_axes.py",
        "spec if leaf.shape == shape else PartitionSpec()",
        'spec if path[0] == jax.tree_util.GetAttrKey("params") else PartitionSpec()',
        ["tests/training/test_state.py::test_moments_and_averages_lie_as_their_parameters_do"],
    ),
)

LOADER = (
    Fault(
        "a window is shuffled alike in every epoch",
        "big_align/data/loading/shuffle.py",
        "self._seed, 1, epoch, window)",
        "self._seed, 1, window)",
        ["tests/data/test_shuffle.py::test_epochs_and_seeds_differ"],
    ),
    Fault(
        "a run goes on one batch further than it stopped",
        "big_align/data/loading/loader.py",
        "range(start_step, ",
        "range(start_step + 1, ",
        ["tests/data/test_loader.py::test_iterate_yields_the_batches_of_its_steps"],
    ),
    Fault(
        "an image is augmented alike in every epoch",
        "big_align/data/loading/stream.py",
        "return location, draw(location, PositionRandom(self._seed, position))",
        "return location, draw(location, PositionRandom(self._seed, location[1]))",
        ["tests/data/test_loader.py::test_every_visit_draws_caption_and_augmentation_anew"],
    ),
    Fault(
        "parts of a mixture with the same examples have them in the same order",
        "big_align/data/loading/mixture.py",
        "return (seed << 32) + zlib.crc32(name.encode())",
        "return seed << 32",
        [
            "tests/data/test_mixture.py::test_parts_of_the_same_examples_have_them_in_different_order"
        ],
    ),
    Fault(
        "labels of the second part of a mixture begin at 0 again",
        "big_align/data/loading/text_samplers.py",
        "return texts, label + self._label_offset",
        "return texts, label",
        ["tests/runs/test_train_loader.py::test_labels_count_on_from_list_to_list"],
    ),
    Fault(
        "a caption that an image lacks is a text of its own",
        "big_align/data/loading/text_samplers.py",
        "text_mask[np.array(missing, bool)] = False",
        "",
        [
            "tests/data/test_text_samplers.py"
            "::test_several_captions_of_an_image_are_different_and_missing_ones_are_masked"
        ],
    ),
    Fault(
        "the last batch of an evaluation is dropped unless it is full",
        "big_align/data/loading/evaluation_loader.py",
        "range(0, len(part), self._batch_size)",
        "range(0, len(part) - self._batch_size + 1, self._batch_size)",
        [
            "tests/data/test_evaluation_loader.py"
            "::test_evaluation_counts_every_example_once_in_order"
        ],
    ),
)

EVALUATORS = (
    Fault(
        "a wrong caption that ties with the right one ranks behind it",
        "big_align/evaluators/retrieval.py",
        "(reaches(similarity, best) & ~right)",
        "((similarity > best) & ~right)",
        ["tests/evaluators/test_evaluators.py::test_collapsed_embeddings_score_nothing"],
    ),
    Fault(
        "recall at k counts k + 1",
        "big_align/evaluators/retrieval.py",
        "np.mean(ranks < k)",
        "np.mean(ranks <= k)",
        ["tests/evaluators/test_evaluators.py::test_recall_counts_the_first_k"],
    ),
    Fault(
        "the mean of a class's texts keeps its length",
        "big_align/evaluators/zero_shot.py",
        "return mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)",
        "return mean",
        [
            "tests/evaluators/test_evaluators.py"
            "::test_classes_are_averaged_after_normalization_and_normalized_again"
        ],
    ),
    Fault(
        "an image is its own nearest neighbor",
        "big_align/evaluators/knn.py",
        "usable = right & (own[:, None] != jnp.arange(len(label)))",
        "usable = right",
        ["tests/evaluators/test_knn.py::test_without_a_training_set_no_image_is_its_own_neighbor"],
    ),
    Fault(
        "tags that no image has count in the mean over tags",
        "big_align/evaluators/tag_scores.py",
        "np.maximum(chosen, 1))[some].sum(), some.sum())",
        "np.maximum(chosen, 1)).sum(), len(some))",
        ["tests/evaluators/test_tag_scores.py::test_precision_recall_and_f1_by_hand"],
    ),
    Fault(
        "embeddings of texts come in the order of their lengths",
        "big_align/evaluators/embedder.py",
        "embeddings[order] = values",
        "embeddings[:] = values",
        ["tests/evaluators/test_embedder.py::test_texts_of_like_length_are_embedded_together"],
    ),
)

TRAINING = (
    Fault(
        "every step draws the same",
        "big_align/training/step.py",
        "jax.random.fold_in(state.rng, state.step + steps_before)",
        "state.rng",
        [
            "tests/training/test_step_by_hand.py"
            "::test_every_step_draws_anew_and_the_key_of_the_run_stays"
        ],
    ),
    Fault(
        "the average takes the parameters before the update",
        "big_align/training/step.py",
        "update_average(average, (params, model_state)",
        "update_average(average, (state.params, model_state)",
        ["tests/training/test_step_by_hand.py::test_the_average_is_of_what_the_step_has_made"],
    ),
    Fault(
        "with micro-batches, what a step prepares gets no gradient",
        "big_align/training/step.py",
        "grads = jax.tree.map(jnp.add, grads, pull_prepared(prepared_grads)[0])",
        "",
        ["tests/training/test_step_by_hand.py::test_loss_update_norms_and_statistics"],
    ),
    Fault(
        "the second pass of a micro-batch draws another dropout than the first",
        "big_align/training/step.py",
        "grads, (rows, rngs, cotangents))",
        "grads, (rows, jax.random.split(rng, microbatches), cotangents))",
        [
            "tests/training/test_step_by_hand.py"
            "::test_both_passes_of_a_step_draw_the_same_and_every_step_anew"
        ],
    ),
    Fault(
        "rows of tables move at the rate of the next step",
        "big_align/training/step.py",
        "learning_rate(state.step)",
        "learning_rate(state.step + 1)",
        [
            "tests/training/test_step_by_hand.py"
            "::test_every_step_draws_rows_anew_and_moves_them_at_its_rate"
        ],
    ),
    Fault(
        "biases and scales of norms decay",
        "big_align/training/optimizers.py",
        "return is_table and not",
        "return not",
        ["tests/training/test_optimizers.py::test_decay_mask"],
    ),
    Fault(
        "the update is clipped instead of the gradient",
        "big_align/training/optimizers.py",
        "optax.chain(clip, *parts,",
        "optax.chain(*parts, clip,",
        ["tests/training/test_optimizers.py::test_clip_is_of_the_gradient_and_not_of_the_update"],
    ),
    Fault(
        "an error that should be low is kept where it is high",
        "big_align/training/saving/retention.py",
        "self._sign = -1 if",
        "self._sign = 1 if",
        ["tests/training/saving/test_retention.py::test_the_best_stays_beside_the_last"],
    ),
    Fault(
        "the learning rate that is logged is that of the next step",
        "big_align/training/loop.py",
        "self.learning_rate(step - 1)",
        "self.learning_rate(step)",
        ["tests/training/test_loop.py::test_the_learning_rate_that_is_logged_is_that_of_the_step"],
    ),
    Fault(
        "the first step after a rewind uses the data of the jump again",
        "big_align/training/health/rewinds.py",
        "if each.checkpoint <= step)",
        "if each.checkpoint < step)",
        [
            "tests/training/health/test_health.py"
            "::test_a_run_that_continues_from_before_its_rewinds_leaves_the_same_data_out"
        ],
    ),
    Fault(
        "a lease goes to everybody who asks",
        "big_align/core/whole_files.py",
        "os.link(partial, path)",
        "os.replace(partial, path)",
        ["tests/data/shared/test_leases.py::test_of_many_that_take_a_lease_one_gets_it"],
    ),
    Fault(
        "an owner is lost when it was not seen to renew its lease at once",
        "big_align/data/shared/leases.py",
        "now - seen.since >= owner.seconds",
        "now - seen.since >= 0",
        ["tests/data/shared/test_leases.py::test_an_owner_that_gives_no_sign_for_its_term_is_lost"],
    ),
    Fault(
        "a unit that another process has just finished is done again",
        "big_align/data/shared/shared_work.py",
        "if self.is_finished(unit):",
        "if False:",
        [
            "tests/data/shared/test_shared_work.py"
            "::test_what_another_has_finished_since_the_last_look_is_not_taken"
        ],
    ),
)

FAULTS = LOSSES + OBJECTIVES + TOWERS + PLACEMENT + LOADER + EVALUATORS + TRAINING

"""Exemplars, and the methods that keep them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners import make
from fecam.learners.exemplars.exemplar_learner import ExemplarLearner, is_new
from fecam.learners.exemplars.foster import FOSTER
from fecam.learners.mechanisms.balanced_fine_tuning import balanced_rows
from fecam.learners.mechanisms.bias_correction import corrected, fit_bias
from fecam.learners.mechanisms.class_balance import balanced_distillation, class_weights
from fecam.learners.mechanisms.exemplar_means import nearest_mean_scores, unit_means
from fecam.learners.mechanisms.exemplar_memory import exemplars_per_class
from fecam.learners.mechanisms.herding import herding, unit_rows
from fecam.learners.mechanisms.logit_distillation import sigmoid_distillation, softmax_distillation
from fecam.learners.mechanisms.proxies import imprinted, nca_loss
from fecam.learners.mechanisms.stage_maps import flat_distillation, spatial_distillation
from fecam.learners.mechanisms.transport import transport_plan, transported
from fecam.learners.mechanisms.weight_alignment import align_weights
from fecam.training.classifiers import CosineClassifier, ProxyClassifier
from helpers.small_learners import LATER, NAMES, RECIPE, finish, learned, new, tasks, tensors, tiny
from helpers.small_networks import Items, same, signs

KEEPING = [name for name in NAMES if issubclass(type(make(name)), ExemplarLearner)]
FEW = replace(RECIPE, later=replace(LATER, epochs=1))


def features(n=30, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) + 1.0


def equal_weights(ours, theirs):
    return same(tensors(ours).values(), tensors(theirs).values())


# -- herding ---------------------------------------------------------------------------------------


def literal_herding(values, count):
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    mean, chosen = unit.mean(0), []
    for k in range(1, count + 1):
        distances = {
            i: np.linalg.norm(mean - (unit[[*chosen, i]].sum(0)) / k)
            for i in range(len(unit))
            if i not in chosen
        }
        chosen.append(min(distances, key=distances.get))
    return chosen


def test_herding_equals_the_literal_search_and_shorter_lists_are_prefixes():
    values = features()
    order = herding(values, 12)
    assert order.tolist() == literal_herding(values, 12)
    assert herding(values, 5).tolist() == order[:5].tolist()
    assert sorted(herding(values, 99)) == list(range(30)), "a small class keeps all its images"
    shuffled = np.random.default_rng(1).permutation(30)
    assert shuffled[herding(values[shuffled], 12)].tolist() == order.tolist()


def test_the_mean_of_herded_samples_is_nearer_than_that_of_random_ones():
    values, rng = features(60), np.random.default_rng(2)
    unit = unit_rows(values)

    def distance(rows):
        return np.linalg.norm(unit[rows].mean(0) - unit.mean(0))

    for count in (1, 3, 10):
        random = [distance(rng.choice(60, count, replace=False)) for _ in range(50)]
        assert distance(herding(values, count)) < np.median(random)
    assert herding(values, 1)[0] == np.linalg.norm(unit - unit.mean(0), axis=1).argmin()


# -- the memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", ["total", "per_class"])
def test_the_memory_never_exceeds_its_budget_and_shrinks_to_prefixes(budget):
    train_data, _ = tasks(((1, 0, 2), (4,), (3, 5)))  # tasks of unequal size
    learner = new("replay", recipe=FEW, exemplars=11 if budget == "total" else 3, budget=budget)
    before = {}
    stream = np.concatenate([data.labels for data in train_data])
    for data in train_data:
        finish(learner, data)
        now = learner.rows
        assert set(now) == set(learner.classes)
        sizes = [len(rows) for rows in now.values()]
        most = 3 if budget == "per_class" else 11 // len(learner.classes)
        assert sizes == [most] * len(sizes)
        for label, rows in now.items():
            assert (stream[rows] == label).all() and len(set(rows.tolist())) == len(rows)
            if label in before:
                assert rows.tolist() == before[label][: len(rows)].tolist()
        assert learner.memory()["exemplars"] == sum(sizes) * 3 * 8 * 8
        before = now


def test_exemplars_are_views_of_the_images_of_the_tasks():
    train_data, _ = tasks()
    learner = learned("replay", 2)
    exemplars, rows = learner.exemplar_data(), np.concatenate([*learner.rows.values()])
    items = [*train_data[0].items, *train_data[1].items]
    assert all(np.shares_memory(exemplars.items[i], learner._past[r // 24].items[r % 24])
               for i, r in enumerate(rows))  # fmt: skip
    assert all((exemplars.items[i] == items[row]).all() for i, row in enumerate(rows))


def test_a_class_with_fewer_images_than_the_memory_keeps_them_all():
    data = signs(classes=4, per_class=16)
    rows = np.flatnonzero(~data.is_test & (data.labels < 2))
    rows = np.concatenate([rows[data.labels[rows] == 0][:3], rows[data.labels[rows] == 1]])
    learner = new("icarl", recipe=FEW, exemplars=10)
    finish(learner, data.subset(rows))
    assert {label: len(rows) for label, rows in learner.rows.items()} == {0: 3, 1: 5}


def test_the_state_needs_the_data_of_the_learned_tasks(tmp_path):
    train_data, _ = tasks()
    learned("replay", 2).save(tmp_path / "state")
    for past in ([], train_data[:1], train_data[1::-1]):
        with pytest.raises(TrainingError, match="the data of all learned tasks, in their order"):
            new("replay").load(tmp_path / "state", past)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("replay", {"exemplars": -1}, "exemplars=-1 must be an integer >= 0"),
        ("replay", {"budget": "each"}, "budget='each'"),
        ("replay", {"sampling": "third"}, "sampling='third'"),
        ("replay", {"outputs": "new"}, "with exemplars all outputs are trained"),
        ("replay", {"old_statistics": "new"}, "old_statistics='new'"),
        ("icarl", {"exemplars": 0}, "exemplars=0 must be"),
        ("icarl", {"loss": "mse"}, "loss='mse'"),
        ("wa", {"norm": "l3"}, "norm='l3'"),
        ("wa", {"limit": 0.0}, "limit=0.0"),
        ("wa", {"weight": 1.5}, "weight=1.5"),
        ("bic", {"validation": 1.0}, "validation=1.0"),
        ("bic", {"groups": "all"}, "groups='all'"),
        ("der", {"correction": "bic"}, "correction='bic'"),
        ("der", {"old_statistics": "carried"}, "the features grow in each task"),
        ("der", {"second_epochs": 0}, "second_epochs=0"),
        ("coil", {"weight": -1.0}, "weight=-1.0"),
        ("foster", {"beta": 1.0}, "beta=1.0"),
        ("foster", {"compression_epochs": 0}, "compression_epochs=0"),
        ("podnet", {"margin_form": "none"}, "margin_form='none'"),
        ("podnet", {"spatial": -1.0}, "spatial=-1.0"),
        ("memo", {"auxiliary": -1.0}, "auxiliary=-1.0"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(TrainingError, match=message):
        make(name, **options)


def test_a_memory_smaller_than_the_number_of_classes_is_an_error_before_training():
    train_data, _ = tasks()
    learner = learned("replay", 1, FEW, exemplars=3)
    before = tensors(learner)
    with pytest.raises(TrainingError, match="exemplars=3 in total is less than one for each of "):
        next(learner.learn(train_data[1]))
    assert same(tensors(learner).values(), before.values())
    assert exemplars_per_class(0, "total", 9) == 0, "no memory at all is allowed"


def test_a_memory_too_small_for_the_last_task_is_known_before_the_first():
    make("replay", exemplars=8).check_classes([4, 2, 2])
    make("replay", exemplars=1, budget="per_class").check_classes([4, 2, 2])
    with pytest.raises(TrainingError, match="less than one for each of the 8 classes"):
        make("replay", exemplars=7).check_classes([4, 2, 2])
    make("bic", exemplars=12).check_classes([4, 2, 2])
    with pytest.raises(TrainingError, match=r"two for each of 6 old.*at least 12, or choose wa"):
        make("bic", exemplars=11).check_classes([4, 2, 2])
    with pytest.raises(TrainingError, match="at least 2, or choose wa"):
        make("bic", exemplars=1, budget="per_class").check_classes([4, 2, 2])


def test_a_class_that_comes_back_is_an_error():
    with pytest.raises(TrainingError, match="which an earlier task had"):
        next(learned("replay", 1).learn(tasks()[0][0]))


@pytest.mark.parametrize("name", KEEPING)
def test_of_earlier_tasks_only_exemplars_are_read_again(name):
    train_data, test = tasks()
    learner = new(name)
    for data in train_data:
        data = replace(data, items=Items(list(data.items)))
        finish(learner, data)
        start = sum(len(past) for past in learner._past[:-1])
        kept = np.concatenate([*learner.rows.values()]) - start
        for row in set(range(len(data))) - set(kept.tolist()):
            data.items[row] = RuntimeError("an image that is not kept")
    assert equal_weights(learner, learned(name))
    np.testing.assert_array_equal(learner.predict(test), learned(name).predict(test))


@pytest.mark.parametrize("name", ["bic", "der", "podnet", "foster"])
def test_a_run_that_is_killed_after_any_epoch_keeps_the_same_exemplars(name, tmp_path):
    whole = learned(name, 2)
    for epochs in range(1, LATER.epochs + 1):  # after the last one, the second phase is to come
        checkpoint, data = tmp_path / f"{epochs}.safetensors", tasks()[0][1]
        run = learned(name, 1).learn(data, checkpoint=checkpoint)
        for _ in range(epochs):
            next(run)
        run.close()
        again = learned(name, 1)
        finish(again, data, checkpoint=checkpoint)
        assert equal_weights(again, whole)
        assert again.fitted_values() == whole.fitted_values()
        for kind, values in whole.kept.items():
            assert list(again.kept[kind]) == list(values)
            assert same(again.kept[kind].values(), values.values())


def test_the_work_of_a_task_includes_its_exemplars():
    sizes = [24, 10, 30]
    assert new("replay", exemplars=20).images_per_task(sizes) == [24, 30, 50]
    assert new("replay", exemplars=0).images_per_task(sizes) == sizes
    assert new("joint").images_per_task(sizes) == [24, 34, 64]
    assert new("ft").images_per_task(sizes) == sizes


# -- replay ----------------------------------------------------------------------------------------


def test_replay_without_a_memory_is_fine_tuning():
    plain = learned("ft", 2, outputs="all", old_rows="included")
    assert equal_weights(learned("replay", 2, exemplars=0), plain)
    assert not equal_weights(learned("replay", 2), plain)


def test_half_of_each_batch_are_exemplars():
    train_data, _ = tasks()
    learner, counts = learned("replay", 1, sampling="half"), []
    made = type(learner).hooks

    def spying(self, task):
        hooks = made(self, task)
        seen = lambda step: counts.append((step.labels < 2).float().mean().item())  # noqa: E731
        return replace(hooks, updated=[seen])

    learner.hooks = spying.__get__(learner)
    records = finish(learner, train_data[1])
    assert set(counts) == {0.5}
    assert records[0].images == 2 * len(train_data[1])


def test_without_distillation_the_training_is_replay():
    plain = learned("replay", 1)
    for name, options in (
        ("icarl", {"loss": "ce_kd", "weight": 0.0}),
        ("wa", {"weight": 0.0, "clamp": False}),
    ):
        ours = learned(name, 1, **options)
        assert equal_weights(ours, plain), "the same first task"
        finish(ours, tasks()[0][1])
        theirs = learned("replay", 2)
        assert same(ours.network.state_dict().values(), theirs.network.state_dict().values())


# -- iCaRL -----------------------------------------------------------------------------------------


def test_exemplars_are_trained_towards_the_old_outputs_not_their_labels():
    logits, old = torch.randn(3, 4), torch.randn(3, 2)
    labels = torch.tensor([0, 1, 3])
    targets = torch.cat([old.sigmoid(), torch.tensor([[0.0, 0], [0, 0], [0, 1]])], 1)
    expected = functional.binary_cross_entropy_with_logits(logits, targets) * 4
    torch.testing.assert_close(sigmoid_distillation(logits, old, labels), expected)


def test_with_all_images_the_nearest_mean_of_exemplars_is_that_of_the_class():
    train_data, test = tasks()
    learner = learned("icarl", exemplars=2000)
    everything = np.concatenate([learner.features(data) for data in train_data])
    labels = np.concatenate([data.labels for data in train_data])
    means = np.stack([unit_rows(everything[labels == c]).mean(0) for c in learner.classes])
    distances = np.linalg.norm(
        unit_rows(learner.features(test))[:, None] - unit_rows(means)[None], axis=2
    )
    expected = np.asarray(learner.classes)[distances.argmin(1)]
    np.testing.assert_array_equal(learner.predict(test), expected)


def test_means_of_old_classes_follow_the_network():
    learner = learned("icarl", 2)
    data = learner.exemplar_data()
    now = unit_means(learner.features(data), data.labels, learner.classes)
    torch.testing.assert_close(learner.kept["means"]["exemplars"], now)
    assert nearest_mean_scores(torch.ones(2, 16), now).shape == (2, 4)


# -- WA --------------------------------------------------------------------------------------------


def test_alignment_equalizes_norms_once_and_keeps_the_order_within_groups():
    torch.manual_seed(0)
    classifier = nn.Linear(8, 7)
    classifier.weight.data[4:] *= 3
    bias, X = classifier.bias.detach().clone(), torch.randn(20, 8)
    before = (classifier(X) - classifier.bias).detach()
    gamma = align_weights(classifier, 4)
    norms = classifier.weight.norm(dim=1)
    torch.testing.assert_close(norms[:4].mean(), norms[4:].mean())
    assert gamma < 0.6 and align_weights(classifier, 4) == pytest.approx(1.0)
    assert torch.equal(classifier.bias, bias)
    after = classifier(X) - classifier.bias
    for group in (slice(0, 4), slice(4, 7)):
        assert torch.equal(after[:, group].argmax(1), before[:, group].argmax(1))
    classifier.weight.data[4:] /= 10
    small = classifier.weight.detach().clone()
    assert align_weights(classifier, 4) == 1.0 and torch.equal(classifier.weight, small)
    assert align_weights(classifier, 4, "l1", None) > 1.0
    norms = classifier.weight.abs().sum(1)
    torch.testing.assert_close(norms[:4].mean(), norms[4:].mean())


def test_learners_of_another_classifier_have_a_first_task_of_their_own():
    cosine = replace(RECIPE, first=replace(RECIPE.first, classifier="cosine"))
    assert new("wa", clamp=False).first_task_key() == ""
    assert new("wa").first_task_key() != "" == new("replay", recipe=cosine).first_task_key()
    key = new("wa", clamp=False, recipe=cosine).first_task_key()
    assert key and key == new("bic", recipe=cosine).first_task_key()


def test_wa_aligns_after_later_tasks_and_records_the_factor():
    assert learned("wa", 1).fitted_values() == {}
    learner = learned("wa", 2, limit=None)
    norms = learner.classifier.weight.abs().sum(1)
    torch.testing.assert_close(norms[:2].mean(), norms[2:].mean())
    assert learner.fitted_values()["gamma"] == learner.fitted_values()["norm ratio"] > 0
    limited = learned("wa", 2, limit=0.5).fitted_values()
    assert limited["gamma"] == min(0.5, limited["norm ratio"])
    clamped = learned("wa", 2, FEW)
    assert clamped.classifier.weight.min() >= 0


# -- BiC -------------------------------------------------------------------------------------------


def synthetic(scale=1.0, offset=0.0, n=4000):
    """Logits of ten classes that are calibrated, of which the last four are inflated."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 10
    z = functional.one_hot(labels, 10) * 2.0 + torch.randn(n, 10, generator=generator)
    z = 2 * z  # the log-likelihood ratio of these Gaussians
    z[:, 6:] = scale * z[:, 6:] + offset
    return z, labels


def test_the_bias_is_that_of_the_logits():
    alpha, beta = fit_bias(*synthetic(), 6)
    assert alpha == pytest.approx(1.0, abs=0.07) and beta == pytest.approx(0.0, abs=0.2)
    alpha, beta = fit_bias(*synthetic(2.0, 1.0), 6)
    assert alpha == pytest.approx(0.5, abs=0.04) and beta == pytest.approx(-0.5, abs=0.2)


def test_two_optimizers_agree_on_the_convex_fit():
    z, labels = synthetic(1.5, 0.5, 400)
    factors = torch.tensor([1.0, 0.0], requires_grad=True)
    losses = []
    for _ in range(600):
        q = torch.cat([z[:, :6], factors[0] * z[:, 6:] + factors[1]], 1)
        loss = functional.cross_entropy(q, labels)
        (gradient,) = torch.autograd.grad(loss, factors)
        factors.data -= 0.3 * gradient
        losses.append(loss.item())
    assert fit_bias(z, labels, 6) == pytest.approx(factors.tolist(), abs=2e-3)
    assert losses[-1] < losses[0], "not worse than no correction"


def test_a_correction_keeps_the_order_within_groups_and_one_is_none():
    z, _ = synthetic(n=50)
    none = corrected(z, torch.ones(10), torch.zeros(10))
    assert torch.equal(none, z) and torch.equal(corrected(z, *2 * [torch.empty(0)]), z)
    now = corrected(z, torch.tensor([1.0] * 6 + [0.3] * 4), torch.tensor([0.0] * 6 + [-1.0] * 4))
    for group in (slice(0, 6), slice(6, 10)):
        assert torch.equal(now[:, group].argmax(1), z[:, group].argmax(1))


@pytest.mark.parametrize("groups", ["last", "chain"])
def test_bic_corrects_the_last_group_or_a_chain(groups):
    learner = learned("bic", 3, groups=groups, exemplars=24)
    alpha = learner.kept["bias"]["alpha"]
    assert torch.equal(alpha[:2], torch.ones(2)) and alpha[4] == alpha[5] != 1
    assert (alpha[2] == alpha[3] != 1) == (groups == "chain")
    fitted = learner.fitted_values()
    assert fitted["alpha"] == pytest.approx(float(alpha[5])) and fitted["validation images"] == 6
    X = torch.from_numpy(learner.features(tasks()[1]))
    expected = learner.classifier(X) * alpha + learner.kept["bias"]["beta"]
    torch.testing.assert_close(learner.scores(X), expected)


def test_the_second_phase_of_bic_changes_no_weight_and_uses_images_that_were_not_trained_on():
    train_data, _ = tasks()
    learner, seen = learned("bic", 1, exemplars=24), {}
    phase, hooks = type(learner).second_phase, type(learner).hooks

    def trained(task):
        made = hooks(learner, task)
        return replace(made, updated=[lambda step: seen.setdefault("rows", set()).update(
            step.rows.tolist())])  # fmt: skip

    def spying(task):
        before = tensors(learner)
        validation = learner._validation
        assert not seen["rows"] & set(validation.tolist())
        counts = np.bincount(task.positions[validation])
        assert counts.tolist() == [1, 1, 1, 1], "of each class the same number"
        phase(learner, task)
        assert same(tensors(learner).values(), before.values())
        assert seen["rows"] | set(validation.tolist()) == set(task.images.rows.tolist())
        assert is_new(task).sum() == len(train_data[1])

    learner.hooks, learner.second_phase = trained, spying
    finish(learner, train_data[1])
    assert seen


def test_bic_without_images_to_validate_names_the_remedy():
    learner = learned("bic", 1, FEW, exemplars=2)
    with pytest.raises(TrainingError, match=r"exemplars=2 in total is less"):
        next(learner.learn(tasks()[0][1]))
    learner = learned("bic", 1, FEW, exemplars=1, budget="per_class")
    with pytest.raises(TrainingError, match="'sign 0' has 1 image: BiC needs one to train"):
        next(learner.learn(tasks()[0][1]))


# -- DER and MEMO ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["der", "memo"])
def test_old_branches_do_not_change_and_old_outputs_start_where_they_were(name):
    train_data, _ = tasks()
    learner, seen = learned(name, 2), {}
    X = torch.rand(4, 3, 8, 8)

    def outputs():
        with torch.no_grad():
            learner.network.eval()
            return learner.classifier(learner.network(X))

    then, hooks = outputs(), learner.hooks

    def spying(task):
        seen["logits"], seen["state"] = outputs(), tensors(learner)
        return hooks(task)

    learner.hooks = spying
    finish(learner, train_data[2])
    torch.testing.assert_close(seen["logits"][:, :4], then)
    now, last = tensors(learner), "network.branches.2."
    frozen = [key for key in now if key.startswith("network.") and not key.startswith(last)]
    assert same([now[key] for key in frozen], [seen["state"][key] for key in frozen])
    assert not torch.equal(now[f"{last}layer4.1.bn2.running_mean"],
                           seen["state"][f"{last}layer4.1.bn2.running_mean"])  # fmt: skip
    assert learner.features(train_data[0]).shape[1] == 3 * 16


def test_shared_stages_are_trained_only_if_that_is_the_option():
    before, after = (tensors(learned("memo", n, FEW, train_shared=True)) for n in (2, 3))
    key = "network.shared.network.layer3.1.conv2.weight"
    assert not torch.equal(before[key], after[key])


def test_splitting_a_network_does_not_change_its_features():
    torch.manual_seed(0)
    network, X = tiny(), torch.rand(5, 3, 8, 8)
    for name in ("der", "memo"):
        assert torch.equal(make(name).branches(network)(X), network(X))


def test_auxiliary_classifiers_tell_new_classes_from_one_that_stands_for_the_old():
    train_data, _ = tasks()
    learner, heads = learned("der", 1), {}
    hooks = learner.hooks

    def spying(task):
        made = hooks(task)
        heads.update(made.heads)
        return made

    learner.hooks = spying
    (record, *_) = finish(learner, train_data[1])
    assert heads["auxiliary"].weight.shape == (3, 16) and record.losses["auxiliary"] > 0
    with_none = learned("der", 2, FEW, auxiliary=0.0)
    assert not equal_weights(with_none, learned("der", 2, FEW))


def test_balanced_fine_tuning_sees_each_class_equally_often_and_changes_the_classifier_only():
    train_data, _ = tasks()
    learner, seen = learned("der", 1, exemplars=10), {}
    phase = learner.second_phase

    def spying(task):
        seen["before"] = tensors(learner)
        rows = balanced_rows(task.images.rows, task.images.labels, 3)
        counts = np.bincount(task.images.labels[rows])
        assert counts[counts > 0].tolist() == [5] * 4
        phase(task)
        seen["after"] = tensors(learner)

    learner.second_phase = spying
    finish(learner, train_data[1])
    changed = {k for k, v in seen["after"].items() if not torch.equal(v, seen["before"][k])}
    assert changed == {"classifier.weight", "classifier.bias"}
    assert learner.fitted_values() == {} and learned("memo", 2).fitted_values()["gamma"] > 0


def test_numbers_of_weights_at_full_width_after_six_tasks():
    """The #P column of the paper's Table 3, which counts backbones."""
    recipe = replace(RECIPE, network=lambda: tiny(64))
    expected = {"replay": 11_168_832, "der": 67_012_992, "memo": 53_137_472}
    for name, count in expected.items():
        with torch.device("meta"):
            network = new(name, recipe=recipe).make_network(6)
        assert sum(parameter.numel() for parameter in network.parameters()) == count


def test_memo_needs_a_network_with_stages():
    class Other(nn.Module):
        n_features = 4

    recipe = replace(RECIPE, network=Other)
    with pytest.raises(TrainingError, match="the network is a Other: choose der"):
        next(new("memo", recipe=recipe).learn(tasks()[0][0]))


# -- PODNet ----------------------------------------------------------------------------------------


def test_pooled_distillation_is_zero_for_equal_maps_whatever_their_sign_and_scale():
    torch.manual_seed(0)
    maps = [torch.randn(5, 3, 4, 6), torch.randn(5, 2, 2, 2)]
    assert spatial_distillation(maps, maps) == 0
    assert spatial_distillation(maps, [-x * 3 for x in maps]) < 1e-6
    other = [torch.randn_like(x) for x in maps]
    expected = []
    for a, b in zip(maps, other, strict=True):
        for x, y in zip(a, b, strict=True):
            p, q = (torch.cat([(m**2).sum(2).flatten(), (m**2).sum(1).flatten()]) for m in (x, y))
            expected.append((p / p.norm() - q / q.norm()).norm())
    torch.testing.assert_close(spatial_distillation(maps, other), torch.stack(expected).mean())
    assert flat_distillation(other[0].flatten(1), other[0].flatten(1) * 2).abs() < 1e-6


def gradient_of_logits(y, labels, scale, margin):
    """The derivative by the scale of the logits alone, of the images below the margin."""
    scale = torch.tensor(scale, requires_grad=True)
    total = torch.zeros(())
    for row, label in zip(y, labels.tolist(), strict=True):
        loss = (scale * torch.cat([row[:label], row[label + 1 :]])).logsumexp(0)
        loss = loss - scale * row[label] + 2.0 * margin
        total = total + loss.clamp(min=0) / len(y)
    total.backward()
    return scale.grad


def test_the_nca_loss_is_literal_and_only_that_of_the_paper_has_a_margin():
    z, labels, scale = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor(2.0)
    literal = []
    for row, label in zip(z, labels.tolist(), strict=True):
        others = torch.cat([row[:label], row[label + 1 :]])
        ratio = torch.exp(row[label] - 2.0 * 0.6) / others.exp().sum()
        literal.append(torch.relu(-ratio.log()))
    torch.testing.assert_close(nca_loss(z, labels, scale, 0.6), torch.stack(literal).mean())
    assert nca_loss(z, labels, scale, 0.9) > nca_loss(z, labels, scale, 0.6)
    one, other = (nca_loss(z, labels, scale, margin, "public") for margin in (0.1, 0.9))
    assert one == other
    learned_scale = torch.tensor(2.0, requires_grad=True)
    nca_loss(z * learned_scale, labels, learned_scale, 0.9).backward()
    torch.testing.assert_close(learned_scale.grad, gradient_of_logits(z, labels, 2.0, 0.9))


def test_one_proxy_per_class_is_the_cosine_classifier():
    proxies, cosine = ProxyClassifier(6, 3, scale=4.0, proxies=1), CosineClassifier(6, 3, scale=4.0)
    cosine.weight.data = proxies.weight.detach()[:, 0].clone()
    X = torch.randn(5, 6)
    torch.testing.assert_close(proxies(X), cosine(X))


def test_clusters_of_a_class_are_its_proxies():
    rng = np.random.default_rng(0)
    centers = np.eye(3)
    X = np.repeat(centers, 20, axis=0) + rng.normal(scale=0.01, size=(60, 3))
    found = imprinted(X, 6, 1).numpy()
    nearest = np.linalg.norm(centers[:, None] - found[None], axis=2).min(1)
    assert found.shape == (6, 3) and nearest.max() < 0.02
    np.testing.assert_allclose(imprinted(X, 1, 0)[0], unit_rows(X).mean(0), rtol=1e-5)
    assert imprinted(X[:2], 5, 0).shape == (5, 3), "fewer samples than proxies"


def test_old_proxies_are_fixed_until_the_second_phase():
    train_data, _ = tasks()
    learner, seen = learned("podnet", 1), {}
    before = learner.classifier.weight.detach().clone()
    phase = learner.second_phase

    def spying(task):
        assert torch.equal(learner.classifier.weight[:2], before)
        seen["network"] = {k: v for k, v in tensors(learner).items() if k.startswith("network")}
        phase(task)

    learner.second_phase = spying
    (record, *_) = finish(learner, train_data[1])
    assert record.losses["spatial"] > 0 and record.losses["flat"] > 0
    assert not torch.equal(learner.classifier.weight[:2], before)
    now = tensors(learner)
    assert all(torch.equal(now[key], value) for key, value in seen["network"].items())


def test_podnet_needs_two_classes_to_tell_apart():
    data = tasks()[0][0]
    with pytest.raises(TrainingError, match="the first task has one class"):
        next(new("podnet").learn(data.subset(data.labels == 1)))


# -- FOSTER ----------------------------------------------------------------------------------------


def test_weights_of_classes_are_larger_for_rarer_ones():
    counts = torch.tensor([20] * 50 + [500] * 10)
    for beta, old, new_ in ((0.94, 1.051, 0.746), (0.96, 1.080, 0.602)):
        weights = class_weights(counts, beta)
        assert float(weights.sum()) == pytest.approx(60, rel=1e-5)
        assert float(weights[0]) == pytest.approx(old, abs=1e-3)
        assert float(weights[-1]) == pytest.approx(new_, abs=1e-3)
    assert torch.equal(class_weights(counts, 0.0), torch.ones(60))


def test_balanced_distillation_without_weights_is_distillation():
    z, old, weights = torch.randn(4, 5), torch.randn(4, 5), torch.tensor([1.0, 2, 1, 1, 3])
    plain = balanced_distillation(z, old, torch.ones(5))
    torch.testing.assert_close(plain, softmax_distillation(z, old))
    targets = (old / 2).softmax(1) * weights
    targets /= targets.sum(1, keepdim=True)
    expected = -(targets * (z / 2).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(balanced_distillation(z, old, weights), expected)


def test_foster_boosts_beside_the_frozen_network_and_leaves_one_network():
    train_data, _ = tasks()
    learner, seen = learned("foster", 1), {}
    before, phase, hooks = tensors(learner), learner.second_phase, learner.hooks
    X = torch.rand(4, 3, 8, 8)
    with torch.no_grad():
        then = learner.classifier(learner.network.eval()(X))

    def starting(task):
        with torch.no_grad():
            logits = learner.classifier(learner.network.eval()(X))
        torch.testing.assert_close(logits[:, :2], then)
        return hooks(task)

    def spying(task):
        frozen = learner.network.branches[0].state_dict()
        assert all(torch.equal(v, before[f"network.{k}"]) for k, v in frozen.items())
        seen["boosted"] = learner.n_parameters()
        phase(task)

    learner.hooks, learner.second_phase = starting, spying
    (record, *_) = finish(learner, train_data[1])
    assert set(record.losses) == {"second", "distillation"}
    assert learner.n_parameters() == learned("replay", 2).n_parameters() < seen["boosted"]
    assert not equal_weights(learner, learned("replay", 2))


def test_other_predictors_answer_beside_the_methods_own():
    train_data, test = tasks()
    icarl = learned("icarl", 2)
    with torch.no_grad():
        outputs = icarl.classifier(torch.from_numpy(icarl.features(test))).argmax(1)
    answers = icarl.other_predictions(icarl.features(test), test)
    assert answers["outputs"].tolist() == np.asarray(icarl.classes)[outputs].tolist()
    foster, phase, both = learned("foster", 1), FOSTER.second_phase, []
    assert foster.other_predictions(foster.features(test), test) == {}

    def spying(self, task):
        both.append(self.predict(test))
        phase(self, task)

    foster.second_phase = spying.__get__(foster)
    finish(foster, train_data[1])
    answers = foster.other_predictions(foster.features(test), test)
    assert answers["teacher"].tolist() == both[0].tolist()


# -- Coil ------------------------------------------------------------------------------------------


def test_the_transport_plan_has_uniform_marginals_and_the_least_cost():
    a, b = torch.randn(4, 6), torch.randn(7, 6)
    plan = transport_plan(a, b)
    assert plan.min() >= 0
    torch.testing.assert_close(plan.sum(1), torch.full((4,), 1 / 4))
    torch.testing.assert_close(plan.sum(0), torch.full((7,), 1 / 7))
    units = [functional.normalize(x, dim=1) for x in (a, b)]
    cost = torch.cdist(*units, p=3.0)
    free, tied = (float((transport_plan(a, b, eps) * cost).sum()) for eps in (10.0, 0.02))
    assert tied < free, "less entropy, less cost"


def test_transport_between_the_same_classes_copies_the_rows():
    means, weights = torch.eye(5)[:, torch.randperm(5)], torch.randn(5, 3)
    plan = transport_plan(means, means, 0.01)
    torch.testing.assert_close(plan, torch.eye(5) / 5, atol=1e-6, rtol=0)
    norm = torch.tensor(2.0)
    rows = transported(weights, plan, norm)
    torch.testing.assert_close(rows, 2 * functional.normalize(weights, dim=1))


def test_new_rows_of_coil_start_as_transported_old_ones():
    train_data, _ = tasks()
    learner, seen = learned("coil", 1), []
    old, hooks = learner.classifier.weight.detach().clone(), learner.hooks

    def spying(task):
        weight = learner.classifier.weight.detach()
        expected = transported(old, learner._plan, old.norm(dim=1).mean())
        torch.testing.assert_close(weight, torch.cat([old, expected]))
        made = hooks(task)
        start = made.epoch_start[0]

        def checked(modules):
            before = [module.training for module in modules.network.modules()]
            start(modules)
            assert [module.training for module in modules.network.modules()] == before
            seen.append(learner._plan)

        return replace(made, epoch_start=[checked])

    learner.hooks = spying
    records = finish(learner, train_data[1])
    assert len(seen) == LATER.epochs and not torch.equal(seen[0], seen[1])
    assert all(record.losses["transport"] > 0 for record in records)


# -- heads -----------------------------------------------------------------------------------------


def test_statistics_of_old_classes_are_carried_or_estimated_from_exemplars():
    train_data, _ = tasks()
    for option in ("carried", "exemplars"):
        learner = learned("replay", 1, head="ncm", old_statistics=option)
        carried = learner.features(train_data[0].subset(train_data[0].labels == 1)).mean(0)
        exemplars = learner.exemplar_data()
        finish(learner, train_data[1])
        data = train_data[1].subset(train_data[1].labels == 2)
        exact = learner.features(data).mean(0)
        estimated = learner.features(exemplars.subset(exemplars.labels == 1)).mean(0)
        means = dict(zip(learner.head.classes_.tolist(), learner.head.state_.means, strict=True))
        np.testing.assert_allclose(means[2], exact, rtol=1e-4, atol=1e-6)
        expected = carried if option == "carried" else estimated
        np.testing.assert_allclose(means[1], expected, rtol=1e-4, atol=1e-6)
        assert learner.options()["old_statistics"] == option

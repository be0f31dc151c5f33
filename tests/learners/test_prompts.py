"""Prompts for a vision transformer of `transformers`."""

from __future__ import annotations

import pytest
import torch
from transformers import ViTConfig, ViTModel

from fecam.encoders.resnet import ResNet18
from fecam.errors import TrainingError
from fecam.learners.mechanisms.prompts import PromptedTransformer, PromptPool, find_transformer


def small_transformer():
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        hidden_dropout_prob=0.5,
        initializer_range=0.5,
    )
    return ViTModel(config, add_pooling_layer=False).eval()


def prompted(choice="sample", **options):
    vit = small_transformer()
    pool = PromptPool(16, **{"size": 6, "length": 3, "top": 2, **options})
    torch.nn.init.normal_(pool.keys)
    torch.nn.init.normal_(pool.prompts)
    return PromptedTransformer(vit, pool, choice)


IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_features_are_those_of_the_formula():
    network = prompted()
    features = network(IMAGES)
    vit, pool = network.vit, network.pool
    with torch.no_grad():
        for image, feature in zip(IMAGES, features, strict=True):
            query = vit(image[None]).last_hidden_state[0, 0]
            cosines = torch.stack([torch.cosine_similarity(query, key, 0) for key in pool.keys])
            order = cosines.argsort(descending=True)[:2].tolist()
            tokens = torch.cat([pool.prompts[k] for k in order] + [vit.embeddings(image[None])[0]])
            hidden = tokens[None]
            for layer in vit.layers:
                hidden = layer(hidden)
            expected = vit.layernorm(hidden)[0, :6].mean(0)
            torch.testing.assert_close(feature, expected, atol=1e-5, rtol=1e-5)


def test_prompts_per_sample_do_not_depend_on_the_batch():
    network = prompted()
    together = network(IMAGES)
    alone = torch.cat([network(image[None]) for image in IMAGES])
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=1e-5)
    chosen, _ = network.pool.choose(torch.randn(50, 16))
    assert len(set(map(tuple, chosen.tolist()))) > 1


def test_a_batch_shares_the_prompts_with_most_votes():
    network = prompted("batch")
    queries = torch.randn(31, 16)
    own, _ = network.pool.choose(queries)
    chosen, cosines = network.pool.choose(queries, "batch")
    assert (chosen == chosen[0]).all()
    votes = own.flatten().bincount(minlength=6)
    assert set(votes[chosen[0]].tolist()) == set(votes.sort(descending=True).values[:2].tolist())
    expected = torch.cosine_similarity(queries[:, None], network.pool.keys[chosen], dim=2)
    torch.testing.assert_close(cosines, expected)
    images = torch.randn(40, 3, 8, 8)
    alone = torch.cat([network(image[None]) for image in images])
    assert not torch.allclose(alone, network(images), atol=1e-3)


def test_only_the_pool_is_trained():
    network = prompted().train()
    before = network(IMAGES)
    assert torch.equal(before, network(IMAGES))  # no dropout in the transformer
    (before.sum() - network.key_cosines.sum()).backward()
    for name, value in network.named_parameters():
        assert (value.grad is not None) == name.startswith("pool."), name
    used = network.pool.prompts.grad.abs().sum((1, 2)) > 0
    assert torch.equal(used, network.pool.keys.grad.abs().sum(1) > 0)


def test_other_networks_and_small_pools_are_rejected():
    with pytest.raises(TrainingError, match="ResNet18 is not a vision transformer"):
        find_transformer(ResNet18(2))
    vit = small_transformer()
    assert find_transformer(torch.nn.Sequential(vit)) is vit
    with pytest.raises(TrainingError, match="top=4"):
        PromptPool(16, size=3)

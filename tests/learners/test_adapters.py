"""Adapters beside convolutions, folded batch normalizations, prompts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fecam.encoders.resnet import ResNet18
from fecam.errors import TrainingError
from fecam.learners.mechanisms.adapters import (
    AdaptedConv,
    add_adapters,
    fold_adapters,
    fold_batchnorm,
)


def trained_network(width=4):
    """A network whose normalizations are not the identity."""
    torch.manual_seed(0)
    network = ResNet18(width)
    images = torch.randn(16, 3, 16, 16)
    for _ in range(3):
        network(images * 3 + 1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return network.eval()


IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_a_folded_normalization_does_not_change_the_outputs():
    network = trained_network()
    before = network(IMAGES)
    fold_batchnorm(network)
    torch.testing.assert_close(network(IMAGES), before, atol=1e-5, rtol=1e-4)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert all(
        module.bias is not None for module in network.modules() if isinstance(module, nn.Conv2d)
    )
    torch.testing.assert_close(network.train()(IMAGES), before, atol=1e-5, rtol=1e-4)


def test_new_adapters_and_folding_do_not_change_the_outputs():
    network = fold_batchnorm(trained_network())
    before, names = network(IMAGES), list(network.state_dict())
    add_adapters(network)
    assert torch.equal(network(IMAGES), before)
    for module in network.modules():
        if isinstance(module, AdaptedConv):
            nn.init.normal_(module.adapter, std=0.1)
    changed = network(IMAGES)
    assert (changed - before).abs().max() > 0.1
    fold_adapters(network)
    torch.testing.assert_close(network(IMAGES), changed, atol=1e-4, rtol=1e-4)
    assert list(network.state_dict()) == names
    torch.testing.assert_close(add_adapters(network)(IMAGES), changed, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [7, 8])
def test_an_adapter_is_the_center_of_the_kernel_for_every_stride(stride, side):
    torch.manual_seed(0)
    adapted = AdaptedConv(nn.Conv2d(3, 5, 3, stride, 1))
    nn.init.normal_(adapted.adapter)
    maps = torch.randn(2, 3, side, side)
    before = adapted(maps)
    torch.testing.assert_close(adapted.folded()(maps), before, atol=1e-5, rtol=1e-5)


def test_only_adapters_get_gradients():
    network = add_adapters(fold_batchnorm(trained_network()))
    network(IMAGES).sum().backward()
    trained = {name for name, value in network.named_parameters() if value.requires_grad}
    assert len(trained) == 17 and all(name.endswith(".adapter") for name in trained)
    for name, value in network.named_parameters():
        assert (value.grad is not None) == (name in trained)
    assert all(network.get_parameter(name).grad.abs().sum() > 0 for name in trained)


def test_a_copy_from_before_the_folding_has_the_same_outputs():
    network = add_adapters(fold_batchnorm(trained_network()))
    for module in network.modules():
        if isinstance(module, AdaptedConv):
            nn.init.normal_(module.adapter, std=0.1)
    old = copy.deepcopy(network)
    fold_adapters(network)
    torch.testing.assert_close(old(IMAGES), network(IMAGES), atol=1e-4, rtol=1e-4)


def test_networks_without_such_convolutions_are_rejected():
    with pytest.raises(TrainingError, match="no 3 x 3 convolutions"):
        add_adapters(nn.Sequential(nn.Linear(3, 3)))
    odd = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))
    with pytest.raises(TrainingError, match="does not follow"):
        fold_batchnorm(odd)

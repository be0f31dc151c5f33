"""ResNet-20 and ResNet-12: sizes, the split in the middle, files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet import NETWORKS, load_encoder, make_network, save_encoder
from fecam.errors import EncoderError


def noisy(network):
    """Running statistics and shifts that are not those of a new network."""
    torch.manual_seed(1)
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
            torch.nn.init.normal_(layer.bias, 0, 0.1)
    return network


def test_widths_are_the_published_ones():
    assert NETWORKS["resnet20"](16).n_features == 64
    network = NETWORKS["resnet12"](64)
    channels = [getattr(network, f"layer{i}").conv1.out_channels for i in range(1, 5)]
    assert channels == [64, 160, 320, 640] and network.n_features == 640
    # 270 thousand weights in the literature, with a layer of ten classes and plain shortcuts.
    count = sum(weight.numel() for weight in NETWORKS["resnet20"](16).parameters())
    assert 268_000 < count < 275_000


@pytest.mark.parametrize("name", NETWORKS)
def test_features_are_those_of_the_maps_in_the_middle(name):
    network = noisy(make_network(name, 2, "small")).eval()
    images = torch.randn(3, 3, 8, 8)
    features = network(images)
    assert features.shape == (3, network.n_features)
    torch.testing.assert_close(network.late(network.early(images)), features)
    assert bool((features < 0).any()) is (name == "resnet12")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_holds_any_of_them(name, tmp_path):
    network = noisy(make_network(name, 2, "small"))
    steps = ImagePreprocessing(size=8, mean=(0.0,) * 3, std=(1.0,) * 3)
    path = tmp_path / "encoder.safetensors"
    save_encoder(path, network, steps, ["cat"])
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    with torch.inference_mode():
        images = torch.from_numpy(pixels.transpose(0, 3, 1, 2) / 255).float()
        expected = network.eval()(images).numpy()
    encoder = load_encoder(path)
    np.testing.assert_allclose(encoder.encode(list(pixels)), expected, rtol=1e-3, atol=1e-5)
    assert not any(isinstance(x, torch.nn.BatchNorm2d) for x in encoder.network.modules())


def test_unknown_networks_are_rejected():
    with pytest.raises(EncoderError, match="network='resnet19' must be one of"):
        make_network("resnet19", 2, "small")
    with pytest.raises(EncoderError, match="stem of ResNet-20='large'"):
        NETWORKS["resnet20"](2, "large")

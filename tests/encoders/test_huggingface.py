"""`hf:<model or folder>`: transformers itself, on small models that the tests write."""

from __future__ import annotations

import json
import shutil

import huggingface_hub
import numpy as np
import pytest
import torch
from transformers import BertModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from fecam.encoders import load
from fecam.encoders.huggingface_images import preprocessing_from
from fecam.errors import EncoderError
from helpers.small_models import SIDE, VISION, WIDTH, pictures, write_bert, write_vision

TEXTS = ["a cat", "the very quick dog ran on the mat", "", "cats sat"]
USUAL = {
    "vit": "cls",
    "vit-classifier": "cls",
    "deit": "cls",
    "dinov2": "cls",
    "clip-vision": "pooler",
    "clip": "pooler",
}
IN_FRONT = {"deit": 2}
"""Tokens before those of the patches, if not only the class token."""


def same(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    models = {name: write_vision(folder / name, name) for name in VISION}
    return folder, models


def literal(model, encoder, pooling, in_front):
    """The output of transformers, pooled literally."""
    model = getattr(model, "vision_model", getattr(model, "vit", model))
    images = torch.from_numpy(np.stack([encoder.steps(item) for item in pictures()]))
    with torch.inference_mode():
        output = model(pixel_values=images)
    if pooling == "pooler":
        return output.pooler_output.numpy()
    tokens = output.last_hidden_state.numpy()
    return tokens[:, 0] if pooling == "cls" else tokens[:, in_front:].mean(1)


@pytest.mark.parametrize("name", VISION)
@pytest.mark.parametrize("pooling", ["cls", "mean", "pooler", None])
def test_features_equal_those_of_transformers(folders, name, pooling, capsys):
    folder, models = folders
    if (name, pooling) == ("vit-classifier", "pooler"):
        with pytest.raises(EncoderError, match="choose cls or mean"):
            load(f"hf:{folder / name}", pooling=pooling)
        return
    encoder = load(f"hf:{folder / name}", pooling=pooling)
    chosen = pooling or USUAL[name]
    assert encoder.name == f"hf:{folder / name}?pooling={chosen}"
    assert encoder.n_features == WIDTH
    in_front = IN_FRONT.get(name, 1)
    same(encoder.encode(pictures()), literal(models[name], encoder, chosen, in_front))
    assert capsys.readouterr() == ("", "")


def test_the_fingerprint_changes_with_weights_pooling_and_preprocessing_and_only_then(
    folders, tmp_path
):
    folder, _ = folders
    first = load(f"hf:{folder / 'vit'}")
    shutil.copytree(folder / "vit", tmp_path / "elsewhere")
    path = tmp_path / "elsewhere" / "config.json"
    aside = {"_name_or_path": "somebody/else", "transformers_version": "4.0.0"}
    path.write_text(json.dumps(json.loads(path.read_text()) | aside))
    assert load(f"hf:{tmp_path / 'elsewhere'}").fingerprint == first.fingerprint
    write_vision(tmp_path / "weights", "vit", seed=1)
    write_vision(tmp_path / "processor", "vit", processor={"size": SIDE, "image_mean": [0.4] * 3})
    write_vision(tmp_path / "config", "vit")
    config = json.loads((tmp_path / "config" / "config.json").read_text())
    config["layer_norm_eps"] = 0.1
    (tmp_path / "config" / "config.json").write_text(json.dumps(config))
    others = [load(f"hf:{tmp_path / name}") for name in ("weights", "processor", "config")]
    others += [load(f"hf:{folder / 'vit'}", pooling=pooling) for pooling in ("mean", "pooler")]
    assert len({first.fingerprint, *(variant.fingerprint for variant in others)}) == 6


def test_random_weights_are_neither_used_nor_hashed(folders):
    # A classifier's file has no pooling layer, so transformers creates a random one.
    folder, _ = folders
    first, second = (load(f"hf:{folder / 'vit-classifier'}") for _ in range(2))
    assert first.fingerprint == second.fingerprint
    np.testing.assert_array_equal(first.encode(pictures()), second.encode(pictures()))


def test_half_precision_weights_compute_in_float32(tmp_path):
    VISION["vit"]().half().save_pretrained(tmp_path / "half")
    features = load(f"hf:{tmp_path / 'half'}").encode(pictures())
    assert features.dtype == np.float32
    assert len(np.unique(features.astype(np.float16).astype(np.float32) - features)) > 1


# --- preprocessing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processor", "model_type"),
    [
        (ViTImageProcessorPil(size={"height": 24, "width": 24}), "vit"),
        (ViTImageProcessorPil(size={"height": 24, "width": 24}, do_normalize=False), "vit"),
        (ViTImageProcessorPil(size={"height": 24, "width": 24}, do_rescale=False), "vit"),
        (ViTImageProcessorPil(size={"height": 24, "width": 24}, image_mean=[0.1, 0.2, 0.3]), "vit"),
        (ViTImageProcessorPil(size={"height": 24, "width": 24}, resample=3), "vit"),
        (CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size=24), "clip"),
        (CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=24), "clip"),
    ],
)
def test_preprocessing_equals_that_of_transformers(processor, model_type, tmp_path):
    processor.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    steps = preprocessing_from(settings, model_type, 99)
    a_grey_level = 2 * max(steps.affine[0])
    for item in pictures():
        if item.ndim == 3 and min(item.shape[:2]) > 2:
            expected = processor(item, return_tensors="np")["pixel_values"][0]
            np.testing.assert_allclose(steps(item), expected, atol=a_grey_level + 1e-6)


@pytest.mark.parametrize(
    ("settings", "model_type", "message"),
    [
        ({"size": 224, "resample": 2}, "vit", "both sides to 224 (bilinear), (pixel / 255 - 0.5)"),
        ({"size": 256, "crop_size": 224}, "deit", "shorter side to 256 (bicubic), center 224"),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, "convnext", "shorter side to 256"),
        ({}, "clip_vision_model", "both sides to 32 (bicubic), (pixel / 255 - (0.481455,"),
        ({}, "dinov2", "both sides to 32 (bicubic), (pixel / 255 - (0.485,"),
    ],
)
def test_old_and_missing_processor_settings_are_supported(settings, model_type, message):
    assert preprocessing_from(settings, model_type, 32).describe().startswith(message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": {"height": 24, "width": 48}}, "not square"),
        ({"size": {"longest_edge": 24}}, "not supported"),
        ({"size": "large"}, "not supported"),
        ({"resample": 77}, "resample=77"),
        ({"image_std": [0, 0, 0]}, "std"),
        ({"size": {"height": 10**9, "width": 10**9}}, "must be an integer"),
    ],
)
def test_unsupported_processor_settings_are_rejected(settings, message):
    with pytest.raises(EncoderError, match=message):
        preprocessing_from(settings, "vit", 32)


def test_processor_settings_are_read_from_either_file(tmp_path):
    mean = {"size": SIDE, "image_mean": [0.4] * 3}
    write_vision(tmp_path / "plain", "vit", processor=mean)
    write_vision(tmp_path / "nested", "vit")
    nested = json.dumps({"image_processor": mean})
    (tmp_path / "nested" / "processor_config.json").write_text(nested)
    plain, other = (load(f"hf:{tmp_path / name}") for name in ("plain", "nested"))
    assert "0.4" in plain.preprocessing
    assert plain.fingerprint == other.fingerprint


def test_a_size_the_network_cannot_take_is_an_error(tmp_path):
    write_vision(tmp_path, "vit", processor={"size": 48})
    with pytest.raises(EncoderError, match="rejects an image of 48 x 48"):
        load(f"hf:{tmp_path}")


# --- texts ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return folder, *write_bert(folder)


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler", None])
def test_texts_are_pooled_by_the_option(bert, pooling, capsys):
    folder, model, tokenizer = bert
    encoder = load(f"hf:{folder}", pooling=pooling)
    chosen = pooling or "mean"
    assert encoder.name == f"hf:{folder}?pooling={chosen}"
    for text, features in zip(TEXTS, encoder.encode(TEXTS), strict=True):
        with torch.inference_mode():
            output = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False))
        hidden = output.last_hidden_state[0]
        wanted = {"mean": hidden.mean(0), "cls": hidden[0], "pooler": output.pooler_output[0]}
        same(features, wanted[chosen].numpy())
    assert capsys.readouterr() == ("", "")


def test_long_texts_are_truncated_to_the_positions(bert):
    encoder = load(f"hf:{bert[0]}")
    assert encoder.max_tokens == 24
    np.testing.assert_array_equal(*encoder.encode(["cat " * 22, "cat " * 22 + "dog"]))


def test_settings_of_sentence_transformers_are_used(bert, tmp_path):
    plain = load(f"hf:{bert[0]}")
    folder = tmp_path / "sentences"
    shutil.copytree(bert[0], folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    encoder = load(f"hf:{folder}")
    assert (encoder.pooling, encoder.normalize, encoder.max_tokens) == ("cls", True, 5)
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(TEXTS), axis=1), 1, rtol=1e-5)
    assert encoder.fingerprint != plain.fingerprint


def test_the_tokenizer_changes_the_fingerprint(bert, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(bert[0], folder)
    first = load(f"hf:{folder}").fingerprint
    assert first == load(f"hf:{bert[0]}").fingerprint
    content = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(content.replace('"cat"', '"cot"'))
    assert load(f"hf:{folder}").fingerprint != first


# --- missing and damaged files --------------------------------------------------------------------


def test_unavailable_weights_list_the_attempts_and_alternatives(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError) as caught:
        load("hf:somebody/some-model")
    for message in ("folder:", "hub cache: not in", str(tmp_path), "HF_HUB_OFFLINE", "hf:FOLDER"):
        assert message in str(caught.value)
    assert "efficientnet-lite0" in str(caught.value)


def test_the_hub_cache_is_used_offline(folders, monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    commit = "0123456789" * 4
    kept = tmp_path / "models--somebody--some-vit"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    shutil.copytree(folders[0] / "vit", kept / "snapshots" / commit)
    encoder = load("hf:somebody/some-vit")
    assert encoder.name == "hf:somebody/some-vit?pooling=cls"
    assert encoder.fingerprint == load(f"hf:{folders[0] / 'vit'}").fingerprint


@pytest.mark.parametrize("name", ["hf:", "hf:a/b/c/d", "hf:../nowhere", "hf:a b"])
def test_invalid_model_ids_are_rejected(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError, match=r"cannot be loaded|needs a model"):
        load(name)


def damaged(folder, file, content):
    (folder / file).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "no weights"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "save_pretrained"),
        (lambda f: damaged(f, "model.safetensors", b"not weights"), "transformers cannot load"),
        (lambda f: damaged(f, "model.safetensors", b""), "transformers cannot load"),
        (lambda f: damaged(f, "config.json", b"{"), "cannot load|cannot be read"),
        (lambda f: damaged(f, "config.json", b"[]"), "cannot load|not a JSON object"),
        (lambda f: damaged(f, "config.json", b'{"model_type": "nonsense"}'), "cannot load"),
        (lambda f: damaged(f, "preprocessor_config.json", b"[1]"), "not a JSON object"),
        (
            lambda f: damaged(
                f,
                "config.json",
                b'{"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}',
            ),
            "code of its own",
        ),
    ],
)
def test_a_damaged_folder_is_named_in_the_error(folders, tmp_path, damage, message):
    shutil.copytree(folders[0] / "vit", tmp_path / "vit")
    damage(tmp_path / "vit")
    with pytest.raises(EncoderError, match=message) as caught:
        load(f"hf:{tmp_path / 'vit'}")
    assert str(tmp_path / "vit") in str(caught.value)


def test_code_beside_the_weights_is_never_run(folders, tmp_path):
    folder = tmp_path / "vit"
    shutil.copytree(folders[0] / "vit", folder)
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Own", "AutoModel": "own.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    load(f"hf:{folder}")  # transformers has a ViT without it
    assert not ran.exists()


def test_missing_layers_are_an_error(folders, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(folders[0] / "vit", tmp_path / "vit")
    weights = load_file(tmp_path / "vit" / "model.safetensors")
    weights.pop("layernorm.weight")
    save_file(weights, tmp_path / "vit" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EncoderError, match=r"missing, layernorm.weight"):
        load(f"hf:{tmp_path / 'vit'}")


def test_texts_without_a_tokenizer_are_an_error(bert, tmp_path):
    bert[1].save_pretrained(tmp_path / "bert")
    with pytest.raises(EncoderError, match="tokenizer"):
        load(f"hf:{tmp_path / 'bert'}")


def test_a_missing_pooling_layer_is_not_replaced_by_a_random_one(bert, tmp_path):
    BertModel(bert[1].config, add_pooling_layer=False).save_pretrained(tmp_path)
    bert[2].save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match="no layer for pooling"):
        load(f"hf:{tmp_path}", pooling="pooler")
    assert load(f"hf:{tmp_path}").fingerprint == load(f"hf:{tmp_path}").fingerprint


def test_pickled_weights_are_never_used(folders, tmp_path):
    folder = tmp_path / "vit"
    shutil.copytree(folders[0] / "vit", folder)
    torch.save(folders[1]["vit"].state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "adapter.safetensors")
    with pytest.raises(EncoderError, match="transformers cannot load"):
        load(f"hf:{folder}")


def test_a_file_is_not_a_folder(folders):
    with pytest.raises(EncoderError, match="is a file"):
        load(f"hf:{folders[0] / 'vit' / 'config.json'}")


def test_an_unknown_pooling_is_rejected(folders):
    with pytest.raises(EncoderError, match="'cls', 'mean', 'pooler'"):
        load(f"hf:{folders[0] / 'vit'}", pooling="max")


def test_half_precision_is_for_images(bert):
    with pytest.raises(EncoderError, match="half is for images"):
        load(f"hf:{bert[0]}", half=True)

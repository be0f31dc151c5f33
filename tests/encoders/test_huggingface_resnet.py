"""A ResNet-18 of transformers as a network to train: the same features, and other models."""

from __future__ import annotations

import pytest
import torch
from transformers import ResNetConfig, ResNetModel

from fecam.encoders.huggingface_resnet import load_resnet
from fecam.errors import EncoderError, TrainingError
from fecam.learners import transformer_recipe
from fecam.training import TrainingPlan


def saved(folder, **changes):
    config = ResNetConfig(
        **{
            "embedding_size": 4,
            "hidden_sizes": [4, 8, 16, 32],
            "depths": [2, 2, 2, 2],
            "layer_type": "basic",
            **changes,
        }
    )
    torch.manual_seed(0)
    model = ResNetModel(config).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2)
    model.save_pretrained(folder)
    return model


def test_its_features_are_those_of_transformers(tmp_path):
    model = saved(tmp_path)
    images = torch.randn(2, 3, 64, 64)
    network = load_resnet(tmp_path).eval()
    with torch.no_grad():
        expected = model(images).pooler_output.flatten(1)
        torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(network.late(network.early(images)), expected, rtol=1e-4,
                                   atol=1e-5)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"depths": [3, 4, 6, 3]},
        {"layer_type": "bottleneck"},
        {"hidden_sizes": [8, 16, 32, 64]},
    ],
)
def test_another_network_is_an_error(tmp_path, changes):
    saved(tmp_path, **changes)
    with pytest.raises(EncoderError, match="not a ResNet-18"):
        load_resnet(tmp_path)


def test_learners_start_from_its_weights(tmp_path):
    saved(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 32},'
        ' "crop_pct": 0.875, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    recipe = transformer_recipe(f"hf:{tmp_path}", TrainingPlan(epochs=1), device="cpu")
    assert recipe.network().n_features == 32 and recipe.preprocessing.size == 32
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(TrainingError, match="'bert'"):
        transformer_recipe(f"hf:{tmp_path}", TrainingPlan(epochs=1))

"""Small networks with random weights, saved like real ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    DeiTConfig,
    DeiTModel,
    Dinov2Config,
    Dinov2Model,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

SIDE, WIDTH = 32, 32
_SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
_EYES = {**_SIZES, "image_size": SIDE, "patch_size": 8}
_WIDER = {"intermediate_size": 64}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "the", "cat", "dog", "sat", "ran", "on", "mat"]
WORDS += ["very", "##s", "##ly", "quick"]


def _clip_config():
    words = {**_SIZES, **_WIDER, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2}
    return CLIPConfig(vision_config={**_EYES, **_WIDER}, text_config=words, projection_dim=16)


VISION = {
    "vit": lambda: ViTModel(ViTConfig(**_EYES, **_WIDER)),
    "vit-classifier": lambda: ViTForImageClassification(ViTConfig(**_EYES, **_WIDER)),
    "deit": lambda: DeiTModel(DeiTConfig(**_EYES, **_WIDER)),
    "dinov2": lambda: Dinov2Model(Dinov2Config(**_EYES)),
    "clip-vision": lambda: CLIPVisionModel(CLIPVisionConfig(**_EYES, **_WIDER)),
    "clip": lambda: CLIPModel(_clip_config()),
}


def randomised(network, seed=0):
    """Scale the weights up, so that inputs, tokens and layers all change the output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    return network.eval()


def write_vision(folder: Path, name: str, seed: int = 0, processor: dict | None = None):
    """Write a vision model of transformers and return it."""
    model = randomised(VISION[name](), seed)
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


def write_bert(folder: Path, seed: int = 0):
    """Write a BERT and a tokenizer of a few words, and return both."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, sep_token="[SEP]", **names)
    config = BertConfig(**_SIZES, **_WIDER, vocab_size=len(WORDS), max_position_embeddings=24)
    model = randomised(BertModel(config), seed)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return model, fast


def convolutions(seed=0, width=8):
    """A user's network for images."""
    layers = [nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, width, 3)]
    return randomised(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), seed)


def pictures(seed=0):
    """Images of many shapes: small, large, wide, narrow, gray."""
    rng = np.random.default_rng(seed)
    shapes = [(32, 32, 3), (40, 60, 3), (200, 90, 3), (33, 31, 3), (2, 70, 3), (50, 50)]
    # Smooth, as photographs are: noise is averaged away to the same grey everywhere.
    return [_smooth(rng, shape) for shape in shapes]


def _smooth(rng, shape):
    from PIL import Image

    coarse = rng.integers(0, 256, (5, 5, *shape[2:]), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((shape[1], shape[0])))

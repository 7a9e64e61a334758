"""Models straight from the Hugging Face hub: "hf:owner/name" fetches the configuration files, never the weights."""

from __future__ import annotations

from pathlib import Path

from roofline.errors import InputError, MissingDependencyError
from roofline.profiles.hf import config
from roofline.profiles.model import Model

PREFIX = "hf:"
_FILES = ("config.json", "hf_quant_config.json")


def load(name: str) -> Model:
    """The model of a hub repository ("hf:owner/name"), from its config.json and hf_quant_config.json (cached by huggingface_hub).

    Raises MissingDependencyError without the extra `hub`, InputError when the hub does not answer or has no such repository.
    """
    hub_id = name.removeprefix(PREFIX)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingDependencyError("huggingface_hub", "hub", f"fetching {hub_id}") from None
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=list(_FILES)))
    except Exception as error:  # noqa: BLE001  the hub's client raises errors of many libraries
        raise InputError(f"{PREFIX}{hub_id} cannot be fetched: {type(error).__name__}: {str(error).splitlines()[0][:200]}") from None
    model = config.load(folder)
    return model.model_copy(update={"name": hub_id, "source": f"config.json of {hub_id}"})

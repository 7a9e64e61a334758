"""Configurations that wrap a text model: the text part is read by its own family, the vision tower is counted apart."""

from __future__ import annotations

from collections.abc import Callable

from roofline.profiles.hf import vision
from roofline.profiles.hf.draft import Draft
from roofline.profiles.hf.keys import Keys

Family = Callable[[Keys], Draft]


def wrapped(texts: dict[str, Family], prefix: str, head: str = "lm_head") -> Family:
    """A family that reads `text_config` with one of `texts` (by its model_type). prefix, head: module paths in the checkpoint."""

    def read(c: Keys) -> Draft:
        text = c.object("text_config")
        if text is None:
            raise c.fail("text_config", f"the key 'text_config' is missing; a {c.model_type} configuration has its text model there")
        kind = text.text("model_type", next(iter(texts)), tuple(texts))
        for name in ("tie_word_embeddings", "dtype", "torch_dtype"):  # what the wrapper says holds where the part is silent
            if (value := c.raw(name)) is not None:
                text.data = {name: value, **{k: v for k, v in text.data.items() if v is not None or k != name}}
        if c.data.get("tie_word_embeddings") is not None:
            text.data = {**text.data, "tie_word_embeddings": c.data["tie_word_embeddings"]}
        draft = texts[kind](text)
        recipe = text.object("quantization_config")
        if recipe is not None:
            draft.recipe = recipe
        text.finish()
        draft.prefix = prefix
        draft.outer_modules = {"embed_tokens": prefix.replace("layers.", "embed_tokens"), "lm_head": head}
        tower = vision.tower(c, draft.outer["hidden_size"])
        if tower is not None:
            draft.extras.append(tower)
        c.expect("audio_config", None)
        c.expect("multimodal_projector_bias", False)
        c.expect("spatial_merge_size", 2)
        for name in ("vision_soft_tokens_per_image", "mm_tokens_per_image", "ignore_index", "projector_hidden_act", "vision_feature_layer"):
            c.raw(name)  # how images become tokens
        return draft

    return read

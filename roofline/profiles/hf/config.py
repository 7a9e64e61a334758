"""A model from a Hugging Face config.json: every key is used, known not to matter, or refused with its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from roofline.profiles.hf import classic, compressed, dense, headers, hybrid, jsonfile, latent, patterned, quantization
from roofline.profiles.hf.draft import Draft, assemble, model_name
from roofline.profiles.hf.keys import Keys
from roofline.profiles.hf.multimodal import wrapped
from roofline.profiles.model import Model
from roofline.profiles.yamlfile import did_you_mean

TEXT: dict[str, Callable[[Keys], Draft]] = {
    **dense.FAMILIES,
    **latent.FAMILIES,
    **classic.FAMILIES,
    **hybrid.FAMILIES,
    **patterned.FAMILIES,
    **compressed.FAMILIES,
}


def _texts(*names: str) -> dict[str, Callable[[Keys], Draft]]:
    return {name: TEXT[name] for name in names}


_LANGUAGE = "model.language_model.layers."
FAMILIES: dict[str, Callable[[Keys], Draft]] = {
    **TEXT,
    "gemma3": wrapped(_texts("gemma3_text"), "language_model.model.layers.", "language_model.lm_head"),
    "gemma4": wrapped(_texts("gemma4_text"), _LANGUAGE),
    "kimi_k25": wrapped(_texts("kimi_k2", "deepseek_v3"), "language_model.model.layers.", "language_model.lm_head"),
    "llama4": wrapped(_texts("llama4_text"), "language_model.model.layers.", "language_model.lm_head"),
    "mistral3": wrapped(_texts("mistral", "ministral3"), "language_model.model.layers.", "language_model.lm_head"),
    "qwen3_vl": wrapped(_texts("qwen3_vl_text"), _LANGUAGE),
    "qwen3_vl_moe": wrapped(_texts("qwen3_vl_moe_text"), _LANGUAGE),
    "qwen3_5": wrapped(_texts("qwen3_5_text"), _LANGUAGE),
    "qwen3_5_moe": wrapped(_texts("qwen3_5_moe_text"), _LANGUAGE),
}


def load(path: Path | str) -> Model:
    """The model of a config.json, or of the folder that holds one (with its hf_quant_config.json, if there).

    Raises ProfileError with file:line:key for what cannot be read, is not understood or contradicts itself.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    file = jsonfile.read(folder / "config.json" if path.is_dir() else path)
    return read(file, model_name(path), headers.checkpoint(folder))


def read(file: jsonfile.JsonFile, name: str, tensors: Sequence[headers.Tensor] = ()) -> Model:
    """The model of a configuration that has been read; tensors: of the checkpoint's files, for exact bytes. Raises ProfileError."""
    c = Keys(file, file.data)
    family = FAMILIES.get(c.model_type)
    if not isinstance(c.raw("model_type"), str):
        raise c.fail("model_type", "the key 'model_type' is missing or not text; is this the config.json of a language model?")
    if family is None:
        known = sorted(FAMILIES)
        near = f"{did_you_mean(c.model_type, known)} ".lstrip()
        raise c.fail("model_type", f"{c.model_type!r} is not supported; {near}supported: {', '.join(known)}")
    recipe = c.object("quantization_config")
    draft = family(c)
    _quantise(draft, recipe or draft.recipe, _side_file(file.path))
    c.finish()
    if tensors:
        stored, rest = headers.bytes_by_role(tensors, draft)
        if not stored:
            raise file.error(f"does not belong to the safetensors files beside it: none of their tensors is below {draft.prefix!r}")
        draft.outer["checkpoint_bytes"] = stored
        if rest:
            c.assume(f"{rest:,.0f} bytes of other tensors in the files (vision, MTP) are not in the weights of the text model")
    return assemble(draft, file, name, c.model_type, c.assumptions)


def _side_file(config: Path) -> Keys | None:
    """The recipe in hf_quant_config.json beside a configuration, if there is one."""
    path = config.parent / "hf_quant_config.json"
    return quantization.side_recipe(jsonfile.read(path)) if path.is_file() else None


def _quantise(draft: Draft, config: Keys | None, side: Keys | None) -> None:
    """Applies the recipe of the configuration, else that of the file beside it; a mixed one beside adds to the configuration's."""
    layers = len(draft.layers) + sum(len(extra.layers) for extra in draft.extras)
    recipes = []
    for keys in (config, side):
        if keys is not None and keys.data:
            quantization.check_layers(keys, layers)
            recipes.append(quantization.recipe_of(keys))
    if recipes:
        quantization.apply(draft, recipes[0], draft.outer["dtype"])

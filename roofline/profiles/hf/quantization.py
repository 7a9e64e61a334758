"""Quantisation recipes: which matrix of which layer is stored in which format.

A recipe is read from `quantization_config` (fp8, AWQ, GPTQ, compressed-tensors, bitsandbytes, mxfp4, modelopt) or from
`hf_quant_config.json`, and then asked for every matrix by the path that the module has in the checkpoint.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from roofline.profiles.hf.draft import Draft
from roofline.profiles.hf.irrelevant import RECIPE_IRRELEVANT
from roofline.profiles.hf.jsonfile import JsonFile
from roofline.profiles.hf.keys import Keys
from roofline.profiles.hf.tensornames import present, role_of
from roofline.profiles.model import Layer

IGNORE_KEYS = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "llm_int8_skip_modules")


@dataclass(frozen=True)
class Recipe:
    """Formats by module path. listed: (patterns, format or None for unquantised), first match wins; else `default`.

    head: whether the default also holds for the language-model head.
    """

    default: str | None
    listed: tuple[tuple[re.Pattern[str], str | None], ...] = ()
    kv: str | None = None
    head: bool = False

    def format(self, module: str, *, by_name: bool = False) -> str | None:
        """The format of a module, None when it is not quantised; by_name: only a module that the recipe lists is."""
        for pattern, found in self.listed:
            if pattern.fullmatch(module):
                return found
        return None if by_name else self.default


def pattern(text: str) -> re.Pattern[str]:
    """A module pattern as checkpoints write them: a path or the end of one, * as a wildcard, or "re:" and an expression.

    A path also stands for the modules below it. Raises ValueError for an expression that cannot be compiled.
    """
    if text.startswith("re:"):
        try:
            return re.compile(f"(?:{text[3:]}).*")
        except re.error as error:
            raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    body = fnmatch.translate(text).removesuffix("\\Z").removesuffix("\\z")
    return re.compile(rf"(?:.*\.)?(?:{body})(?:\..*)?")


def recipe_of(config: Keys) -> Recipe:
    """The recipe in a quantization_config object (or the `quantization` object of hf_quant_config.json). Raises ProfileError."""
    method = config.text("quant_method", "modelopt" if config.has("quant_algo") else None)
    reader = _METHODS.get(method)
    if reader is None:
        raise config.fail("quant_method", f"{method!r} is not supported; supported: {', '.join(_METHODS)}")
    found, kv = reader(config), _kv(config)
    ignored = tuple((_compiled(config, key, i, text), None) for key, i, text in _ignored(config))
    if method == "fp8" and found.listed:
        ignored = ()
    config.finish(RECIPE_IRRELEVANT)
    return Recipe(found.default, found.listed + ignored, kv, found.head)


def _ignored(config: Keys) -> Iterable[tuple[str, int, str]]:
    for key in IGNORE_KEYS:
        for i, text in enumerate(config.items(key) or ()):
            if not isinstance(text, str):
                raise config.file.error(f"must be the name of a module, found {text!r}", (*config.loc, key, i))
            yield key, i, text


def _compiled(config: Keys, key: str, i: int | str, text: str) -> re.Pattern[str]:
    try:
        return pattern(text)
    except ValueError as error:
        raise config.file.error(str(error), (*config.loc, key, i)) from None


def _kv(config: Keys) -> str | None:
    """Format of the KV cache, where the checkpoint has scales for it."""
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        value = config.raw(key)
        if isinstance(value, Mapping):
            named = {"8 float": "FP8", "8 int": "INT8", "4 float": "NVFP4"}
            value = named.get(f"{value.get('num_bits')} {value.get('type')}", value)
        if value is None:
            continue
        known = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4", "NONE": None}
        if not isinstance(value, str) or value.upper() not in known:
            raise config.fail(key, f"{value!r} is not supported; supported: {', '.join(known)}")
        return known[value.upper()]
    return None


def _fp8(config: Keys) -> Recipe:
    block = config.items("weight_block_size")
    listed: tuple[tuple[re.Pattern[str], str | None], ...] = ()
    if config.raw("quant_algo") is not None or config.raw("quantized_layers") is not None:
        listed = _modelopt(config).listed  # what it ignores keeps the fp8 of the checkpoint that it started from
    if block is None:
        return Recipe("fp8", listed)
    if block != [128, 128]:
        raise config.fail("weight_block_size", f"{block} is not supported; supported: [128, 128]")
    return Recipe("fp8_block", listed)


def _integer(config: Keys, key: str, zero_bits: int) -> Recipe:
    bits, group = config.whole(config.first(key, "w_bit", "bits")), config.whole(config.first("group_size", "q_group_size"), -1, minimum=-1)
    if bits not in (2, 3, 4, 8):
        raise config.fail(key, f"is {bits}; supported: 2, 3, 4, 8")
    head = config.flag("lm_head")
    if group <= 0:
        return Recipe({8: "w8a16", 4: "int4"}.get(bits, f"int{bits}"), head=head)
    return Recipe(f"int{bits}_g{group}_s{16 + (zero_bits or bits)}", head=head)


def _awq(config: Keys) -> Recipe:
    zero = config.flag("zero_point", True)
    found = _integer(config, "bits", 0)
    return found if zero or found.default is None else Recipe(re.sub(r"_s\d+$", "_s16", found.default), head=found.head)


def _gptq(config: Keys) -> Recipe:
    config.flag("sym", True)  # zero points are stored either way
    dynamic = config.raw("dynamic")
    if dynamic:
        raise config.fail("dynamic", "recipes per module are not supported for GPTQ; give the safetensors headers or --weights")
    return _integer(config, "bits", 0)


def _bitsandbytes(config: Keys) -> Recipe:
    if config.flag("load_in_8bit"):
        config.raw("load_in_4bit"), config.raw("bnb_4bit_quant_type"), config.raw("bnb_4bit_use_double_quant")
        return Recipe("int8")
    if not config.flag("load_in_4bit"):
        raise config.fail("load_in_4bit", "neither load_in_4bit nor load_in_8bit is true")
    config.text("bnb_4bit_quant_type", "nf4", ("nf4", "fp4"))
    return Recipe("nf4" if config.flag("bnb_4bit_use_double_quant") else "int4_g64_s32")


def _mxfp4(config: Keys) -> Recipe:
    return Recipe("mxfp4")


_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "FP8_PB_REAL": "fp8_block",
    "MXFP8": "mxfp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "w4a16_nvfp4",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A16_AWQ": "int4_g128_s16",
    "W4A8_AWQ": "int4_g128_s16",
    "W8A16": "w8a16",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "INT8_SQ": "int8",
}


def _algorithm(config: Keys, name: Any, group: Any, loc: tuple[str | int, ...]) -> str:
    if not isinstance(name, str) or name not in _ALGORITHMS:
        raise config.file.error(f"{name!r} is not supported; supported: {', '.join(_ALGORITHMS)}", (*config.loc, *loc))
    found = _ALGORITHMS[name]
    native = {"nvfp4": 16, "w4a16_nvfp4": 16, "mxfp4": 32, "mxfp8": 32, "int4_g128_s16": 128}.get(found)
    if group is not None and native is not None and group != native:
        if found == "int4_g128_s16" and isinstance(group, int):
            return f"int4_g{group}_s16"
        raise config.file.error(f"groups of {group!r} are not supported for {name}; supported: {native}", (*config.loc, *loc))
    return found


def _modelopt(config: Keys) -> Recipe:
    """NVIDIA ModelOpt: one algorithm with excluded modules, or MIXED_PRECISION with every quantised module listed."""
    algorithm, group = config.text("quant_algo"), config.raw("group_size")
    config.raw("config_groups")  # says the same in another form
    quantized = config.object("quantized_layers")
    if algorithm != "MIXED_PRECISION":
        return Recipe(_algorithm(config, algorithm, group, ("quant_algo",)), head=True)
    if quantized is None:
        raise config.fail("quantized_layers", "is missing; a MIXED_PRECISION recipe lists its modules there")
    by_format: dict[str, list[str]] = {}
    for name, entry in quantized.data.items():
        if not isinstance(entry, Mapping):
            raise quantized.fail(name, "must be an object with quant_algo")
        loc = ("quantized_layers", name, "quant_algo")
        found = _algorithm(config, entry.get("quant_algo"), entry.get("group_size"), loc)
        by_format.setdefault(found, []).append(name)
    return Recipe(None, tuple((_any_of(names), found) for found, names in by_format.items()), head=True)


def _any_of(names: list[str]) -> re.Pattern[str]:
    """One pattern for many exact module paths and what is below them."""
    return re.compile(r"(?:.*\.)?(?:" + "|".join(map(re.escape, names)) + r")(?:\..*)?")


def _compressed_tensors(config: Keys) -> Recipe:
    groups = config.object("config_groups")
    if groups is None or not groups.data:
        raise config.fail("config_groups", "is missing; a compressed-tensors recipe has its formats there")
    default, listed = None, []
    for name in groups.data:
        group = groups.object(name)
        assert group is not None  # noqa: S101  names come from the object itself
        found = _scheme(group)
        for i, target in enumerate(group.items("targets") or ["Linear"]):
            if target == "Linear":
                default = found
            else:
                listed.append((_compiled(group, "targets", i, str(target)), found))
        for key in ("input_activations", "output_activations", "format"):
            group.raw(key)
        group.finish()
    # ignored modules win over targets; recipe_of appends them, so they go first here
    ignored = tuple((_compiled(config, key, i, text), None) for key, i, text in _ignored(config))
    return Recipe(default, ignored + tuple(listed), head=True)


def _scheme(group: Keys) -> str:
    """Format of the weights of one group of compressed-tensors."""
    weights = group.object("weights")
    if weights is None:
        raise group.fail("weights", "is missing")
    bits, kind = weights.whole("num_bits"), weights.text("type", "int", ("int", "float"))
    size = weights.whole("group_size", optional=True, minimum=-1)
    strategy = weights.raw("strategy") or ("group" if size and size > 0 else "tensor")
    symmetric = weights.flag("symmetric", True)
    activations = group.raw("input_activations")
    if kind == "float" and bits == 8:
        block = weights.raw("block_structure")
        if strategy == "block":
            if block not in ([128, 128], "128x128", None):
                raise weights.fail("block_structure", f"{block!r} is not supported; supported: [128, 128]")
            return "fp8_block"
        if strategy == "group" and size == 32:
            return "mxfp8"
        return "fp8" if activations else "w8a16_fp8"
    if kind == "float" and bits == 4 and size in (16, 32):
        return "mxfp4" if size == 32 else "nvfp4" if activations else "w4a16_nvfp4"
    if kind == "int" and bits in (2, 3, 4, 8):
        if size and size > 0:
            return f"int{bits}_g{size}_s{16 if symmetric else 16 + bits}"
        if bits == 8:
            return "int8" if activations else "w8a16"
        raise weights.fail("group_size", f"int{bits} without groups is not supported")
    raise weights.fail("num_bits", f"{bits}-bit {kind} weights in groups of {size} are not supported")


_METHODS = {
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}


Formats = dict[tuple[str, str], str]  # (role, tensor name) → format


def apply(draft: Draft, recipe: Recipe, plain: str) -> None:
    """Sets the storage formats of a draft's layers, head and KV cache. plain: the dtype of what is not quantised."""
    formats = [_layer_formats(draft, layer, f"{draft.prefix}{i}.", recipe, plain) for i, (_, layer) in enumerate(draft.layers)]
    index = len(draft.layers)
    for extra in draft.extras:
        start = index if extra.prefix is None else 0
        prefix = draft.prefix if extra.prefix is None else extra.prefix
        formats += [_layer_formats(draft, layer, f"{prefix}{start + i}.", recipe, plain) for i, (_, layer) in enumerate(extra.layers)]
        index += len(extra.layers) if extra.prefix is None else 0
    shared = _common(formats, plain)
    pairs = iter(formats)
    draft.layers = [(kind, _with_weights(layer, next(pairs), shared)) for kind, layer in draft.layers]
    for extra in draft.extras:
        extra.layers = [(kind, _with_weights(layer, next(pairs), shared)) for kind, layer in extra.layers]
    weights = dict(shared)
    head = recipe.format(draft.outer_modules["lm_head"])
    if head is not None and (recipe.head or recipe.default != head) and not draft.outer["tie_word_embeddings"]:
        weights["lm_head"] = head
    draft.outer |= {"weights": weights, "kv_dtype": recipe.kv}


def _layer_formats(draft: Draft, layer: Layer, prefix: str, recipe: Recipe, plain: str) -> Formats:
    """Format of each matrix of a layer. A router is no linear module: it stays plain unless it is listed."""
    found = {}
    for name in present(layer):
        if name in draft.modules:
            module, role = prefix + draft.modules[name].replace("*", "0"), role_of(name, layer)
            listed = recipe.format(module, by_name=role == "router" or name in draft.fixed)
            found[role, name] = listed or draft.fixed.get(name) or plain
    return found


def _common(formats: list[Formats], plain: str) -> dict[str, str]:
    """The formats that hold for the whole model: the most used one as default, and roles that have one format everywhere."""
    used = Counter(found for layer in formats for (role, _), found in layer.items() if found != plain and role != "router")
    if not used:
        return {}
    default = used.most_common(1)[0][0]
    by_role: dict[str, set[str]] = {}
    for layer in formats:
        for (role, _), found in layer.items():
            by_role.setdefault(role, set()).add(found)
    shared = {"default": default}
    for role, found_ in by_role.items():
        usual = plain if role == "router" else default
        if len(found_) == 1 and found_ != {usual}:
            shared[role] = next(iter(found_))
    return shared


def _with_weights(layer: Layer, formats: Formats, shared: dict[str, str]) -> Layer:
    """The layer with what differs from the model's formats, by role where all tensors of the role agree."""
    own: dict[str, str] = {}
    for role in dict.fromkeys(role for role, _ in formats):
        mine = {name: found for (of, name), found in formats.items() if of == role}
        usual = shared.get(role) if role == "router" else shared.get(role, shared.get("default"))
        if len(set(mine.values())) == 1:
            only = next(iter(mine.values()))
            if usual is not None and only != usual:
                own[role] = only
        else:
            own |= {name: found for name, found in mine.items() if found != usual}
    return layer.model_copy(update={"weights": own}) if own else layer


def check_layers(config: Keys, layers: int) -> None:
    """Refuses a recipe that quantises layers which the model does not have. layers: those of the decoder and of MTP."""
    number = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")
    quantized = config.data.get("quantized_layers")
    names = [(("quantized_layers", name), name) for name in quantized] if isinstance(quantized, Mapping) else []
    groups = config.data.get("config_groups")
    for group, entry in groups.items() if isinstance(groups, Mapping) else ():
        targets = entry.get("targets") if isinstance(entry, Mapping) else None
        names += [(("config_groups", group, "targets", i), str(t)) for i, t in enumerate(targets or ())]  # type: ignore[misc]
    for loc, name in names:
        match = number.search(name)
        if match and int(match[1]) >= layers:
            raise config.file.error(f"quantises layer {match[1]}; the model has layers 0 to {layers - 1}", (*config.loc, *loc))


def side_recipe(file: JsonFile) -> Keys:
    """The `quantization` object of a hf_quant_config.json."""
    top = Keys(file, file.data)
    top.raw("producer")
    found = top.object("quantization")
    if found is None:
        raise top.fail("quantization", "the key 'quantization' is missing")
    top.finish()
    return found

"""Writes modelprofiles/*.yaml from configurations: those of a folder of checkpoints, and public geometries listed here.

Run from the checkout: python scripts/generate_models.py CONFIGS_FOLDER. The profiles are then read by hand; a profile that
is already there is overwritten only with --force.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model_facts import CHECKPOINTS, PUBLIC, TINY, UNQUANTISED

from roofline.profiles import modelfile
from roofline.profiles.hf import config, jsonfile
from roofline.profiles.model import Model

TARGET = Path(__file__).resolve().parents[1] / "modelprofiles"


def named(model: Model, name: str, hf_ids: list[str], aliases: list[str], source: str, assumptions: list[str]) -> Model:
    """The model under its profile name."""
    data = model.model_dump() | {"name": name, "hf_ids": hf_ids, "aliases": aliases, "source": source}
    data["assumptions"] = [*data["assumptions"], *assumptions]
    return Model.model_validate(data)


def from_facts(name: str, facts: dict[str, Any]) -> Model:
    """A model of a public geometry, through the same reader as any configuration."""
    text = json.dumps(facts["config"])
    model = config.read(jsonfile.parse(text, Path(f"{name}.json")), name)
    return named(model, name, facts.get("hf_ids", []), facts.get("aliases", []), facts["source"], facts.get("assumptions", []))


def main() -> None:
    """Writes all profiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configs", type=Path)
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args()
    models = []
    for folder, facts in CHECKPOINTS.items():
        hub = folder.replace("--", "/", 1)
        model = config.load(options.configs / folder)
        source = f"config.json of {hub}"
        models.append(named(model, facts["name"], [hub, *facts.get("hf_ids", [])], facts.get("aliases", []), source, []))
    for folder, facts in UNQUANTISED.items():
        text = (options.configs / folder / "config.json").read_text(encoding="utf-8")
        source = f"config.json of {folder.replace('--', '/', 1)} without its quantisation"
        model = config.read(jsonfile.parse(text, Path("config.json")), facts["name"])
        models.append(named(model, facts["name"], facts["hf_ids"], [], source, []))
    models += [from_facts(name, facts) for name, facts in {**PUBLIC, **TINY}.items()]
    for model in models:
        path = TARGET / f"{model.name}.yaml"
        if options.force or not path.exists():
            path.write_text(modelfile.dump(model), encoding="utf-8")
            if modelfile.load(path) != model:
                raise SystemExit(f"{path} does not read back as it was written")
    print(f"{len(models)} models, {len(list(TARGET.glob('*.yaml')))} profiles in {TARGET.name}/")


if __name__ == "__main__":
    main()

"""One of two tensor-parallel ranks of test_parallel: runs every kind of model and lets rank 0 write what it said."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from roofline.engine.build import Options, build_engine, check
from roofline.engine.parallel import Ranks
from roofline.engine.runner import Row
from roofline.engine.sampler import Sampling
from roofline.scheduling import VllmConfig
from tests.engine import tiny


def main(path: Path) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    ranks.connect("cpu")
    found = {}
    for kind in ("llama", "window", "moe", "mla"):
        setup = check(tiny.model(kind), Options(dtype="fp64", block_size=4, num_blocks=24), ranks=ranks)
        engine = build_engine(setup, setup.scheduler(VllmConfig(max_num_batched_tokens=16, max_num_seqs=6)), debug=True)
        for seed in range(6):
            engine.add_request(str(seed), tiny.prompt(seed, 6 + seed), 8, Sampling(temperature=0.7 * (seed % 2), seed=seed))
        outputs = tiny.finish(engine)
        logits = engine.runner.run([Row(tiny.prompt(9, 12), 0, [1, 2, 3], 12)])[0]
        found[kind] = {"outputs": outputs, "logits": logits.tolist(), "agreed": ranks.agree(ranks.rank + 1.5)}
    if ranks.rank == 0:
        path.write_text(json.dumps(found), encoding="utf-8")
    ranks.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

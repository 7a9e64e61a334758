"""Trains a byte-level target and a smaller draft on this package's source: `python scripts/train_draft_pair.py FOLDER`.

The engine's demonstrations of speculation and of quantised KV need models that know some text. A few CPU minutes are enough for
that: FOLDER gets `target`, `draft` (Hugging Face format) and `held_out.txt`, which neither has seen.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import transformers

SOURCE = Path(__file__).parents[1] / "roofline"
LENGTH, BATCH = 256, 4


def train(text: torch.Tensor, layers: int, hidden: int, steps: int, limit_s: float, folder: Path) -> None:
    """A Llama over bytes, `steps` steps or `limit_s` seconds, whichever ends first."""
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=hidden, intermediate_size=hidden * 8 // 3 // 32 * 32, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
    began = time.monotonic()
    losses: list[float] = []
    while len(losses) < steps and time.monotonic() - began < limit_s:
        starts = torch.randint(0, len(text) - LENGTH - 1, (BATCH,))
        tokens = torch.stack([text[start : start + LENGTH] for start in starts])
        loss = model(tokens, labels=tokens).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    model.save_pretrained(folder)
    print(f"{folder.name}: {len(losses)} steps, last loss {losses[-1]:.3f} nats per byte", file=sys.stderr)


def main() -> None:
    """Both models and the held-out text."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = Path(sys.argv[1])
    text = b"\n".join(path.read_bytes() for path in sorted(SOURCE.rglob("*.py")))
    cut = len(text) * 95 // 100
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "held_out.txt").write_bytes(text[cut:])
    seen = torch.tensor(list(text[:cut]), dtype=torch.long)
    train(seen, 1, 128, 500, 150, folder / "draft")
    train(seen, 4, 256, 350, 500, folder / "target")


if __name__ == "__main__":
    main()

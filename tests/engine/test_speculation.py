"""Speculation changes how many passes a text takes, never the text: greedy ones token by token, sampled ones in distribution."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy import stats

from roofline.engine.build import Speculation, check
from roofline.engine.sampler import Sampling, probabilities
from roofline.engine.speculation import Asked, Draft, NgramDrafter, Sequence, verify
from roofline.errors import InputError
from roofline.scheduling import VllmConfig
from tests.engine import tiny

FALSE_ALARM = 1e-6
"""Chance that a statistical test here fails for a correct engine, were its seeds drawn anew."""

DRAFTERS = {
    "ngram": Speculation("ngram", 3),
    "a model that knows nothing": Speculation("model", 3, tiny.model("window")),
    "the target itself": Speculation("model", 4, tiny.model("llama")),
}


@pytest.mark.parametrize("blocks", [256, 30], ids=["ample", "short of blocks"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_speculation_is_the_greedy_target(name: str, blocks: int) -> None:
    config = VllmConfig(max_num_batched_tokens=24, max_num_seqs=6)
    engine = tiny.engine("llama", config, speculation=DRAFTERS[name], num_blocks=blocks)
    prompts = {str(seed): (tiny.prompt(seed, 4) * 8)[: 9 + 2 * seed] for seed in range(8)}
    requests = [engine.add_request(key, text, 20) for key, text in prompts.items()]
    drafted = accepted = 0
    outputs: dict[str, list[int]] = {}
    while (step := engine.step()) is not None:
        for row in step.rows:
            drafted += row.drafts
            accepted += (len(step.emitted[row.request.request_id]) - 1) if row.drafts else 0
        for key, tokens in step.emitted.items():
            outputs.setdefault(key, []).extend(tokens)
    assert outputs == {key: tiny.alone("llama", tuple(text), 20) for key, text in prompts.items()}
    assert drafted > 0
    if name == "the target itself":
        assert accepted == drafted
    if blocks == 30:
        assert sum(request.num_preemptions for request in requests) > 0


def test_a_stop_token_among_accepted_drafts_ends_the_text() -> None:
    text = tiny.prompt(1, 10)
    free = tiny.alone("llama", tuple(text), 12)
    engine = tiny.engine("llama", speculation=DRAFTERS["the target itself"])
    engine.add_request("a", text, 12, Sampling(stop=(free[6],)))
    assert tiny.finish(engine)["a"] == free[: free.index(free[6]) + 1]
    assert engine.scheduler.gauges[2] == 0


def fits(counts: Counter[int], p: torch.Tensor) -> bool:
    """Whether counts may come from `p`: chi-square over the tokens, rare ones together."""
    total = sum(counts.values())
    expected = (p.double() * total).tolist()
    common = [token for token, each in enumerate(expected) if each >= 8]
    observed = [counts[token] for token in common] + [total - sum(counts[token] for token in common)]
    wanted = [expected[token] for token in common] + [total - sum(expected[token] for token in common)]
    if wanted[-1] < 1e-6:
        assert observed.pop() == 0
        wanted.pop()
    scale = sum(observed) / sum(wanted)
    return float(stats.chisquare(observed, [each * scale for each in wanted]).pvalue) > FALSE_ALARM


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("kind", ["model", "ngram"])
def test_verified_tokens_have_the_targets_distribution(kind: str, top_p: float) -> None:
    """The first emitted token follows p; the second, where the first draft was kept, follows the next p."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 12, generator=generator) * 1.5
    q_logits = torch.randn(12, generator=generator) * 1.5
    first, second = Counter[int](), Counter[int]()
    for seed in range(6000):
        how = Sampling(temperature=1.3, top_p=top_p, seed=seed)
        q = probabilities(q_logits, how)
        token = int(torch.searchsorted(q.double().cumsum(-1), how.uniform(5, "draft") * 0.9999999)) if kind == "model" else 4
        drafts = [Draft(token, q if kind == "model" else None), Draft(7, None)]
        emitted = verify(logits, drafts, how, 5)
        first[emitted[0]] += 1
        if len(emitted) > 1:
            second[emitted[1]] += 1
    p = probabilities(logits, Sampling(temperature=1.3, top_p=top_p))
    assert fits(first, p[0])
    assert fits(second, p[1])


@pytest.mark.parametrize("name", ["ngram", "a model that knows nothing"])
def test_sampled_speculation_has_the_targets_distribution(name: str) -> None:
    """The third token of many runs against its exact distribution, which sums over all first and second tokens."""
    text = tiny.prompt(2, 3) * 3
    how = Sampling(temperature=0.35)
    engine = tiny.engine("llama", VllmConfig(max_num_batched_tokens=2048, max_num_seqs=64), speculation=DRAFTERS[name], num_blocks=2000)
    runs = 1500
    for seed in range(runs):
        engine.add_request(str(seed), text, 4, Sampling(temperature=0.35, seed=seed))
    outputs = tiny.finish(engine)
    counts = Counter(tokens[2] for tokens in outputs.values())
    assert fits(counts, exact_third(text, how))


def exact_third(text: list[int], how: Sampling) -> torch.Tensor:
    """p(third) = Σ p(first) p(second | first) p(third | both), by running every beginning that matters."""
    from roofline.engine.kvcache import KvFormat, build_cache
    from roofline.engine.runner import Row, Runner

    runner = Runner(tiny.decoder(), build_cache(tiny.model(), 2001, 4, KvFormat(torch.float64), 1, tiny.CPU), 4, tiny.CPU)

    def after(texts: list[list[int]]) -> torch.Tensor:
        rows = [Row(each, 0, range(1 + 4 * at, 5 + 4 * at), 1) for at, each in enumerate(texts)]
        return torch.cat([probabilities(logits, how) for logits in runner.run(rows)])

    beginnings = {(): 1.0}
    for _ in range(2):
        following = after([[*text, *beginning] for beginning in beginnings])
        beginnings = {
            (*beginning, token): weight * float(p)
            for (beginning, weight), row in zip(beginnings.items(), following, strict=True)
            for token, p in enumerate(row)
            if weight * float(p) > 1e-5
        }
    keys = list(beginnings)
    total = torch.zeros(tiny.VOCAB, dtype=torch.float64)
    for at in range(0, len(keys), 400):
        part = keys[at : at + 400]
        weights = torch.tensor([beginnings[key] for key in part], dtype=torch.float64)
        total += weights @ after([[*text, *key] for key in part]).double()
    assert math.isclose(float(total.sum()), 1, abs_tol=0.03)
    return total / total.sum()


def test_ngram_drafts_continue_the_latest_match_of_the_longest_tail() -> None:
    drafter = NgramDrafter(3)

    def drafts(tokens: list[int], wanted: int = 3) -> list[int]:
        return [draft.token for draft in drafter.propose([Asked(Sequence(tokens, Sampling()), 0, [], wanted)])[0]]

    assert drafts([1, 2, 3, 9, 8, 1, 2, 3, 7, 6, 5, 1, 2, 3]) == [7, 6, 5]
    assert drafts([1, 2, 3, 9, 8, 4, 2, 3]) == [9, 8, 4]
    assert drafts([5, 6, 7]) == []
    assert drafts([5, 5, 5, 5], 2) == [5]


def test_speculation_that_cannot_be() -> None:
    with pytest.raises(InputError, match="vocabulary"):
        check(tiny.model(), tiny.setup().options, speculation=Speculation("model", 2, tiny.model(vocab_size=77)))
    with pytest.raises(InputError, match="at least 1 token"):
        Speculation("ngram", 0)
    with pytest.raises(InputError, match="does not verify drafts"):
        check(tiny.model(), tiny.setup().options, speculation=Speculation("ngram", 2)).static_scheduler(4)

"""What is asked for is what is answered: streams equal whole answers equal the model computed without a cache."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roofline.engine.build import Speculation
from roofline.engine.sampler import Sampling
from roofline.engine.server.text import WordText
from tests.engine import tiny
from tests.engine.server.serving import Client, model, serving

PROMPT = tiny.prompt(1, 13)
GREEDY = tiny.alone("llama", tuple(PROMPT), 12)
BODY: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}


def run(test: Any, *args: Any, **settings: Any) -> None:
    """Runs an async test with a server."""

    async def within() -> None:
        async with serving(*args, **settings) as client:
            await test(client)
            await client.idle()

    asyncio.run(within())


def words(tokens: list[int]) -> str:
    return " ".join(f"t{token}" for token in tokens)


def test_a_stream_is_the_whole_answer_is_the_model() -> None:
    async def test(client: Client) -> None:
        status, whole = await client.post(BODY | {"return_token_ids": True})
        stream = await client.stream(BODY)
        assert (status, stream.status, stream.done) == (200, 200, True)
        [choice] = whole["choices"]
        assert choice["token_ids"] == stream.tokens() == GREEDY
        assert choice["text"] == stream.text() == words(GREEDY)
        assert choice["finish_reason"] == stream.choice()[-1]["finish_reason"] == "length"
        assert [each["finish_reason"] for each in stream.choice()[:-1]] == [None] * 11
        expected = {"prompt_tokens": 13, "completion_tokens": 12, "total_tokens": 25}
        assert whole["usage"] == expected | {"prompt_tokens_details": {"cached_tokens": 0}}
        assert stream.events[-1]["choices"] == []
        assert stream.events[-1]["usage"] == expected | {"prompt_tokens_details": {"cached_tokens": 12}}
        assert {event["object"] for event in stream.events} == {"text_completion"}

    run(test)


def test_chat() -> None:
    async def test(client: Client) -> None:
        messages = [{"role": "system", "content": "t1 t2"}, {"role": "user", "content": [{"type": "text", "text": "t3"}]}]
        prompt = WordText(tiny.VOCAB).encode("system: t1 t2 user: t3 assistant:")
        expected = tiny.alone("llama", tuple(prompt), 5)
        body = {"messages": messages, "max_completion_tokens": 5, "temperature": 0}
        stream = await client.stream(body, "chat/completions")
        assert stream.choice()[0]["delta"] == {"role": "assistant", "content": ""}
        assert (stream.text(), stream.tokens(), stream.done) == (words(expected), expected, True)
        _, whole = await client.post(body, "chat/completions")
        assert whole["object"] == "chat.completion"
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": words(expected)}
        assert whole["usage"]["prompt_tokens"] == len(prompt)
        _, rest = await client.post({"messages": messages, "temperature": 0}, "chat/completions")
        assert rest["usage"]["total_tokens"] == 256  # without a limit up to the longest sequence

    run(test)


def test_seeds_choices_and_prompts() -> None:
    prompts = [tiny.prompt(2, 5), tiny.prompt(3, 9)]
    expected = [tiny.alone("llama", tuple(p), 6, Sampling(0.9, 0.8, seed=41 + i)) for p in prompts for i in range(2)]

    async def test(client: Client) -> None:
        body = {"prompt": prompts, "n": 2, "seed": 41, "temperature": 0.9, "top_p": 0.8, "max_tokens": 6}
        stream = await client.stream(body)
        assert [stream.tokens(index) for index in range(4)] == expected
        _, whole = await client.post(body)
        assert [choice["text"] for choice in whole["choices"]] == [words(tokens) for tokens in expected]
        assert whole["usage"] == {
            "prompt_tokens": 14, "completion_tokens": 24, "total_tokens": 38, "prompt_tokens_details": {"cached_tokens": 12},
        }  # fmt: skip

    run(test)


def test_drafts_change_nothing() -> None:
    async def test(client: Client) -> None:
        assert (await client.stream(BODY)).tokens() == GREEDY

    setup = tiny.setup()
    from roofline.engine import build as engine_build
    from roofline.engine.server.run import build

    drafting = engine_build.check(setup.model, setup.options, speculation=Speculation("ngram", 3))
    run(test, build(drafting, WordText(tiny.VOCAB), tiny.VllmConfig(max_num_batched_tokens=32, max_num_seqs=8), debug=True))


@pytest.mark.parametrize("at", [0, 4, 11])
def test_stop_strings_end_the_text_and_the_work(at: int) -> None:
    stop = words(GREEDY)[: len(words(GREEDY[: at + 1]))][-3:]
    kept = words(GREEDY)[: words(GREEDY).index(stop)]

    async def test(client: Client) -> None:
        for body in (BODY | {"stop": stop}, BODY | {"stop": ["never said", stop]}):
            _, whole = await client.post(body)
            stream = await client.stream(body)
            choice, last = whole["choices"][0], stream.choice()[-1]
            assert choice["text"] == stream.text() == kept
            assert choice["finish_reason"] == last["finish_reason"] == "stop"
            assert choice["stop_reason"] == last["stop_reason"] == stop

    run(test)


def test_stop_tokens_end_of_text_and_least_lengths() -> None:
    end = GREEDY[3]
    first = GREEDY.index(end)

    async def test(client: Client) -> None:
        for more, length, reason in (
            ({}, first + 1, "stop"),
            ({"ignore_eos": True}, 12, "length"),
            ({"min_tokens": 12}, 12, "stop" if GREEDY[11] == end else "length"),
        ):
            _, whole = await client.post(BODY | more)
            choice = whole["choices"][0]
            assert (whole["usage"]["completion_tokens"], choice["finish_reason"], choice["stop_reason"]) == (length, reason, None)
            assert choice["text"] == words(GREEDY[: length - (reason == "stop")])
        _, whole = await client.post(BODY | {"ignore_eos": True, "stop_token_ids": [GREEDY[0]]})
        assert whole["choices"][0] | {"text": ""} == {
            "index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": GREEDY[0],
        }  # fmt: skip

    run(test, model(WordText(tiny.VOCAB, (end,))))


@pytest.mark.parametrize(
    ("more", "status", "param", "says"),
    [
        ({"model": "other"}, 404, "model", "does not exist"),
        ({"prompt": ""}, 400, "prompt", "no token"),
        ({"prompt": []}, 400, "prompt", "no token"),
        ({"prompt": [1, 61]}, 400, "prompt", "token 61 is not in the vocabulary of 61"),
        ({"prompt": [1.5]}, 400, "prompt", "valid"),
        ({"prompt": {"a": 1}}, 400, "prompt", "valid"),
        ({"prompt": [5] * 256}, 400, "prompt", "maximum context length is 256"),
        ({"max_tokens": 10**30}, 400, "max_tokens", "maximum context length is 256"),
        ({"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": "many"}, 400, "max_tokens", "valid integer"),
        ({"max_tokens": True}, 400, "max_tokens", "valid integer"),
        ({"min_tokens": 13}, 400, "min_tokens", "more than max_tokens"),
        ({"temperature": -0.1}, 400, "temperature", "greater than or equal to 0"),
        ({"top_p": 0}, 400, "top_p", "greater than 0"),
        ({"n": 129}, 400, "n", "less than or equal to 128"),
        ({"n": 100, "prompt": [[1], [2]]}, 400, "n", "at most 128"),
        ({"stop": ["a"] * 17}, 400, "stop", "at most 16"),
        ({"seed": "x"}, 400, "seed", "valid integer"),
        ({"stream": "yes"}, 400, "stream", "valid boolean"),
        ({"logprobs": 1}, 400, "logprobs", "does not have it"),
        ({"echo": True}, 400, "echo", "does not have it"),
        ({"top_k": 40}, 400, "top_k", "does not have it"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty", "does not have it"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format", "does not have it"),
    ],
)
def test_wrong_requests_are_refused_in_the_shape_of_the_api(more: dict[str, Any], status: int, param: str, says: str) -> None:
    async def test(client: Client) -> None:
        found, answer = await client.post(BODY | more)
        assert (found, answer["error"]["param"]) == (status, param)
        assert says in answer["error"]["message"]
        assert set(answer["error"]) == {"message", "type", "param", "code"}

    run(test, _SHARED)


_SHARED = model()


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"text"', b'{"prompt":"a","temperature":NaN}', b"[" * 100_000, b"\xff\xfe{}"])
def test_what_is_no_json_object(body: bytes) -> None:
    async def test(client: Client) -> None:
        status, answer = await client.post(body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")

    run(test, _SHARED)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "at least 1"),
        ([{"role": "wizard", "content": "x"}], "Input should be"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "'text'"),
        ("hello", "valid list"),
    ],
)
def test_wrong_conversations(messages: Any, says: str) -> None:
    async def test(client: Client) -> None:
        status, answer = await client.post({"messages": messages}, "chat/completions")
        assert (status, answer["error"]["param"]) == (400, "messages")
        assert says in answer["error"]["message"]

    run(test, _SHARED)


def test_neutral_and_unknown_keys_change_nothing() -> None:
    neutral = {"logprobs": None, "echo": False, "best_of": 1, "presence_penalty": 0.0, "repetition_penalty": 1.0, "top_k": -1, "user": "u",
               "min_tokens": None, "logit_bias": {}, "response_format": {"type": "text"}, "something_new": [1]}  # fmt: skip

    async def test(client: Client) -> None:
        _, whole = await client.post(BODY | neutral | {"return_token_ids": True})
        assert whole["choices"][0]["token_ids"] == GREEDY

    run(test)


def test_the_other_pages() -> None:
    async def test(client: Client) -> None:
        async with client.session.get(f"{client.url}/v1/models") as answer:
            [known] = (await answer.json())["data"]
        assert (known["id"], known["object"], known["max_model_len"]) == ("tiny", "model", 256)
        assert (await client.page("/health"))[0] == 200
        assert (await client.page("/nothing"))[0] == 404
        status, page = await client.page("/v1/completions")
        assert status == 405
        assert '"error"' in page

    run(test)

"""Trace files: what they give, and what is said about bad ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from roofline.errors import RecordError
from roofline.serving.traces import load_trace
from tests.serving.shared import DATA, needs_shared

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""


def write(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_azure(tmp_path):
    workload = load_trace(write(tmp_path, AZURE))
    np.testing.assert_allclose(workload.arrival_s, [0, 4.314579, 4.541877], atol=1e-6)
    assert list(workload.input_tokens) == [374, 396, 879]
    assert list(workload.output_tokens) == [44, 109, 55]


def test_burstgpt_leaves_failed_requests_out(tmp_path):
    workload = load_trace(write(tmp_path, BURST))
    assert list(workload.arrival_s) == [0, 113]
    assert list(workload.input_tokens) == [472, 417]


def test_mooncake_shares_blocks_of_512(tmp_path):
    rows = [
        {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [4, 5, 6]},
        {"timestamp": 3500, "input_length": 1200, "output_length": 7, "hash_ids": [4, 5, 9]},
    ]
    workload = load_trace(write(tmp_path, "\n".join(map(json.dumps, rows)), "trace.jsonl"))
    assert list(workload.arrival_s) == [0, 2.5]
    first, second = workload.request(0).content, workload.request(1).content
    assert first.keys(0, 64, 16) == second.keys(0, 64, 16)
    assert not set(first.keys(64, 68, 16)) & set(second.keys(64, 68, 16))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_own_traces_in_both_forms(tmp_path, kind):
    rows = [
        {"arrival_s": 0.5, "input_tokens": 100, "output_tokens": 10, "prefix_id": "a", "prefix_tokens": 64, "class": "chat"},
        {"arrival_s": 1.5, "input_tokens": 90, "output_tokens": 20, "prefix_id": "a", "prefix_tokens": 64, "class": "batch"},
        {"arrival_s": 1.5, "input_tokens": 90, "output_tokens": 20, "prefix_id": "b", "prefix_tokens": 64, "class": "batch"},
    ]
    if kind == "csv":
        text = "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)])
    else:
        text = "\n".join(map(json.dumps, rows))
    workload = load_trace(write(tmp_path, text, f"own.{kind}"))
    assert list(workload.arrival_s) == [0.5, 1.5, 1.5]
    assert list(workload.classes) == ["chat", "batch", "batch"]
    keys = [workload.request(index).content.keys(0, 5, 16) for index in range(3)]
    assert keys[0][:4] == keys[1][:4]
    assert keys[0][4] != keys[1][4]
    assert keys[0][0] != keys[2][0]


def test_a_prefix_without_length_is_the_whole_prompt(tmp_path):
    workload = load_trace(write(tmp_path, "arrival_s,input_tokens,output_tokens,prefix_id\n0,64,5,x\n1,128,5,x\n2,64,5,\n"))
    keys = [workload.request(index).content.keys(0, 4, 16) for index in range(3)]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AZURE.replace("18:15:50", "18:15:40"), r"trace\.csv:3:TIMESTAMP: .* sort the trace by time"),
        (AZURE.replace(",109", ",0"), r"trace\.csv:3:GeneratedTokens: 0 tokens: lengths must be at least 1"),
        (AZURE.replace(",396", ",-3"), r"trace\.csv:3:ContextTokens: -3 tokens"),
        (AZURE.replace(",396", ",many"), r"trace\.csv:3:ContextTokens: 'many' is not a number"),
        (AZURE.replace("2023-11-16 18:15:51.2224670", "yesterday"), r"trace\.csv:4:TIMESTAMP: 'yesterday' is not a time"),
        ("arrival_s,input_tokens,output_tokens\n-1,5,5\n", r"trace\.csv:2:arrival_s: -1\.0 s is negative"),
        ("arrival_s,input_tokens,output_tokens\nnan,5,5\n", r"trace\.csv:2:arrival_s: nan is not a time"),
        ("arrival_s,input_tokens,output_tokens\n0,5.5,5\n", r"trace\.csv:2:input_tokens: 5\.5 is not a whole number"),
        ("arrival_s,input_tokens,output_tokens\n0,inf,5\n", r"trace\.csv:2:input_tokens: inf is not a whole number"),
        ("arrival_s,input_tokens,output_tokens\n0,1_0,5\n", r"trace\.csv:2:input_tokens: '1_0' is not a number"),
        ("arrival_s,input_tokens,output_tokens\n1e308,5,5\n", r"trace\.csv:2:arrival_s: 1e\+308 is not a time"),
        ("arrival_s,input_tokens,output_tokens\n0,5,5,9\n", r"trace\.csv:2: more cells than the header"),
        ("arrival_s,input_tokens,output_tokens,hash_ids,hash_block_tokens\n0,5,5,1,0\n", r"trace\.csv:2:hash_block_tokens: 0"),
        ("arrival_s,input_tokens,output_tokens\n0,5\n", r"trace\.csv:2:output_tokens: missing"),
        ("arrival_s,input_tokens,output_tokens,class\n0,5,5,a\n1,5,5,\n", r"trace\.csv:3:class: some rows have a class"),
        ("arrival_s,input_tokens,output_tokens,hash_ids\n0,600,5,[1]\n", r"trace\.csv:2:hash_ids: 1 ids for 600 tokens: 2 of 512"),
        ("arrival_s,input_tokens,output_tokens,hash_ids\n0,600,5,a b\n", r"trace\.csv:2:hash_ids: .* not a list of whole numbers"),
        ("arrival_s,input_tokens,output_tokens,prefix_id,prefix_tokens\n0,60,5,a,61\n", r"trace\.csv:2:prefix_tokens: 61 of 60"),
        ("arrival_s,input_tokens,output_tokens\n", r"trace\.csv: no requests"),
        ("when,how,what\n1,2,3\n", r"trace\.csv:2: columns when, how, what: none of"),
    ],
)
def test_bad_rows_are_named(tmp_path, text, message):
    with pytest.raises(RecordError, match=message):
        load_trace(write(tmp_path, text))


def own_line(**more):
    return json.dumps({"arrival_s": 0, "input_tokens": 5, "output_tokens": 5} | more)


def test_names_may_be_numbers_and_times_without_a_zone_are_utc(tmp_path):
    named = load_trace(write(tmp_path, f"{own_line(**{'class': 0})}\n{own_line(**{'class': 'a'})}", "t.jsonl"))
    assert list(named.classes) == ["0", "a"]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,5\n2023-11-16T18:15:48Z,5,5\n2023-11-16T20:15:49+02:00,5,5\n"
    assert list(load_trace(write(tmp_path, text, "azure.csv")).arrival_s) == [0, 2, 3]


def test_a_folder_is_no_trace(tmp_path):
    with pytest.raises(RecordError, match="is no plain file"):
        load_trace(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"t\.jsonl:1: not JSON"),
        ("[1]", r"t\.jsonl:1: .* is not an object"),
        ("", "no requests"),
        (own_line(arrival_s=True), r"t\.jsonl:1:arrival_s: 'True' is not a number"),
        (own_line(hash_ids=[1.7]), r"t\.jsonl:1:hash_ids: .* list of whole numbers"),
        (own_line(hash_ids={"1": 2}), r"t\.jsonl:1:hash_ids: .* list of whole numbers"),
        (own_line(**{"class": ["a"]}), r"t\.jsonl:1:class: .* is no name"),
    ],
)
def test_bad_json_lines_are_named(tmp_path, text, message):
    with pytest.raises(RecordError, match=message):
        load_trace(write(tmp_path, text, "t.jsonl"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecordError, match="no such file"):
        load_trace(tmp_path / "none.csv")


@needs_shared
@pytest.mark.parametrize(
    ("name", "count", "inputs", "outputs"),
    [("azure2023_conv.csv", 19366, 22361870, 4088665), ("azure2023_code.csv", 8819, 18059974, 245896)],
)
def test_azure_traces_in_full(name, count, inputs, outputs):
    """Sums by awk over the files."""
    workload = load_trace(DATA / "traces" / name)
    assert (len(workload), workload.input_tokens.sum(), workload.output_tokens.sum()) == (count, inputs, outputs)

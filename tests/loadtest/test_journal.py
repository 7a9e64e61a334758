"""Records on disk: whole, resumable, without secrets."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path

import pytest

from roofline.errors import InputError, RecordError
from roofline.loadtest.journal import Journal, read_journal, resumed
from roofline.loadtest.run import LoadTest
from roofline.loadtest.settings import Settings
from roofline.records import RequestRecord
from tests.loadtest.builders import record
from tests.loadtest.conftest import Mock


def test_a_request_survives_the_file() -> None:
    made = record(3, ttft=0.2, gap=0.02, tokens=5)
    again = RequestRecord.from_json(json.loads(json.dumps(made.to_json())))
    assert (again.index, again.output_tokens, again.ok) == (3, 5, True)
    assert again.ttft_s == pytest.approx(made.ttft_s, abs=1e-6)
    assert list(again.gaps_s) == pytest.approx(list(made.gaps_s), abs=1e-6)
    failed = RequestRecord.from_json(record(1, error="503").to_json())
    assert math.isnan(failed.first_token_s)
    assert failed.error == "503"


def settings(mock: Mock, **changes: object) -> Settings:
    values: dict[str, object] = {"ladder": (1, 2), "requests_per_stage": 4, "input_tokens": 8, "output_tokens": 4, "warmup": 2} | changes
    return Settings(mock.url, "mock?ttft_ms=10&itl_ms=2", **values)  # type: ignore[arg-type]


def test_every_request_is_a_line_and_a_run_resumes(mock: Mock, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    whole = LoadTest(settings(mock), journal=path).run()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds.count("request") == 2 + 8
    assert kinds[:2] == ["loadtest", "environment"]
    assert kinds.count("stage_end") == 2

    cut = next(at for at, line in enumerate(lines) if line["kind"] == "stage_start" and line["stage"] == 1) + 3
    path.write_text("\n".join(json.dumps(line) for line in lines[:cut]) + '\n{"kind":"reque')
    mock.reset()
    again = LoadTest(settings(mock), journal=path, resume=True).run()
    assert again.run_id == whole.run_id
    assert [each.data.ok for each in again.stages] == [4, 4]
    assert again.stages[0].data.column("ttft_s") == pytest.approx(whole.stages[0].data.column("ttft_s"), abs=2e-6)
    assert len(mock.truth()) == 2 + 4  # warm-up and the second stage only

    mock.reset()
    done = LoadTest(settings(mock), journal=path, resume=True).run()
    assert [each.data.ok for each in done.stages] == [4, 4]
    assert mock.truth() == []


def test_an_existing_file_is_not_written_over(mock: Mock, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"kind":"loadtest"}\n')
    with pytest.raises(InputError, match="--resume goes on with it"):
        LoadTest(settings(mock), journal=path)


def test_a_disk_that_fills_up_keeps_what_was_measured(mock: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, room = tmp_path / "records.jsonl", 6

    def full(self: Journal, record: object) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Journal, "request", full)
    outcome = LoadTest(settings(mock), journal=path).run()
    assert outcome.broken == f"{path}: cannot write: No space left on device"
    assert outcome.broken in outcome.to_json()["notes"]
    assert [each.complete for each in outcome.stages] == [True, False]
    assert outcome.stages[0].data.ok == 4
    room = 0
    with pytest.raises(RecordError, match="cannot write: No space left on device"):
        LoadTest(settings(mock), journal=tmp_path / "other.jsonl").run()


def test_a_disk_that_fills_up_under_several_processes(mock: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Journal, record: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Journal, "request", full)
    outcome = LoadTest(settings(mock, ladder=(2,), processes=2, warmup=0), journal=tmp_path / "r.jsonl").run()
    assert "No space left on device" in outcome.broken
    assert outcome.stages[0].data.ok == 4


def test_a_folder_is_no_file_for_records(mock: Mock, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        LoadTest(settings(mock), journal=tmp_path, resume=True)


def test_another_run_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with Journal(path) as journal:
        journal.write("loadtest", run_id="r", settings={"ladder": [1], "seed": 0})
    assert resumed(path, {"ladder": [1], "seed": 0}).run_id == "r"
    with pytest.raises(InputError, match="was written with seed 0, now it is 1"):
        resumed(path, {"ladder": [1], "seed": 1})


@pytest.mark.parametrize(("text", "message"), [('{"kind":"other"}', ":1:kind: 'other'"), ("{}", ":1:kind"), ("", "not the records")])
def test_files_that_are_no_journal(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(text)
    with pytest.raises(RecordError, match=message):
        read_journal(path)

"""The cache-race page: what it sends is the race, what it says is counted, the learner's own race takes the stage."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from core import race
from core.errors import TraceFileError
from core.model import LoadedModel
from core.race import RaceRecord, cache_race, expected_counts, summarize
from core.scheduler import Scheduler
from core.trace import Trace
from pages.views import race_data
from pages.views.text import Text
from tests.conftest import ROOT


class FakeFrame:
    """What component_data needs of a frame."""

    def __init__(self, lang: str = "en") -> None:
        self.lang, self.t = lang, Text(lang, "cache_race")


@pytest.fixture(scope="module")
def recorded_race() -> RaceRecord:
    return RaceRecord.load(ROOT / "assets" / "runs" / "gravity.race.json")


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_it_opens_on_the_recorded_race(recorded_race: RaceRecord, lang: str) -> None:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.query_params["lang"] = lang
    app = app.switch_page("pages/9_cache_race.py").run()
    assert not app.exception
    assert not app.error
    total = summarize(recorded_race.passes)
    words = "\n".join(str(part.value) for part in app.markdown)
    assert f"{total.without_computed:,}" in words
    assert f"{total.speed_up:.1f}".replace(".", "\\.") in words


def test_the_recorded_race_is_the_model_s(
    recorded_race: RaceRecord, scheduler: Scheduler, recorded: Trace
) -> None:
    """Its tokens are those of the recorded run and of a race run now; counts equal the formula."""
    ids = [t.id for t in recorded.prompt_tokens]
    assert recorded_race.n_prompt == len(ids)
    n = min(len(recorded_race.tokens), recorded.n_generated)
    assert [t.id for t in recorded_race.tokens[:n]] == [t.id for t in recorded.answer_tokens[:n]]
    again = scheduler.run_job("race", lambda loaded: cache_race(loaded, ids, 4)).wait(120)
    assert [p.token_id for p in again] == [p.token_id for p in recorded_race.passes[:8]]
    total = summarize(recorded_race.passes)
    counted = (total.with_computed, total.without_computed)
    assert counted == expected_counts(recorded_race.n_prompt, total.n_tokens)
    assert total.same_tokens
    assert total.max_difference <= 1e-3


def test_formula_by_hand() -> None:
    """A prompt of 3 and 4 answer tokens: 3+1+1+1 with, 3+4+5+6 without."""
    assert expected_counts(3, 4) == (6, 18)
    assert expected_counts(1, 1000) == (1000, 500_500)
    assert expected_counts(5, 0) == (0, 0)


def test_the_browser_gets_the_race_in_few_bytes(recorded_race: RaceRecord) -> None:
    data = race_data.component_data(FakeFrame(), recorded_race)  # type: ignore[arg-type]
    for lane in ("with", "without"):
        passes = [p for p in recorded_race.passes if p.lane == lane]
        assert data[lane]["computed"] == [p.n_computed for p in passes]
        assert data[lane]["seconds"] == pytest.approx([p.seconds for p in passes], abs=1e-6)
    assert len(json.dumps(data).encode()) < 100_000


def test_a_race_survives_a_file(recorded_race: RaceRecord, tmp_path) -> None:
    path = tmp_path / "race.json"
    recorded_race.save(path)
    assert RaceRecord.load(path) == recorded_race
    for broken in (b"", b"{", b"[]", path.read_bytes()[:-20]):
        path.write_bytes(broken)
        with pytest.raises(TraceFileError):
            RaceRecord.load(path)


def test_half_a_pair_is_left_out(recorded_race: RaceRecord, loaded) -> None:
    cut = RaceRecord.of(loaded, "p", recorded_race.n_prompt, "m", recorded_race.passes[:7])
    assert len(cut.tokens) == 3
    assert len(cut.passes) == 6
    assert cut.tokens[0] == replace(recorded_race.tokens[0])


def test_a_prompt_of_the_longest_length_still_races(
    recorded: Trace, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much of it is raced with as leaves room for the answer."""
    long = replace(recorded, tokens=recorded.prompt_tokens * 40, n_prompt=34 * 40)
    assert race_data.task(long, 256).n_total == 512
    seen: list[int] = []
    monkeypatch.setattr(race, "cache_race", lambda loaded, ids, n_tokens: seen.append(len(ids)))
    race_data.task(long, 256).make(loaded)
    assert seen == [race.MAX_RACE_TOKENS - 256 + 1]  # the last token of the answer is not read
    assert race_data.task(recorded, 256).n_total == 512
    assert race.MAX_RACE_TOKENS == 512

"""The sampling page: which choice it opens on, what it sends to the browser, and the run that goes on from there."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.sampling import PRESETS, SamplingParams, choose, distribution
from core.trace import Trace
from pages.views import cache, forks, sampling_lab, sampling_ways, sampling_words
from pages.views.settings import Settings
from pages.views.text import Text


def frame_with(lang: str = "en", **values: Any) -> Any:
    settings = Settings()
    for name, value in values.items():
        assert settings.set(name, value), name
    return SimpleNamespace(settings=settings, lang=lang, t=Text(lang, "sampling"), page="sampling", run=None)


def test_it_opens_on_a_doubtful_choice_that_leaves_most_of_the_answer(recorded: Trace) -> None:
    bits = sampling_lab.doubts(recorded)
    choice = sampling_lab.choice_at(recorded, -1)
    assert bits[choice.number] >= 0.95 * max(bits)
    assert all(value < 0.95 * max(bits) for value in bits[: choice.number])
    assert sampling_lab.context(recorded, choice).endswith("that describes the")


def test_a_step_in_the_url_means_finished_passes(recorded: Trace) -> None:
    first = sampling_lab.choice_at(recorded, 1)
    assert first.number == 0
    assert first.previous_ids == tuple(token.id for token in recorded.prompt_tokens)
    last = sampling_lab.choice_at(recorded, 10_000)
    assert last.number == recorded.n_generated - 1
    for choice in (first, last):
        assert sampling_lab.choice_at(recorded, choice.position).number == choice.number


def test_a_pass_that_chose_nothing_leads_to_the_next_choice(recorded: Trace) -> None:
    """A long prompt is read in chunks; only the last of them chooses a token."""
    chunk = replace(recorded.steps[0], token_id=None)
    later = tuple(replace(step, index=step.index + 1) for step in recorded.steps)
    chunked = replace(recorded, steps=(chunk, *later))
    assert sampling_lab.choice_at(chunked, 1).number == 0
    assert sampling_lab.choice_at(chunked, 1).position == 2


def test_what_is_sent_is_small_and_does_not_grow_with_the_prompt(recorded: Trace) -> None:
    choice = sampling_lab.choice_at(recorded, -1)
    sent = sampling_lab.payload(frame_with(), recorded, choice)
    assert len(json.dumps(sent)) < 60_000
    assert np.asarray(choice.step.logits, dtype=np.float32).nbytes == 4 * recorded.spec.vocab_size < 250_000


def test_the_names_are_those_of_the_likeliest_and_of_what_was_read(recorded: Trace) -> None:
    choice = sampling_lab.choice_at(recorded, -1)
    sent = sampling_lab.payload(frame_with(), recorded, choice)
    named = {token_id: text for token_id, text, _ in sent["names"]}
    likeliest = distribution(choice.step.logits, SamplingParams(temperature=1)).order[:200]
    assert set(likeliest.tolist()) | set(choice.previous_ids) == set(named)
    assert named[choice.step.token_id] == recorded.answer_tokens[choice.number].text


@pytest.mark.parametrize(
    "raw",
    [
        "1",
        "1,0,1,0,1",
        "1,0,1,0,1,x",
        "1,0.5,1,0,1,0",
        "nan,0,1,0,1,0",
        "9,0,1,0,1,0",
        "1,0,0,0,1,0",
        "1,0,1,0,1,0,7",
    ],
)
def test_a_damaged_lab_link_is_refused(raw: str) -> None:
    with pytest.raises(ValueError):
        sampling_lab.read_lab(raw)


def test_the_lab_starts_from_the_runs_settings_but_never_greedy(recorded: Trace) -> None:
    assert sampling_lab.lab_settings(frame_with())["temperature"] == 1.0
    mine = frame_with(temperature=0.7, top_k=40, seed=3)
    assert sampling_lab.lab_params(mine, 8) == SamplingParams(temperature=0.7, top_k=40, seed=3, max_tokens=8)
    tried = frame_with(temperature=0.7, lab="0,5,0.9,0.02,1.1,7")
    assert sampling_lab.lab_params(tried, 8) == SamplingParams(0.0, 5, 0.9, 0.02, 1.1, 7, 8)


def test_the_sentences_say_what_core_computes(recorded: Trace) -> None:
    choice = sampling_lab.choice_at(recorded, -1)
    words = sampling_words.facts(recorded, choice)
    record = distribution(choice.step.logits, SamplingParams(temperature=1))
    hot = distribution(choice.step.logits, SamplingParams(temperature=2, top_p=0.5))
    first = record.order[0]
    assert words.values["bits"] == f"{record.entropy_bits:.1f}"
    assert words.values["p_first"] == f"{100 * record.probabilities[first]:.1f} %"
    assert words.values["n_hot"] == f"{hot.n_survivors:,}"
    assert words.surprise_key == "surprise"
    for lang in ("en", "ja"):
        for key in ("surprise", "surprise_sure", "myth_best", "predict.why", "try"):
            assert "{" not in Text(lang, "sampling")(key, **words.values)


def test_a_certain_choice_has_a_sentence_of_its_own(recorded: Trace) -> None:
    sure = int(np.argmin(sampling_lab.doubts(recorded)))
    choice = sampling_lab.choice_at(recorded, recorded.choice_steps[sure].index + 1)
    assert sampling_words.facts(recorded, choice).surprise_key == "surprise_sure"


def test_going_on_from_a_choice_is_a_real_run_from_a_copy_of_the_cache(
    recorded: Trace, loaded: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All four presets at once: the first token is the one under the dice, and the rest is what the model says then."""
    engine = SimpleNamespace(loaded=loaded, scheduler=scheduler)
    monkeypatch.setattr(cache, "engine", lambda: engine)
    choice = sampling_lab.choice_at(recorded, -1)
    tree = forks.from_trace(recorded, None)
    wanted = {name: replace(params, seed=5, max_tokens=6) for name, params in PRESETS.items()}
    sampling_ways._grow(tree, choice, wanted)
    forks.finish(tree, engine)
    assert tree.n_readings == 1  # a recorded run has no cache: one prefill rebuilt it, for all four
    for branch in tree.grown:
        expected, _ = choose(choice.step.logits, wanted[branch.label], choice.number, choice.previous_ids)
        assert branch.state == "finished"
        assert branch.places[0].token_id == branch.tokens[0].id == expected
        assert branch.n_copied == recorded.n_prompt + choice.number
        assert branch.passes_saved == 1 + choice.number
        assert 1 <= branch.n_passes <= 6
    greedy = next(branch for branch in tree.grown if branch.label == "greedy")
    again = recorded.answer_tokens[choice.number : choice.number + 7]
    assert [token.id for token in greedy.tokens] == [token.id for token in again]

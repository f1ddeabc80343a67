"""The branching page: the tree of branches, the recorded fork it opens on, and what it sends to the browser."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from core.errors import QueueFullError
from core.sampling import SamplingParams
from core.scheduler import Request
from core.trace import Trace
from pages.views import branch_tree, branch_words, cache, forks
from pages.views.settings import Settings
from pages.views.text import Text
from tools import record_forks

GREEDY = SamplingParams(max_tokens=5)


@pytest.fixture
def engine(loaded: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SimpleNamespace(loaded=loaded, scheduler=scheduler, status=SimpleNamespace(ready=True))
    monkeypatch.setattr(cache, "engine", lambda: made)
    return made


@pytest.fixture
def example() -> forks.Tree:
    return forks.from_plain(json.loads(branch_tree.EXAMPLE.read_text(encoding="utf-8")))


@pytest.fixture
def frame(recorded: Trace) -> Callable[..., Any]:
    def made(lang: str = "en", **values: Any) -> Any:
        settings, text = Settings(), Text(lang, "branching")
        for name, value in values.items():
            assert settings.set(name, value)
        explain = lambda error, markdown=True: str(error)  # noqa: E731
        return SimpleNamespace(
            settings=settings, lang=lang, t=text, md=text.md, trace=recorded, explain=explain
        )

    return made


def ids(tokens: Any) -> list[int]:
    return [token.id for token in tokens]


def candidates(tree: forks.Tree, at: int) -> list[int]:
    return [token_id for token_id, _ in tree.trunk.places[at].candidates]


def test_the_recorded_fork_is_what_the_model_says_today(
    example: forks.Tree, loaded: Any, scheduler: Any
) -> None:
    again = forks.from_plain(record_forks.record(loaded, scheduler))
    assert ids(again.prompt) == ids(example.prompt)
    assert list(again.branches) == list(example.branches)
    for old, new in zip(example.branches.values(), again.branches.values(), strict=True):
        assert ids(new.tokens) == ids(old.tokens)
        assert (new.n_copied, new.passes_saved, new.ends) == (old.n_copied, old.passes_saved, old.ends)
        for a, b in zip(old.places, new.places, strict=True):
            assert a.probability == pytest.approx(b.probability, abs=2e-3)
            assert a.bits == pytest.approx(b.bits, abs=2e-2)


def test_it_opens_on_a_fork_that_turns_the_meaning(example: forks.Tree, frame: Any) -> None:
    said = [branch.text for branch in example.grown]
    assert any(text.startswith("No") for text in said)
    assert any(text.startswith("Absolutely") for text in said)
    for lang in ("en", "ja"):
        sentence = branch_words.opposites(frame(lang), example)
        assert "Absolutely" in sentence
        assert "{" not in sentence


def test_written_down_and_read_again_it_is_the_same_tree(example: forks.Tree) -> None:
    written = json.dumps(forks.to_plain(example))
    assert json.dumps(forks.to_plain(forks.from_plain(json.loads(written)))) == written


def test_the_five_likeliest_grow_at_once_from_one_cache(engine: Any, recorded: Trace) -> None:
    tree = forks.from_trace(recorded, None)
    made = tree.grow(0, 11, candidates(tree, 11), GREEDY)
    assert len(made) == 4  # the fifth is what stands there already
    forks.finish(tree, engine)
    assert tree.n_readings == 1
    for branch in made:
        assert branch.state == "finished"
        assert branch.n_copied == recorded.n_prompt + 11
        assert branch.passes_saved == 12  # the prefill and eleven decode passes, counted on the recorded run
        assert branch.ends[0] == branch.n_copied + 1  # its first pass read one token
        assert len(branch.tokens) == len(branch.places) == branch.n_passes + 1
        assert branch.run is None
        assert len(branch.cache) == branch.ends[-1]
    assert max(branch.batch_size for branch in made) == 4


def test_a_branch_of_a_branch_says_what_the_whole_text_says(
    engine: Any, recorded: Trace, scheduler: Any
) -> None:
    tree = forks.from_trace(recorded, None)
    [first] = tree.grow(0, 3, candidates(tree, 3)[1:2], GREEDY)
    forks.finish(tree, engine)
    second_id = first.places[2].candidates[1][0]
    [second] = tree.grow(first.id, 5, [second_id], GREEDY)
    forks.finish(tree, engine)
    text = (*tree.prompt, *tree.answer(second, 6))
    assert [t.position for t in text] == list(range(len(text)))
    assert ids(tree.answer(second, 6))[:3] == ids(recorded.answer_tokens[:3])
    assert ids(tree.answer(second, 6))[3:] == [*ids(first.tokens[:2]), second_id]
    alone = scheduler.submit(Request(forks_encoded(text), GREEDY)).result(timeout=120)
    assert ids(second.tokens[1:]) == ids(alone.answer_tokens)
    assert (
        second.passes_saved == 4 + 2
    )  # of the run: prefill and three tokens; of the first branch: two passes
    assert second.n_copied == recorded.n_prompt + 5


def forks_encoded(tokens: Any) -> Any:
    from core.tokenizer import EncodedPrompt

    return EncodedPrompt(tuple(tokens), (False,) * len(tokens), "")


def test_the_first_token_of_a_branch_is_a_place_of_its_parent(engine: Any, recorded: Trace) -> None:
    """Another candidate at the very place where a branch begins is its sibling, not its child."""
    tree = forks.from_trace(recorded, None)
    [first] = tree.grow(0, 11, candidates(tree, 11)[1:2], GREEDY)
    [sibling] = tree.grow(first.id, 11, candidates(tree, 11)[2:3], GREEDY)
    assert (first.parent, sibling.parent) == (0, 0)
    tree.clear()
    assert not tree.grown


def test_what_cannot_be_grown_is_left_out(recorded: Trace) -> None:
    tree = forks.from_trace(recorded, None)
    assert tree.grow(99, 0, [1], GREEDY) == []
    assert tree.grow(0, 999, [1], GREEDY) == []
    assert tree.grow(0, 0, [-5, 10**9, tree.trunk.tokens[0].id], GREEDY) == []
    assert len(tree.grow(0, 0, candidates(tree, 0)[1:2] * 3, GREEDY)) == 1
    for at in range(12):
        tree.grow(0, at, candidates(tree, at), GREEDY)
    assert len(tree.grown) == forks.MAX_BRANCHES
    assert not tree.has_room


def test_removing_a_branch_removes_what_grew_from_it(engine: Any, recorded: Trace) -> None:
    tree = forks.from_trace(recorded, None)
    [first] = tree.grow(0, 3, candidates(tree, 3)[1:2], GREEDY)
    forks.finish(tree, engine)
    tree.grow(first.id, 5, [first.places[2].candidates[1][0]], GREEDY)
    tree.remove(first)
    assert not tree.grown


def test_a_branch_that_was_refused_can_be_grown_again(engine: Any, recorded: Trace) -> None:
    """A whole class presses Run at once, the queue is full, and a minute later it is not."""
    tree = forks.from_trace(recorded, None)
    other = candidates(tree, 4)[1:2]
    full_queue = SimpleNamespace(submit=lambda request: (_ for _ in ()).throw(QueueFullError(n_waiting=64)))
    [branch] = tree.grow(0, 4, other, GREEDY)
    tree.advance(SimpleNamespace(loaded=engine.loaded, scheduler=full_queue))
    assert branch.state == "failed"
    assert isinstance(branch.error, QueueFullError)
    [again] = tree.grow(0, 4, other, GREEDY)
    assert tree.grow(0, 4, other, GREEDY) == []
    forks.finish(tree, engine)
    assert again.state == "finished"
    assert tree.grown == [again]


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_a_reading_that_came_to_nothing_is_made_again(engine: Any, recorded: Trace, how: str) -> None:
    tree = forks.from_trace(recorded, None)
    [branch] = tree.grow(0, 4, candidates(tree, 4)[1:2], GREEDY)
    tree.advance(engine)
    reading = tree.trunk.reading
    assert reading is not None
    if how == "fails":
        engine.scheduler._fail(reading, RuntimeError("no memory"))
    else:
        reading.cancel()
    while not reading.is_over:
        time.sleep(0.01)
    if reading.state == "finished":
        pytest.fail("the reading was over before it could be stopped")
    tree.advance(engine)
    if how == "fails":
        assert branch.state == "failed"
        [branch] = tree.grow(0, 4, candidates(tree, 4)[1:2], GREEDY)
    forks.finish(tree, engine)
    assert branch.state == "finished"


def test_what_is_sent_is_small(frame: Any, example: forks.Tree, recorded: Trace) -> None:
    sent = branch_tree.payload(frame(), example, "example")
    assert len(json.dumps(sent)) < 60_000
    assert sent["select"] == {"branch": 0, "at": 0}
    named = set(sent["names"])
    for branch in sent["branches"]:
        for token_id, _, _, likeliest in branch["tokens"]:
            assert {str(token_id), *(str(i) for i, _ in likeliest)} <= named


def test_the_run_opens_on_the_step_of_the_url(frame: Any, recorded: Trace) -> None:
    tree = forks.from_trace(recorded, None)
    assert branch_tree.opening(frame(), tree, "run")["at"] == 11
    assert branch_tree.opening(frame(step=4), tree, "run")["at"] == 3
    assert branch_tree.sources(recorded)[0] == "example"


def test_before_anything_has_grown_there_is_a_sentence_too(frame: Any, recorded: Trace) -> None:
    tree = forks.from_trace(recorded, None)
    for lang in ("en", "ja"):
        assert "curvature" in branch_words.surprise(frame(lang), tree, 11)
        assert "{" not in frame(lang).md("try", **branch_words.surest(frame(lang), tree))
    assert branch_words.totals(tree)["branches"] == 0

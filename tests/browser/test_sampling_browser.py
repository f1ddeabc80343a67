"""The sampling lab in a real browser: its mathematics equals core.sampling, and it keeps up with the thumb."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from core.sampling import PRESETS, SamplingParams, distribution, uniform
from tests.browser.helpers import ROOT
from tests.test_sampling import VOCAB, random_params, random_scores

SCRIPT = ROOT / "assets" / "components" / "sampling_lab" / "main.js"
RULES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

# One case in the browser: what the lab computes, with the survivors and probabilities of the whole vocabulary.
# Arrays travel as base64: as JSON, fifty thousand numbers take a second.
ONE_CASE = """({logits, params, previous, dice}) => {
    const packed = (a) => {
        const bytes = new Uint8Array(a.buffer), parts = [];
        for (let i = 0; i < bytes.length; i += 4096) parts.push(String.fromCharCode(...bytes.subarray(i, i + 4096)));
        return btoa(parts.join(""));
    };
    const z = new Float32Array(Uint8Array.from(atob(logits), (c) => c.charCodeAt(0)).buffer);
    const sorted = penalised(z, likeliestFirst(z), previous, params.repetition_penalty);
    const room = {weights: new Float64Array(z.length), cumulative: new Float64Array(z.length)};
    const r = sample(sorted.scores, params, room), u = uniform(dice[0], dice[1]), n = r.survivors;
    const sortedThrows = Float64Array.from({length: 300}, (_, j) => uniform(dice[0] + j, dice[1])).sort();
    const counts = counted(sortedThrows, r);
    return {
        u, drawn: sorted.order[placeUnder(r, u)], survivors: packed(sorted.order.slice(0, n)),
        p: packed(r.weights.slice(0, n).map((w) => w / r.mass)), kept: r.kept, excluded: r.excluded,
        entropy: r.entropy, order: Array.from(sorted.order.subarray(0, 50)),
        counts: [...counts].map(([place, times]) => [sorted.order[place], times]),
    };
}"""


@pytest.fixture(scope="module")
def compute(browser: Browser) -> Iterator[Callable[..., Any]]:
    """The marked section of the component's script, in an empty page of the real browser."""
    script = SCRIPT.read_text(encoding="utf-8")
    maths = (
        script.split("sampling maths: begin", 1)[1]
        .split("*/", 1)[1]
        .split("/* ---- sampling maths: end", 1)[0]
    )
    page = browser.new_page()
    page.add_script_tag(content=maths)
    yield lambda case, code=ONE_CASE: page.evaluate(code, case)
    page.close()


def compare(
    compute: Callable[..., Any], logits: np.ndarray, params: SamplingParams, previous: list[int], step: int
) -> None:
    values = {name: getattr(params, name) for name in RULES}
    seed = min(params.seed, 2**32 - 400)
    case = {
        "logits": b64encode(logits.astype(np.float32).tobytes()).decode(),
        "params": values,
        "previous": previous,
        "dice": [seed, step],
    }
    got = compute(case)
    record = distribution(logits, params, previous)
    assert got["u"] == uniform(seed, step)
    np.testing.assert_array_equal(np.frombuffer(b64decode(got["survivors"]), np.uint32), record.survivors)
    assert got["order"] == record.order[:50].tolist()
    assert got["drawn"] == record.draw(got["u"])
    np.testing.assert_allclose(
        np.frombuffer(b64decode(got["p"])), record.probabilities[record.survivors], rtol=1e-9, atol=1e-12
    )
    for name in ("temperature", "top_k", "top_p", "min_p"):
        assert got["kept"][name] == record.stage(name).n_kept
        assert got["excluded"][name] == pytest.approx(record.stage(name).excluded_mass, abs=1e-9)
    assert got["entropy"] == pytest.approx(record.entropy_bits, abs=1e-9)
    ids, times = np.unique(
        record.draw_many([uniform(seed + j, step) for j in range(300)]), return_counts=True
    )
    assert dict(got["counts"]) == dict(zip(ids.tolist(), times.tolist(), strict=True))


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("n", [1, 2, 7, 400])
def test_the_browser_computes_what_python_computes(compute, n: int, ties: bool) -> None:
    """Hundreds of random settings with every extreme among them: same survivors, same token, same probabilities."""
    for seed in range(60):
        rng = np.random.default_rng([seed, n, ties])
        logits = random_scores(rng, n, ties=ties) * np.float32(rng.choice([0.001, 1, 1, 20]))
        compare(compute, logits, random_params(rng), rng.integers(0, n, 9).tolist(), seed)


def test_it_does_so_at_the_real_size(compute) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        params = random_params(rng)
        compare(
            compute,
            random_scores(rng, VOCAB, ties=bool(seed % 2)),
            params,
            rng.integers(0, VOCAB, 60).tolist(),
            3,
        )


def test_it_does_so_when_all_scores_are_equal(compute) -> None:
    for top_p in (1.0, 0.5, 0.3, 1e-6):
        compare(compute, np.zeros(1000, np.float32), SamplingParams(temperature=1, top_p=top_p), [], 0)


def test_it_does_so_on_every_choice_of_the_recorded_run(compute, recorded) -> None:
    for number, step in enumerate(recorded.choice_steps[:12]):
        previous = [token.id for token in recorded.tokens[: recorded.n_prompt + number]]
        for params in PRESETS.values():
            compare(compute, step.logits, params, previous, number)


def test_the_dice_are_the_same_number_bit_by_bit(compute) -> None:
    pairs = [(0, 0), (0, 1), (1, 0), (2**32 - 1, 2**32 - 1), (2**31, 255), (12345, 67890)]
    pairs += [(int(a), int(b)) for a, b in np.random.default_rng(0).integers(0, 2**32, (300, 2))]
    got = compute(pairs, "(pairs) => pairs.map(([seed, step]) => uniform(seed, step))")
    assert got == [uniform(seed, step) for seed, step in pairs]

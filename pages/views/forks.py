"""A learner's tree of branches: which continuations were asked for, which are growing, what came out.

The trunk is a run (or a recorded one). A branch takes another token at one place of the trunk or of another branch, and
goes on from a copy of that one's cache. Branches are ordinary runs of the shared scheduler; a timer on the page calls
`advance`, which notes new tokens and starts what was waiting. A finished branch keeps its tokens, the five likeliest
candidates of each place and its cache (so that it can be forked again), not the full scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from core.branching import Crossroads, crossroads
from core.errors import ExplainerError
from core.sampling import SamplingParams
from core.tokenizer import Token
from pages.views import cache

if TYPE_CHECKING:
    from core.kv_cache import KVCache
    from core.scheduler import Run
    from core.trace import Trace

MAX_BRANCHES = 15  # a branch of 24 tokens holds about 3 MB of cache
KEEPALIVE_S = 30.0


@dataclass(eq=False)
class Branch:
    """One continuation. `at` is the number of the choice at which it leaves its parent (0 = first answer token).

    places: one per token of its own, the forced one first. n_copied: positions taken from the parent's cache.
    passes_saved: passes that had computed them. ends: positions in the cache after each pass of its own. batch_size:
    the most sequences that shared one of them. All counted, none assumed.
    """

    id: int
    parent: int
    at: int
    params: SamplingParams
    label: str = ""
    places: tuple[Crossroads, ...] = ()
    tokens: tuple[Token, ...] = ()
    n_copied: int = 0
    passes_saved: int = 0
    ends: tuple[int, ...] = ()
    batch_size: int = 0
    state: str = "waiting"
    error: ExplainerError | None = None
    run: Run | None = None
    cache: KVCache | None = None
    reading: Run | None = None

    @property
    def n_passes(self) -> int:
        return len(self.ends)

    @property
    def is_growing(self) -> bool:
        return self.state in ("waiting", "running")

    @property
    def text(self) -> str:
        """Its own words, the forced token included."""
        spoken = b"".join(token.bytes for token in self.tokens if not token.is_special)
        return spoken.decode("utf-8", errors="replace")


@dataclass(eq=False)
class Tree:
    """The trunk (branch 0) and everything that grew from it."""

    prompt: tuple[Token, ...]
    model: str
    asked: str  # what the learner typed
    branches: dict[int, Branch] = field(default_factory=dict)
    next_id: int = 1
    n_readings: int = 0  # prefills that were needed because a cache had not been kept

    @property
    def trunk(self) -> Branch:
        return self.branches[0]

    @property
    def grown(self) -> list[Branch]:
        return [branch for branch in self.branches.values() if branch.id]

    @property
    def is_growing(self) -> bool:
        return any(branch.is_growing for branch in self.branches.values())

    @property
    def has_room(self) -> bool:
        return len(self.grown) < MAX_BRANCHES

    def answer(self, branch: Branch, stop: int) -> tuple[Token, ...]:
        """The answer's tokens on the way to `branch`, up to (not including) choice `stop`."""
        if branch.id == 0:
            return branch.tokens[:stop]
        before = self.answer(self.branches[branch.parent], branch.at)
        return (*before, *branch.tokens[: max(0, stop - branch.at)])

    def home_of(self, branch: Branch, at: int) -> Branch:
        """The branch whose choice this is: the first token of a branch stands in its parent's place."""
        while branch.id and at <= branch.at:
            branch = self.branches[branch.parent]
        return branch

    def place(self, branch: Branch, at: int) -> Crossroads | None:
        """What was possible at this place; None where the branch is not that long."""
        index = at - branch.at
        return branch.places[index] if 0 <= index < len(branch.places) else None

    def find(self, parent: int, at: int, token_id: int, label: str = "") -> Branch | None:
        """The branch that was already grown there with this token."""
        same = (
            b
            for b in self.grown
            if (b.parent, b.at, b.label) == (parent, at, label)
            and b.places
            and b.places[0].token_id == token_id
        )
        return next(same, None)

    def grow(self, branch_id: int, at: int, token_ids: Iterable[int], params: SamplingParams) -> list[Branch]:
        """Ask for continuations of `branch_id` with other tokens at choice `at`. They start with `advance`.

        Only other candidates of that place are taken; what was grown before, or is one too many, is left out.
        """
        if branch_id not in self.branches:
            return []
        parent = self.home_of(self.branches[branch_id], at)
        place = self.place(parent, at)
        made = []
        for token_id in token_ids:
            possible = dict(place.candidates) if place else {}
            known = self.find(parent.id, at, token_id)
            if known is not None and known.error is not None and not self._children(known):
                self.remove(known)  # it may go better this time
                known = None
            if place is None or known is not None or not self.has_room:
                continue
            if token_id not in possible or token_id == place.token_id:
                continue
            made.append(
                self.add(
                    parent, at, replace(place, token_id=token_id, probability=possible[token_id]), params
                )
            )
        return made

    def add(
        self, parent: Branch, at: int, forced: Crossroads, params: SamplingParams, label: str = ""
    ) -> Branch:
        """A branch with any token in that place. It starts with `advance`."""
        branch = Branch(self.next_id, parent.id, at, params, label, (forced,))
        self.branches[branch.id] = branch
        self.next_id += 1
        return branch

    def passes_before(self, branch: Branch, n_positions: int) -> int:
        """Passes, on the way to `branch`, that wrote the first `n_positions` positions."""
        own = sum(end <= n_positions for end in branch.ends)
        return (
            own if branch.id == 0 else own + self.passes_before(self.branches[branch.parent], branch.n_copied)
        )

    def _children(self, branch: Branch) -> list[Branch]:
        return [b for b in self.grown if b.parent == branch.id]

    def remove(self, branch: Branch) -> None:
        """Forget a branch and all that grew from it."""
        for child in self._children(branch):
            self.remove(child)
        if branch.run is not None:
            branch.run.cancel()
        del self.branches[branch.id]

    def clear(self) -> None:
        """Forget all branches; the trunk stays."""
        for branch in [b for b in self.grown if b.parent == 0]:
            self.remove(branch)

    def advance(self, engine: Any = None) -> None:
        """Note what has happened since the last call, and start what can start. Cheap; called by a timer.

        engine: whatever has `loaded` and `scheduler`; the shared one if left out.
        """
        engine = engine or cache.engine()
        for branch in self.grown:
            try:
                if branch.state == "waiting" and branch.run is None:
                    self._start(branch, engine)
                elif branch.run is not None:
                    _harvest(branch, branch.run)
            except ExplainerError as error:
                branch.state, branch.error, branch.run = "failed", error, None

    def _start(self, branch: Branch, engine: Any) -> None:
        from core.branching import branch_request

        parent = self.branches[branch.parent]
        if engine.scheduler is None or not self._cache_is_here(parent, engine.scheduler):
            return
        before = (*self.prompt, *self.answer(parent, branch.at))
        request = branch_request(
            engine.loaded, parent.cache, before, branch.places[0].token_id, branch.params,
            choice=branch.at, keepalive_s=KEEPALIVE_S,
        )  # fmt: skip
        branch.run = engine.scheduler.submit(request)
        branch.tokens = request.encoded.tokens[-1:]
        branch.n_copied, branch.passes_saved = len(before), self.passes_before(parent, len(before))
        branch.state = "running"

    def _cache_is_here(self, parent: Branch, scheduler: Any) -> bool:
        """True once the parent's cache exists. A recorded run has none: it is read once more, in one prefill."""
        if parent.cache is not None:
            return True
        if parent.is_growing:
            return False
        if parent.reading is None:
            from core.branching import reading_request

            everything = (*self.prompt, *self.answer(parent, parent.at + len(parent.tokens)))
            parent.reading = scheduler.submit(reading_request(everything, keepalive_s=KEEPALIVE_S))
        if not parent.reading.is_over:
            parent.reading.touch()
            return False
        reading, parent.reading = parent.reading, None  # whatever came of it: the next try reads again
        reading.result(timeout=1)  # raises what went wrong
        if reading.state != "finished":
            return False
        parent.cache = reading.cache
        self.n_readings += 1
        return True


def _harvest(branch: Branch, run: Run) -> None:
    steps = run.steps
    for step in steps[branch.n_passes :]:
        assert step.token_id is not None
        branch.places = (*branch.places, crossroads(step.logits, step.token_id))
        branch.batch_size = max(branch.batch_size, step.batch_size)
    branch.ends = tuple(step.n_cached_after for step in steps)
    given = len(run.request.encoded.tokens)
    branch.tokens = (*run.request.encoded.tokens[-1:], *run.tokens[given : given + len(steps)])
    if run.is_over and len(run.steps) == len(steps):
        branch.state, branch.error, branch.cache = run.state, run.error, run.cache
        branch.run = None  # with it go the scores over the whole vocabulary; the cache stays


def from_trace(trace: Trace, run: Run | None) -> Tree:
    """A tree whose trunk is this run. `run` is the live run of the same trace, if there is one: it has the cache."""
    places = tuple(crossroads(step.logits, step.token_id) for step in trace.choice_steps)
    trunk = Branch(
        0, 0, 0, trace.params, places=places, tokens=trace.answer_tokens,
        ends=tuple(step.n_cached_after for step in trace.steps), state="finished",
        cache=run.cache if run is not None and trace.origin == "live" else None,
    )  # fmt: skip
    return Tree(trace.prompt_tokens, trace.spec.name, trace.prompt, {0: trunk})


def tree_of(key: str, trace: Trace, run: Run | None) -> Tree:
    """This session's tree for this run, under a name of the page's own; a new run starts a new tree."""
    store = f"otat_tree_{key}"
    known = st.session_state.get(store)
    if known is None or known[0] is not trace:
        if known is not None:
            known[1].clear()
        known = (trace, from_trace(trace, run))
        st.session_state[store] = known
    tree: Tree = known[1]
    return tree


def tree_from_file(key: str, path: Path) -> Tree:
    """This session's copy of a recorded fork: it can be forked further like any other."""
    store = f"otat_tree_{key}"
    if store not in st.session_state:
        st.session_state[store] = from_plain(json.loads(path.read_text(encoding="utf-8")))
    tree: Tree = st.session_state[store]
    return tree


def finish(tree: Tree, engine: Any) -> None:
    """Let everything grow to its end, and wait for it (recording, tests)."""
    while tree.is_growing:
        tree.advance(engine)
        for branch in tree.branches.values():
            waiting_for = branch.run or branch.reading
            if waiting_for is not None:
                waiting_for.result(timeout=600)


# ---- as plain values, for a file -------------------------------------------------------------------------------------

_COUNTED = ("id", "parent", "at", "n_copied", "passes_saved", "batch_size")


def to_plain(tree: Tree) -> dict[str, Any]:
    """A finished tree as values that JSON can hold. Probabilities are rounded to a millionth."""
    return {
        "model": tree.model,
        "asked": tree.asked,
        "prompt": [_plain_token(token) for token in tree.prompt],
        "branches": [
            {
                **{name: getattr(branch, name) for name in _COUNTED},
                "params": asdict(branch.params),
                "ends": branch.ends,
                "tokens": [_plain_token(token) for token in branch.tokens],
                "places": [_plain_place(place) for place in branch.places],
            }
            for branch in tree.branches.values()
        ],
    }


def _plain_token(token: Token) -> list[Any]:
    return [token.id, token.bytes.hex(), token.is_special]


def _plain_place(place: Crossroads) -> list[Any]:
    candidates = [[token_id, round(p, 6)] for token_id, p in place.candidates]
    return [place.token_id, round(place.probability, 6), round(place.bits, 4), candidates]


def from_plain(plain: dict[str, Any]) -> Tree:
    """The tree that `to_plain` wrote."""
    prompt = _tokens(plain["prompt"], 0)
    branches = {raw["id"]: _branch(raw, len(prompt)) for raw in plain["branches"]}
    return Tree(prompt, plain["model"], plain["asked"], branches, max(branches) + 1)


def _branch(raw: dict[str, Any], n_prompt: int) -> Branch:
    counted = {name: raw[name] for name in _COUNTED}
    places = tuple(Crossroads(a, b, c, tuple((i, p) for i, p in few)) for a, b, c, few in raw["places"])
    return Branch(
        **counted, params=SamplingParams(**raw["params"]), ends=tuple(raw["ends"]), places=places,
        tokens=_tokens(raw["tokens"], n_prompt + raw["at"]), state="finished",
    )  # fmt: skip


def _tokens(rows: list[list[Any]], first: int) -> tuple[Token, ...]:
    raw = [(token_id, bytes.fromhex(data), special) for token_id, data, special in rows]
    return tuple(
        Token(token_id, data, data.decode("utf-8", "replace"), special, first + i)
        for i, (token_id, data, special) in enumerate(raw)
    )

"""The logit lens: what each layer would have answered.

A token's vector goes through all layers and is changed a little by each. Only the last vector is turned into logits: a
normalization, then a comparison with every entry of the vocabulary. But vectors of all layers have the same size, so
nothing forbids doing the same earlier. Read that way, each layer gives an answer of its own. In the first layers it
makes little sense; somewhere on the way the final answer appears, and later layers make it stronger.

It is a reading, not a measurement: the model was trained for the last layer only. There the lens must give exactly the
logits of the pass, which `last_difference` checks.

The idea is nostalgebraist's (2020, “interpreting GPT: the logit lens”).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.errors import UnsupportedModelError
from core.trace import Step

if TYPE_CHECKING:
    from core.model import LoadedModel

_NORM_NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm")


@dataclass(frozen=True)
class LayerAnswer:
    """What one layer would have answered. layer 0 is the embedding, layer i what left layer i.

    top_ids and top_p: the likeliest tokens with their probabilities. p and rank: of the final answer here (rank 1 =
    likeliest).
    """

    layer: int
    top_ids: tuple[int, ...]
    top_p: tuple[float, ...]
    p: float
    rank: int


@dataclass(frozen=True)
class Lens:
    """All layers' answers for one pass. answer_id: the likeliest token of the last layer.

    last_difference: the largest difference between the last layer's logits here and those the pass recorded.
    """

    answer_id: int
    answers: tuple[LayerAnswer, ...]
    last_difference: float

    @property
    def first_layer(self) -> int:
        """The first layer after which the answer is the likeliest token."""
        return next(a.layer for a in self.answers if a.rank == 1)

    @property
    def settled_layer(self) -> int:
        """The first layer from which on the answer stays the likeliest token."""
        return max((a.layer + 1 for a in self.answers if a.rank > 1), default=0)


def lens_logits(loaded: LoadedModel, residual: NDArray[Any]) -> NDArray[np.float32]:
    """Logits `(n_layers + 1, vocab_size)` of vectors `(n_layers + 1, hidden_size)`.

    Raises UnsupportedModelError where the model's last normalization is not found.
    """
    norm, head = _final_norm(loaded), loaded.model.get_output_embeddings()
    with torch.inference_mode():
        vectors = torch.tensor(
            np.asarray(residual, np.float32), device=loaded.device, dtype=loaded.model.dtype
        )
        logits: NDArray[np.float32] = head(norm(vectors)).float().cpu().numpy()
    return logits


def read_layers(loaded: LoadedModel, step: Step, n_top: int = 5) -> Lens:
    """What each layer would have answered in this pass."""
    logits = lens_logits(loaded, step.residual)
    answer_id = int(logits[-1].argmax())
    answers = tuple(_answer(layer, row, answer_id, n_top) for layer, row in enumerate(logits))
    return Lens(answer_id, answers, float(np.abs(logits[-1] - step.logits).max()))


def lens_job(loaded: LoadedModel, step: Step, n_top: int = 5) -> Iterator[Lens]:
    """`read_layers` as a job for `Scheduler.run_job`: one result."""
    yield read_layers(loaded, step, n_top)


def _answer(layer: int, logits: NDArray[np.float32], answer_id: int, n_top: int) -> LayerAnswer:
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    top = np.argsort(-logits, kind="stable")[:n_top]
    rank = 1 + int((logits > logits[answer_id]).sum())
    return LayerAnswer(
        layer, tuple(map(int, top)), tuple(map(float, shares[top])), float(shares[answer_id]), rank
    )


def _final_norm(loaded: LoadedModel) -> torch.nn.Module:
    """The normalization after the last layer: it sits beside the list of layers."""
    for module in loaded.model.modules():
        beside: dict[str, torch.nn.Module] = dict(module.named_children())
        if not any(_is_layers(child, loaded) for child in beside.values()):
            continue
        for name in _NORM_NAMES:
            if name in beside:
                return beside[name]
    raise UnsupportedModelError(family=loaded.spec.family, reason="a last normalization that was not found")


def _is_layers(module: torch.nn.Module, loaded: LoadedModel) -> bool:
    return isinstance(module, torch.nn.ModuleList) and len(module) > 0 and module[0] is loaded.layers[0]

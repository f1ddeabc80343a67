"""From a token's id to the numbers that the model computes with.

The embedding table has one row per token of the vocabulary. Looking up row 9354 is all that "reading" the token 9354
means: from here on the model works with these numbers and never sees letters or bytes again. The rows were learned.
Nobody wrote down what a token means; but tokens that are used alike have ended up with rows that point in similar
directions. `nearest_rows` shows it: cosine similarity is 1 for the same direction and 0 for unrelated ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from core.errors import InvalidSettingError

if TYPE_CHECKING:
    from core.model import LoadedModel

_norms: WeakKeyDictionary[Any, torch.Tensor] = WeakKeyDictionary()


@dataclass(frozen=True)
class Neighbour:
    """Another row of the table and its cosine similarity, between -1 and 1."""

    token_id: int
    cosine: float


def embedding_row(loaded: LoadedModel, token_id: int) -> NDArray[np.float32]:
    """Row `token_id` of the embedding table, `(hidden_size,)`, read-only. InvalidSettingError outside the table."""
    row = _table(loaded)[_checked(loaded, token_id)].detach().to("cpu", torch.float32).numpy().copy()
    row.flags.writeable = False
    return row


def nearest_rows(loaded: LoadedModel, token_id: int, n: int = 6) -> tuple[Neighbour, ...]:
    """The `n` other rows that point most nearly in the same direction, the nearest first.

    Rows beyond the vocabulary (padding of some models' tables) take no part.
    """
    table = _table(loaded)
    with torch.inference_mode():
        row = table[_checked(loaded, token_id)]
        cosine = (table @ row).float() / (_lengths(loaded) * row.float().norm()).clamp_min(1e-12)
        cosine[token_id] = -torch.inf
        cosine[len(loaded.tokenizer) :] = -torch.inf
        values, ids = cosine.topk(min(n, len(loaded.tokenizer) - 1))
    return tuple(Neighbour(int(i), float(v)) for i, v in zip(ids.tolist(), values.tolist(), strict=True))


def _checked(loaded: LoadedModel, token_id: int) -> int:
    n_rows = _table(loaded).shape[0]
    if not 0 <= token_id < n_rows:
        raise InvalidSettingError(name="token", value=token_id, allowed=f"a number from 0 to {n_rows - 1}")
    return token_id


def _table(loaded: LoadedModel) -> torch.Tensor:
    weight: torch.Tensor = loaded.model.get_input_embeddings().weight
    return weight


def _lengths(loaded: LoadedModel) -> torch.Tensor:
    if loaded.model not in _norms:
        with torch.inference_mode():
            _norms[loaded.model] = _table(loaded).float().norm(dim=1)
    return _norms[loaded.model]

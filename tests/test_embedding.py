"""Rows of the embedding table and their neighbours, against the model and a plain computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.embedding import embedding_row, nearest_rows
from core.errors import InvalidSettingError
from core.tokenizer import encode, make_tokens


def test_a_row_is_what_the_model_looks_up(loaded: Any) -> None:
    import torch

    token = encode(loaded.tokenizer, " gravity")[0]
    row = embedding_row(loaded, token.id)
    looked_up = loaded.model.get_input_embeddings()(torch.tensor([token.id], device=loaded.device))[0]
    assert row.shape == (loaded.spec.hidden_size,)
    np.testing.assert_array_equal(row, looked_up.detach().float().cpu().numpy())
    assert not row.flags.writeable


def test_the_row_is_where_the_residual_stream_begins(loaded: Any, recorded: Any) -> None:
    """The recorded run holds the vector of each pass's last position before the first layer: the same row."""
    last = recorded.prompt_tokens[-1]
    np.testing.assert_allclose(
        recorded.steps[0].residual[0].astype(np.float32), embedding_row(loaded, last.id), atol=2e-3
    )


@pytest.mark.parametrize("text", [" gravity", " Tokyo", "?"])
def test_neighbours_are_the_largest_cosines(loaded: Any, text: str) -> None:
    token_id = encode(loaded.tokenizer, text)[0].id
    table = loaded.model.get_input_embeddings().weight.detach().float().cpu().numpy().astype(np.float64)
    cosine = table @ table[token_id] / (np.linalg.norm(table, axis=1) * np.linalg.norm(table[token_id]))
    order = [i for i in np.argsort(-cosine) if i != token_id][:6]
    found = nearest_rows(loaded, token_id, 6)
    assert [neighbour.token_id for neighbour in found] == order
    np.testing.assert_allclose([neighbour.cosine for neighbour in found], cosine[order], atol=1e-5)


def test_words_used_alike_are_neighbours(loaded: Any) -> None:
    token_id = encode(loaded.tokenizer, " Tokyo")[0].id
    near = make_tokens(loaded.tokenizer, [n.token_id for n in nearest_rows(loaded, token_id)])
    assert {" Seoul", " Beijing"} <= {token.text for token in near}


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_ids_outside_the_table_are_refused(loaded: Any, token_id: int) -> None:
    with pytest.raises(InvalidSettingError):
        embedding_row(loaded, token_id)
    with pytest.raises(InvalidSettingError):
        nearest_rows(loaded, token_id)

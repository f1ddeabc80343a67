"""The KV cache: what a model keeps of the tokens that it has already read.

In attention, a new token asks (its query) and every earlier token answers (its key and its value). Keys and values of
a token never change once computed, because a token may only look backwards. So they are computed once and kept. That
store is the KV cache: for each layer, for each KV head, one key and one value vector per position.

It starts empty. The prefill pass writes the positions of the whole prompt; each decode pass appends one position. The
token that was chosen last is *not* in it yet: its key and value appear when the next pass feeds it.

Python lists grow by reserving more room than they need, so that appending is cheap on average. The tensors here do the
same: they double when full, and `reserve` sets the room beforehand when the final length is known.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from core.spec import ModelSpec

_FIRST_ROOM = 64


class GrowingTensor:
    """A tensor `(n_layers, n_heads, n_tokens, head_dim)` whose token axis grows in amortized constant time."""

    def __init__(
        self, n_layers: int, n_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shape = (n_layers, n_heads, head_dim)
        self._dtype, self._device = dtype, device
        self._room = self._allocate(0)

    def _allocate(self, n_tokens: int) -> torch.Tensor:
        n_layers, n_heads, head_dim = self._shape
        # Tensors born inside inference mode cannot be written outside of it; these are written in both.
        with torch.inference_mode(False):
            return torch.empty(n_layers, n_heads, n_tokens, head_dim, dtype=self._dtype, device=self._device)

    @property
    def capacity(self) -> int:
        """Positions that fit before the next copy."""
        return self._room.shape[2]

    def reserve(self, n_tokens: int, used: int) -> None:
        """Make room for `n_tokens` positions, keeping the first `used`."""
        if n_tokens <= self.capacity:
            return
        larger = self._allocate(n_tokens)
        larger[:, :, :used] = self._room[:, :, :used]
        self._room = larger

    def ensure(self, n_tokens: int, used: int) -> None:
        """Like `reserve`, but at least doubles, so that many small steps copy rarely."""
        if n_tokens > self.capacity:
            self.reserve(max(n_tokens, 2 * self.capacity, _FIRST_ROOM), used)

    def write(self, layer: int, start: int, values: torch.Tensor) -> None:
        """Store `values (n_heads, n_new, head_dim)` of one layer at positions start, start+1, …"""
        self._room[layer, :, start : start + values.shape[1]] = values

    def write_all(self, start: int, values: torch.Tensor) -> None:
        """Store `values (n_layers, n_heads, n_new, head_dim)` of all layers."""
        self._room[:, :, start : start + values.shape[2]] = values

    def layer(self, layer: int, n_tokens: int) -> torch.Tensor:
        """View `(n_heads, n_tokens, head_dim)` of one layer."""
        return self._room[layer, :, :n_tokens]

    def view(self, n_tokens: int) -> torch.Tensor:
        """View `(n_layers, n_heads, n_tokens, head_dim)` of everything."""
        return self._room[:, :, :n_tokens]


class Extension(NamedTuple):
    """A cache with room for a pass's new positions: views to write into and to read from, one per layer.

    new_keys, new_values: `(n_kv_heads, n_new, head_dim)`; keys, values: `(1, n_kv_heads, n_tokens + n_new, head_dim)`,
    the new positions at their end.
    """

    new_keys: tuple[torch.Tensor, ...]
    new_values: tuple[torch.Tensor, ...]
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


class KVCache:
    """Keys and values of one sequence, `(n_layers, n_kv_heads, n_tokens, head_dim)` each.

    A forward pass asks for an `extension`, fills it layer by layer, and calls `commit` at its end; a pass that breaks
    off in the middle leaves the cache as it was. `append` does the same for one layer at a time.
    """

    def __init__(self, spec: ModelSpec, device: torch.device | str = "cpu", capacity: int = 0) -> None:
        dtype = getattr(torch, spec.dtype)
        shape = (spec.n_layers, spec.n_kv_heads, spec.head_dim, dtype, torch.device(device))
        self.spec, self._keys, self._values = spec, GrowingTensor(*shape), GrowingTensor(*shape)
        self._n_tokens = 0
        self.reserve(capacity)

    def __len__(self) -> int:
        return self._n_tokens

    @property
    def n_tokens(self) -> int:
        """Positions whose keys and values are stored in every layer."""
        return self._n_tokens

    @property
    def keys(self) -> torch.Tensor:
        """All keys, a view `(n_layers, n_kv_heads, n_tokens, head_dim)`."""
        return self._keys.view(self._n_tokens)

    @property
    def values(self) -> torch.Tensor:
        """All values, a view `(n_layers, n_kv_heads, n_tokens, head_dim)`."""
        return self._values.view(self._n_tokens)

    @property
    def nbytes(self) -> int:
        """Bytes that the stored keys and values take (not the room reserved beyond them)."""
        return self.keys.numel() * self.keys.element_size() + self.values.numel() * self.values.element_size()

    @property
    def reserved_nbytes(self) -> int:
        """Bytes that the tensors occupy, reserved room included."""
        per_token = self.spec.n_layers * self.spec.n_kv_heads * self.spec.head_dim * self.spec.dtype_bytes
        return per_token * (self._keys.capacity + self._values.capacity)

    def reserve(self, n_tokens: int) -> None:
        """Make room for `n_tokens` positions in all, so that no copy happens until then."""
        self._keys.reserve(n_tokens, self._n_tokens)
        self._values.reserve(n_tokens, self._n_tokens)

    def extension(self, n_new: int) -> Extension:
        """Views of all layers with room for `n_new` more positions, whose contents are the caller's to write."""
        start, total = self._n_tokens, self._n_tokens + n_new
        self._keys.ensure(total, start)
        self._values.ensure(total, start)
        keys, values = self._keys.view(total), self._values.view(total)
        return Extension(
            keys[:, :, start:].unbind(),
            values[:, :, start:].unbind(),
            keys[:, None].unbind(),
            values[:, None].unbind(),
        )

    def commit(self, n_new: int) -> None:
        """The positions of the last `extension` have been written in every layer: count them."""
        self._n_tokens += n_new

    def append(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add `(n_kv_heads, n_new, head_dim)` of one layer; returns that layer's whole K and V, new ones included."""
        total = self._n_tokens + keys.shape[1]
        self._keys.ensure(total, self._n_tokens)
        self._values.ensure(total, self._n_tokens)
        self._keys.write(layer, self._n_tokens, keys)
        self._values.write(layer, self._n_tokens, values)
        whole = self._keys.layer(layer, total), self._values.layer(layer, total)
        if layer == self.spec.n_layers - 1:
            self._n_tokens = total
        return whole

    def truncate(self, n_tokens: int) -> None:
        """Forget all positions from `n_tokens` on (a rejected draft, a step back).

        Raises ValueError if the cache holds fewer positions.
        """
        if not 0 <= n_tokens <= self._n_tokens:
            raise ValueError(f"cannot truncate {self._n_tokens} positions to {n_tokens}")
        self._n_tokens = n_tokens

    def fork(self, n_tokens: int | None = None, capacity: int = 0) -> KVCache:
        """An independent copy of the first `n_tokens` positions (default: all): another continuation can grow there."""
        length = self._n_tokens if n_tokens is None else n_tokens
        if not 0 <= length <= self._n_tokens:
            raise ValueError(f"cannot fork {length} of {self._n_tokens} positions")
        copy = KVCache(self.spec, self._keys.view(0).device, max(capacity, length))
        copy._keys.write_all(0, self._keys.view(length))
        copy._values.write_all(0, self._values.view(length))
        copy._n_tokens = length
        return copy

"""Reading a model's configuration without believing it.

A `config.json` is somebody else's file. Keys are spelled in several ways, `null` means “absent”, a nested
text model is saved as the difference from its class, and a key that matters may be one that we do not know. A
`Reader` hands out values by name, checks them, remembers which keys were looked at, and at the end refuses if
a key that could change the cache was there and was not looked at. A refusal names the key and says what to
do; a guess would be worse.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import UnsupportedConfigError

# Keys that change what a layer keeps. One that is set and that the family's reader did not look at means:
# we do not know.
STRUCTURAL = frozenset(
    """
    kv_lora_rank layer_types layers_block_type block_types hybrid_override_pattern hybrid_layer_pattern attn_type_list
    sliding_window sliding_window_size sliding_window_pattern _sliding_window_pattern interleaved_sliding_window
    attention_window_size use_sliding_window attention_chunk_size window_size local_attention attention_types
    num_kv_shared_layers kv_source_layers use_cla cla_share_factor kv_share cross_attention_layers
    block_configs num_key_value_heads_per_layer num_attention_heads_per_layer per_layer_config compress_ratios
    compress_rates attn_layer_period attn_layer_indices full_attn_idxs full_attention_interval full_attn_layers
    layer_group_size linear_attn_config linear_num_value_heads mamba_n_heads mamba_num_heads mamba_d_state
    ssm_state_size ssm_cfg state_size mamba_d_ssm mamba_ngroups n_mamba_heads lru_width conv_L_cache
    global_head_dim num_global_key_value_heads swa_num_key_value_heads swa_head_dim swa_v_head_dim v_head_dim
    sparse_attention_config index_head_dim num_attention_groups attention_other_setting multi_query_group_num
    multi_query_attention num_kv_heads n_head_kv kv_n_heads kv_channels attention_head_dim head_dim_v
    global_attn_every_n_layers
    num_memory_blocks dense_attention_every_n_layers n_recurrent_loops loop_num_passes num_loops
    n_heads_in_group attention_head_size cross_attn_every_n_layers cross_layer_interval recurrent_block_type
    attention_head_type multi_query use_mla n_kv_heads kv_heads num_query_groups kv_head_dim value_head_dim
    attention_window local_window_size swa_layers sliding_window_layers full_attn_interleave total_ut_steps
    add_cross_attention no_attention_layers k_head_dim num_hash_layers kv_sharing kv_share_map layer_share_map
    kv_compression
    """.split()  # noqa: SIM905
)
MAX_VALUE = 10**6
# An explicit null of these is an answer (“none”), not an absent key that a class default would fill.
NULL_MEANS_NONE = frozenset(
    {
        "sliding_window",
        "attention_chunk_size",
        "num_key_value_heads",
        "num_global_key_value_heads",
        "kv_lora_rank",
    }
)


class Reader:
    """Values of one configuration by name. `nested`: it is the text part of a larger file, so absent keys
    mean the class's defaults (`class_defaults`). `defaults` hold in any case.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        family: str,
        *,
        defaults: Mapping[str, object] | None = None,
        class_defaults: Mapping[str, object] | None = None,
        nested: bool = False,
        include_mtp: bool = False,
    ) -> None:
        self.config = config
        self.family = family
        self.include_mtp = include_mtp
        self.looked_at: set[str] = set()
        self._defaults = {**((class_defaults or {}) if nested else {}), **(defaults or {})}

    def refuse(self, key: str, reason: str, remedy: str = "", why: str = "detail") -> UnsupportedConfigError:
        """A refusal to raise. `why` names its sort, so that a page can say it in another language."""
        remedy = remedy or "Enter the model's shape by hand instead."
        return UnsupportedConfigError(key=key, reason=reason, remedy=remedy, why=why)

    def get(self, *keys: str) -> object:
        """The value of the first of `keys` that is present and not null, else its default, else None."""
        self.looked_at.update(keys)
        found = {key: self.config[key] for key in keys if self.config.get(key) is not None}
        if found:
            first = next(iter(found))
            for key, value in found.items():
                if key != first and value != found[first]:
                    raise self.refuse(
                        key, f"contradicts “{first}”", "Keep the one that the model was trained with."
                    )
            return found[first]
        if any(key in self.config and key in NULL_MEANS_NONE for key in keys):
            return None
        return next((self._defaults[key] for key in keys if self._defaults.get(key) is not None), None)

    def null_means_derived(self, key: str) -> None:
        """In this family an explicit null is not an absent key: the class then works the value out."""
        if key in self.config and self.config[key] is None:
            self._defaults.pop(key, None)

    def ignore(self, *keys: str) -> None:
        """Keys known to be without effect in this family."""
        self.looked_at.update(keys)

    def number(self, *keys: str, low: int = 1, high: int = MAX_VALUE) -> int | None:
        """A whole number from `low` to `high`, or None if absent."""
        value = self.get(*keys)
        key = next((k for k in keys if self.config.get(k) is not None), keys[0])
        return None if value is None else self.check(key, value, low, high)

    def check(self, key: str, value: object, low: int = 1, high: int = MAX_VALUE) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            shown = (
                str(value)[:30]
                if isinstance(value, int | float | bool)
                else f"of type {type(value).__name__}"
            )
            raise self.refuse(
                key,
                f"is {shown}, not a whole number from {low} to {high:,}",
                "Correct the value.",
                "not_whole",
            )
        return value

    def need(self, *keys: str, low: int = 1, high: int = MAX_VALUE) -> int:
        """Like `number`, but absent is refused."""
        value = self.number(*keys, low=low, high=high)
        if value is None:
            raise self.refuse(
                keys[0], "is missing", "Use the complete config.json of the model, or add the key.", "missing"
            )
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "is neither true nor false", "Correct the value.")
        return value

    def sequence(self, key: str, length: int | None = None) -> list[object] | None:
        """A JSON list, or None if absent or empty. With `length`, a list of another length is refused."""
        value = self.get(key)
        if value is None or value == [] or value == ():
            return None
        if not isinstance(value, list | tuple):
            raise self.refuse(key, "is not a list", "Correct the value.")
        if length is not None and len(value) != length:
            raise self.refuse(
                key, f"has {len(value)} entries for {length} layers", "Use the complete config.json."
            )
        return list(value)

    def numbers(
        self, key: str, low: int = 0, high: int = MAX_VALUE, length: int | None = None
    ) -> list[int] | None:
        values = self.sequence(key, length)
        return None if values is None else [self.check(key, value, low, high) for value in values]

    def section(self, key: str) -> Reader | None:
        """A nested object, read under the same rules."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(key, "is not an object", "Correct the value.")
        return Reader(value, self.family, include_mtp=self.include_mtp)

    def finish(self) -> None:
        """Refuse if something that could change the cache was set and nobody looked at it."""
        for key in sorted(STRUCTURAL & self.config.keys()):
            if key not in self.looked_at and self.config[key] not in (None, False, 0, "", [], {}):
                raise self.refuse(
                    key,
                    f"is not known in the family “{self.family}”, and it may change the cache",
                    why="unknown_key",
                )

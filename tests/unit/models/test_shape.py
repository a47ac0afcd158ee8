"""A decoder's size, by arithmetic done by hand."""

import pytest

from mappa_core.models.shape import QWEN3_4B, ModelShape, shape_of

TINY = ModelShape(
    layers=2,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_width=2,
    intermediate=16,
    vocabulary=10,
    tied=True,
)


def test_a_models_size_by_hand() -> None:
    # A layer: queries and output 64 each, keys and values 32 each, 3 x 128, norms 16 = 592.
    assert TINY.parameters == 2 * 592 + 10 * 8 + 8
    # Rank 1: 2 x (8 + 8) + 2 x (8 + 4) + 3 x (8 + 16) = 128 a layer.
    assert TINY.adapter_parameters(1) == 2 * 128
    # Keys and values of 2 layers, 2 heads, width 2, 2 bytes each.
    assert TINY.cache_bytes_per_token == 2 * 2 * 2 * 2 * 2


def test_qwen3_4b_has_the_published_size() -> None:
    assert QWEN3_4B.parameters == 4_022_468_096
    assert QWEN3_4B.cache_bytes_per_token == 147_456


def test_a_shape_is_read_from_a_models_configuration() -> None:
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 10,
        "tie_word_embeddings": True,
    }
    assert shape_of(config) == TINY
    with pytest.raises(KeyError, match="vocab_size"):
        shape_of({key: value for key, value in config.items() if key != "vocab_size"})
    # Each of its feed-forward layers is many: to count one would plan a tenth of the weights.
    with pytest.raises(KeyError, match="what its num_experts weigh"):
        shape_of({**config, "num_experts": 128})
    assert shape_of({**config, "num_experts": 0}) == TINY

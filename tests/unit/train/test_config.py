import pytest
from pydantic import ValidationError

from mappa_core.train.config import DeepspeedConfig


def test_a_run_stored_with_no_nodes_is_read_and_nodes_are_refused() -> None:
    assert DeepspeedConfig.model_validate({"ranks": 2, "nodes": []}).ranks == 2
    with pytest.raises(ValidationError, match="nodes"):
        DeepspeedConfig.model_validate({"nodes": ["one", "another"]})

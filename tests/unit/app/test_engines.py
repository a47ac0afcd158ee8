"""A way of weights into the servers that there is not is refused, not passed over."""

import pytest

from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import ConfigError
from mappa_core.rollout.engines.opening import check_engine


@pytest.mark.parametrize(
    ("engine", "learner", "complaint"),
    [
        ({}, {}, "goes through a GPU's memory: on a CPU leave it at reload"),
        ({"serving": "merged"}, {}, "goes through a GPU's memory"),
        ({"serving": "adapters"}, {}, "sends whole weights to vLLM, and none are served"),
        (
            {"backend": "transformers"},
            {"weights": "full"},
            "engine.backend=vllm and engine.serving",
        ),
    ],
)
def test_weights_are_sent_where_whole_ones_are_served(
    engine: dict[str, str], learner: dict[str, str], complaint: str
) -> None:
    asked = {"device": "cpu", "weight_sync": "ipc", **engine}
    config = TrainConfig.model_validate({"engine": asked, "learner": learner})
    with pytest.raises(ConfigError, match=f"^engine.weight_sync=ipc .*{complaint}"):
        check_engine(config)
    reloads = config.engine.model_copy(update={"weight_sync": "reload"})
    check_engine(config.model_copy(update={"engine": reloads}))

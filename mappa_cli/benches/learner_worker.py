"""One update by this project's learner, in a process of its own: `python -m ... SPEC.json`.

Prints one JSON line. See `benches.learner`.
"""

import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from uuid import UUID

from pydantic import TypeAdapter

from mappa_cli.benches.learner import Measured, Row, Spec
from mappa_core.core.ids import content_id
from mappa_core.core.records.updates import TrainingSample
from mappa_core.train.config import AlgorithmConfig, GuardConfig, LearnerConfig
from mappa_core.train.learners.roofline import measured
from mappa_core.train.learners.torch_learner import TorchLearner
from mappa_core.train.update import base_policy


def _sample(number: int, row: Row) -> TrainingSample:
    return TrainingSample(
        action_id=content_id("bench", number),
        prompt_token_ids=tuple(row.prompt),
        token_ids=tuple(row.response),
        # Random tokens are very unlikely; near their log-probs, so that nothing overflows.
        old_logprobs=(-12.0,) * len(row.response),
        advantages=(row.advantage,) * len(row.response),
    )


def main() -> None:
    """Warm up with one sequence, then measure them all."""
    spec = TypeAdapter(Spec).validate_json(Path(sys.argv[1]).read_text())
    config = LearnerConfig.model_validate(
        {
            "device": "cpu",
            "weights": spec.weights,
            "dtype": spec.dtype,
            "lora": {"rank": spec.rank, "alpha": spec.alpha},
            "learning_rate": 1e-6,
            "micro_batch_tokens": spec.micro_batch_tokens,
            "gradient_checkpointing": spec.gradient_checkpointing,
        }
    )
    samples = [_sample(number, row) for number, row in enumerate(spec.samples)]
    policy = base_policy(UUID(int=0), "a", spec.model)
    with tempfile.TemporaryDirectory() as directory:
        learner = TorchLearner(spec.model, Path(directory), config, threads=spec.threads)
        # No model sampled these tokens.
        algorithm = AlgorithmConfig(guard=GuardConfig(mismatch_kl_max=None))
        learner.update(policy, samples[:1], algorithm, total_steps=1, seed=1)
        started = time.process_time()
        metrics = learner.update(policy, samples, algorithm, total_steps=1, seed=1).metrics
        cpu_seconds = time.process_time() - started
        products = measured(
            lambda: learner.update(policy, samples, algorithm, total_steps=1, seed=1),
            at_once=learner.passes.at_once,
        )
    tokens = sum(len(each.prompt_token_ids) + len(each.token_ids) for each in samples)
    update = Measured(
        tokens_per_second=metrics["tokens_per_second"],
        # The checkpoint's writing and hashing are in it, which the wall clock leaves out.
        tokens_per_cpu_second=tokens / cpu_seconds,
        extra_bytes=metrics["peak_extra_memory_bytes"],
        products=products,
    )
    sys.stdout.write(json.dumps(asdict(update)) + "\n")


if __name__ == "__main__":
    main()

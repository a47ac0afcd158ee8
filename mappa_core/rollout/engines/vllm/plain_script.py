"""Samples requests by vLLM's own Python API, for `mappa bench rollout` to be compared with.

    python plain_script.py FILE     prints one line of JSON for each batch, among vLLM's own lines

FILE is {"arguments": [...], "batches": [[{"prompt": [...], "sampling": {...}}, ...], ...]}:
arguments of vLLM's command line, batches that are sampled one after another, and for each request
the ids of its prompt and what `SamplingParams` takes. A line is {"seconds": ..., "tokens": [[...],
...]}. The first batch is sampled once before, so that nothing is done for the first time while it
counts; each one begins with an empty prefix cache.

A script of its own: nothing else of this project is imported.
"""

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Load the model and sample."""
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.inputs import TokensPrompt
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    asked = json.loads(Path(sys.argv[1]).read_text())
    given = make_arg_parser(FlexibleArgumentParser()).parse_args(asked["arguments"])
    assert given is not None
    llm = LLM.from_engine_args(EngineArgs.from_cli_args(given))
    answers: list[dict[str, object]] = []
    first, *others = asked["batches"]
    for batch in (first, first, *others):
        prompts = [TokensPrompt(prompt_token_ids=request["prompt"]) for request in batch]
        sampling = [SamplingParams(**request["sampling"]) for request in batch]
        llm.reset_prefix_cache()
        started = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        answers.append({"seconds": seconds, "tokens": tokens})
    for answer in answers[1:]:
        print(json.dumps(answer))  # noqa: T201 (its result)


if __name__ == "__main__":
    main()

"""Chooses how a model is read, by comparing each way with the model's plain forward.

A wrong reading gives no error, only wrong numbers: a tree read without its model's sliding window
was 1.1 nats off. So a few sequences that share prefixes and branch are read both ways when a model
is loaded, and one by one through its own forward, logits and all.
"""

import logging
import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mappa_core.core.errors import LearnerError
from mappa_core.models.device import resolve_dtype
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.head import head_of
from mappa_core.train.learners.reading import ATTENTION, Reading, Way, autocast
from mappa_core.train.prefix_tree import Tokens, build

LARGEST = 3e-4
"""Nats between two ways to read any token in float32; SmolLM2-135M's rounding is 2.5e-5."""
BFLOAT16_MEAN = 0.15
"""Nats on average where products are in bfloat16; SmolLM2-135M's rounding is 0.06."""
REFERENCE = "eager"
"""The attention that every model's authors wrote it with, with all that it has."""
WINDOW, CHUNK = 5, 7
"""Sliding window and attention chunk while it is checked, so that few tokens reach beyond them."""

_NARROWED = {"sliding_window": WINDOW, "attention_chunk_size": CHUNK}
_OF_MANY = ("index_", "compress")
_FOREIGN = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a model's code may raise that was not written for trees."""
_log = logging.getLogger(__name__)


def choose_reading(base: PreTrainedModel, learner: LearnerConfig) -> Reading:
    """Take `learner.reading`, or for auto the tree where it is right and else the padded rows.

    Raises:
        LearnerError: The reading that was asked for, or every one, differs from the model's own.
    """
    products = resolve_dtype(learner.dtype, base.device.type)
    exact = products is torch.float32 and base.dtype is torch.float32
    tolerance = LARGEST if exact else BFLOAT16_MEAN
    wrong: list[str] = []
    for reading in readings(base, learner.micro_batch_tokens, products):
        if learner.reading not in ("auto", reading.way):
            continue
        gaps = differences(reading)
        gap = float(gaps.max() if exact else gaps.mean())
        if gap <= tolerance:
            if wrong and reading.way == "padded":
                _log.warning("%s: it is read padded, which is slower", wrong[0])
            return reading
        wrong.append(f"{type(base).__name__} read {reading.name} is {gap:.2g} nats off its forward")
    raise LearnerError(
        f"{'; '.join(wrong)} (at most {tolerance:g} is rounding): choose another model"
        + ("" if learner.reading == "auto" else ", or learner.reading=auto")
    )


def readings(
    base: PreTrainedModel, budget_tokens: int, products: torch.dtype = torch.float32
) -> tuple[Reading, ...]:
    """List the ways to read a model with products of that type, the fastest first."""
    own = str(base.config._attn_implementation)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    # On a GPU the output layer's few products cost little in float32.
    head = head_of(base, products if base.device.type == "cpu" else torch.float32)
    ways: list[tuple[Way, str]] = [("padded", own)]
    settings = base.config.get_text_config().to_dict()
    # Layers that choose among many tokens, or read them compressed, see all of a few.
    if not any(name.startswith(_OF_MANY) for name, value in settings.items() if value):
        ways.insert(0, ("tree", ATTENTION))
    if own != REFERENCE:
        # Where the faster one leaves out what it cannot do, as torch's does with Gemma 2's cap.
        ways.append(("padded", REFERENCE))
    return tuple(
        Reading(
            base=base,
            head=head,
            way=way,
            attention=attention,
            budget_tokens=budget_tokens,
            products=products,
        )
        for way, attention in ways
    )


def differences(reading: Reading) -> Tensor:
    """Measure how far each token's log-prob is from that of the model's own forward, in nats.

    The model is left with the reading's attention. Infinite where it cannot be read so at all.
    """
    base = reading.base
    prompts, responses = _sequences(base.config.get_text_config().vocab_size)
    with torch.no_grad(), _narrowed(base):
        base.set_attn_implementation(REFERENCE)
        own = torch.cat([_own(reading, *each) for each in zip(prompts, responses, strict=True)])
        try:
            base.set_attn_implementation(reading.attention)
            read = _read(reading, prompts, responses)
        except torch.OutOfMemoryError:
            raise
        except _FOREIGN as error:
            _log.info("%s cannot be read %s: %r", type(base).__name__, reading.name, error)
            return torch.full_like(own, torch.inf)
    return (read - own).abs()


def _sequences(vocabulary: int) -> tuple[list[Tokens], list[Tokens]]:
    """Make prompts and responses that share beginnings, branch, and differ in length."""
    drawn = random.Random(0)  # noqa: S311
    shared, first, second = (
        [drawn.randrange(3, min(vocabulary, 1000)) for _ in range(length)] for length in (9, 4, 17)
    )
    prompts = [shared, shared, shared + first, first]
    responses = [second, [*second[:6], *first], second[:12], shared + second]
    return list(prompts), list(responses)


def _own(reading: Reading, prompt: Tokens, response: Tokens) -> Tensor:
    """Read one response by the model's own forward; (T,)."""
    base = reading.base
    ids = torch.tensor([[*prompt, *response]], device=base.device)
    with autocast(base, reading.products):
        logits = base(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    chosen = torch.tensor(response, device=base.device)[:, None]
    return logits.float().log_softmax(-1).gather(1, chosen)[:, 0].cpu()


def _read(reading: Reading, prompts: Sequence[Tokens], responses: Sequence[Tokens]) -> Tensor:
    """Read all responses as an update does, in the order they came; (sum of T,)."""
    found: dict[int, Tensor] = {}
    for part in reading.cut(prompts, responses):
        tree = build([prompts[i] for i in part], [responses[i] for i in part])
        rows = reading.read(tree, 1.0).logprobs.cpu().split([len(responses[i]) for i in part])
        found |= dict(zip(part, rows, strict=True))
    return torch.cat([found[i] for i in range(len(prompts))])


@contextmanager
def _narrowed(base: PreTrainedModel) -> Generator[None]:
    """Have the model's layers see less meanwhile, where they do not see all.

    Masks are made from the configuration with every forward, those of the model's own attention
    and those that a tree's are asked with.
    """
    config = base.config.get_text_config()
    before = {name: getattr(config, name, None) for name in _NARROWED}
    try:
        for name, width in before.items():
            if width is not None:
                setattr(config, name, min(width, _NARROWED[name]))
        yield
    finally:
        for name, width in before.items():
            if width is not None:
                setattr(config, name, width)

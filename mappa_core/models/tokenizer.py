"""Chat messages to token ids and back, so that content can never act as control.

    messages ─ chat template, once, with placeholders for the contents ─▶ text
    text ─ cut at the template's own control tokens ─▶ ids of control tokens, and stretches of text
    stretch + contents ─ tokenised with control tokens read as plain letters ─▶ ids

A stretch is tokenised in one go, contents and template words together, so that ordinary
messages give exactly the ids that `apply_chat_template` gives.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import TemplateError
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from mappa_core.core.errors import ConfigError, ModelNotFound
from mappa_core.core.records.episodes import Message
from mappa_core.core.text import THOUGHT_END, has_thought, opened_thought

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")


KEPT_PIECES = 4096
"""Texts whose ids are remembered; the one that was not asked for longest is forgotten."""

_Piece: TypeAlias = str | tuple[int, ...]
"""Text to tokenise, or ids: the template's own control token, or what an agent said as sampled."""


@dataclass(frozen=True, slots=True)
class _Content:
    """The place of a message's content."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    """What the chat template makes of messages of some roles, whatever they say."""

    parts: tuple[_Piece | _Content, ...]
    thought: str
    """That it opens before the reply."""


class ChatTokenizer:
    """A model's tokenizer and chat template."""

    def __init__(
        self, model: Path | str, variables: Mapping[str, bool | str] | None = None
    ) -> None:
        """Read both from `model`; `variables` are the template's, `enable_thinking` for one.

        Raises:
            ModelNotFound: There is no tokenizer, or it has no chat template.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise ModelNotFound(
                f"{model} has no tokenizer that transformers can read: {_one_line(error)}"
            ) from error
        if not tokenizer.chat_template:
            raise ModelNotFound(
                f"{model} has no chat template: use an instruction-tuned model, or add a "
                "chat_template.jinja"
            )
        self._tokenizer: PreTrainedTokenizerBase = tokenizer
        self._variables: dict[str, Any] = dict(variables or {})
        self.chat_template = tokenizer.chat_template
        added = tokenizer.added_tokens_decoder.items()
        # Most of a prompt is the same from episode to episode: its template and worked examples.
        self._encode = lru_cache(KEPT_PIECES)(self._read)
        self._templates: dict[tuple[tuple[str, ...], date], _Template] = {}
        self._controls = {token.content: number for number, token in added if token.special}
        self._control_pattern = _any_of(tokenizer, self._controls)
        # Tags of thoughts are read, so that they stay in the text where a model makes them special.
        self._unread = {at for name, at in self._controls.items() if not has_thought(name)}
        self.end_token_ids = _end_token_ids(tokenizer, self._controls, model)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt ids of `messages`, ready for the assistant's reply; shape (T,).

        Raises:
            ConfigError: The model's chat template does not take these messages.
        """
        ids: list[int] = []
        for piece in _joined(self._pieces(messages)):
            ids.extend(self._encode(piece) if isinstance(piece, str) else piece)
        return tuple(ids)

    def opened_thought(self, messages: Sequence[Message]) -> str:
        """The thought that the template opens before the reply to `messages`, if it opens one.

        Only the template's own words count: a tag in a message opens nothing.

        Raises:
            ConfigError: The model's chat template does not take these messages.
        """
        return self._template_of(messages).thought

    def _template_of(self, messages: Sequence[Message]) -> "_Template":
        """The template around messages of these roles; made once a day, whose date it may name."""
        key = (tuple(message.role for message in messages), datetime.now(UTC).astimezone().date())
        if (known := self._templates.get(key)) is None:
            known = self._templates[key] = self._read_template(messages)
        return known

    def _read_template(self, messages: Sequence[Message]) -> "_Template":
        names = _placeholders(messages)
        text = self._apply_template(messages, names)
        parts: list[_Piece | _Content] = []
        for part in re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]:
            if part in names:
                parts.append(_Content(names.index(part)))
            else:
                parts.extend(self._template_pieces(part))
        after = text[max(text.index(name) + len(name) for name in names) :] if names else text
        return _Template(parts=tuple(parts), thought=opened_thought(after))

    def close_of_thought(self) -> tuple[int, ...]:
        """The ids that end a thought, the tag as the model itself would write it."""
        # A tag that a model makes special is no plain text for once: it is meant as control.
        return tuple(self._tokenizer.encode(THOUGHT_END, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of sampled ids, control tokens left out, white space as it was."""
        # decode() is typed for batches as well; one sequence gives one text.
        return str(
            self._tokenizer.decode(
                [each for each in token_ids if each not in self._unread],
                skip_special_tokens=False,
                clean_up_tokenization_spaces=False,
            )
        )

    def _apply_template(self, messages: Sequence[Message], placeholders: Sequence[str]) -> str:
        chat = [
            {"role": message.role, "content": placeholder}
            for message, placeholder in zip(messages, placeholders, strict=True)
        ]
        try:
            text = self._tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=True, **self._variables
            )
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise ConfigError(
                f"the model's chat template refuses messages of {roles}: {_one_line(error)}"
            ) from error
        if not isinstance(text, str) or any(text.count(name) != 1 for name in placeholders):
            raise ConfigError(
                "the model's chat template does not show every message exactly once: "
                "give the model another chat_template.jinja"
            )
        return text

    def _pieces(self, messages: Sequence[Message]) -> Iterator[_Piece]:
        for part in self._template_of(messages).parts:
            if not isinstance(part, _Content):
                yield part
                continue
            message = messages[part.index]
            ids = message.token_ids
            yield message.content if ids is None else self._without_end(ids)

    def _template_pieces(self, text: str) -> Iterator[_Piece]:
        for part in self._control_pattern.split(text):
            token_id = self._controls.get(part.strip()) if part else None
            yield part if token_id is None else (token_id,)

    def _without_end(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Sampled ids without the token that ended the turn: the template closes turns itself."""
        ended = bool(token_ids) and token_ids[-1] in self.end_token_ids
        return token_ids[:-1] if ended else token_ids

    def _read(self, text: str) -> tuple[int, ...]:
        read = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return tuple(read)


def _placeholders(messages: Sequence[Message]) -> tuple[str, ...]:
    """What stands for the messages' contents in the template: no content can know it."""
    nonce = secrets.token_hex(8)
    return tuple(f"[[{nonce}:{index}]]" for index in range(len(messages)))


def _joined(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """Neighbouring texts as one; empty ones vanish."""
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if text:
            yield text
        text = ""
        yield piece
    if text:
        yield text


def _any_of(tokenizer: PreTrainedTokenizerBase, controls: Mapping[str, int]) -> re.Pattern[str]:
    """Matches any control token, with the white space that the token swallows."""
    alternatives: list[str] = []
    for name in sorted(controls, key=len, reverse=True):
        token = tokenizer.added_tokens_decoder[controls[name]]
        left, right = (r"\s*" if token.lstrip else ""), (r"\s*" if token.rstrip else "")
        alternatives.append(f"{left}{re.escape(name)}{right}")
    return re.compile(f"({'|'.join(alternatives)})")


def _end_token_ids(
    tokenizer: PreTrainedTokenizerBase, controls: Mapping[str, int], model: Path | str
) -> tuple[int, ...]:
    """Every token that ends a turn, in ascending order."""
    ends = {controls[name] for name in _TURN_ENDS if name in controls}
    if isinstance(tokenizer.eos_token_id, int):
        ends.add(tokenizer.eos_token_id)
    try:
        declared = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        declared = None  # the file is optional
    if declared is not None:
        ends.update(declared if isinstance(declared, list) else (declared,))
    return tuple(sorted(ends))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

"""Prompts: files with a version, parsed strictly.

---                       one folder per set, `prompts/<team>/<name>-<version>/`,
version: 1                with one file per agent, `<agent>.md`
output_chars: 160
---
[system]                  optional; {{tools}} where the tools of servers are listed
...
[user]                    worked examples as earlier chat turns: any number of pairs, the
...                       same for every problem, so that they are the shared prefix
[assistant]
...
[template]                what the agent is asked; {{placeholders}} from its `sees`
...
[feedback]                optional: what it is told before another turn
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable

from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Message
from mappa_core.core.text import common_name

TOOLS = "tools"
"""The placeholder of a system message; `rollout.tools.team` fills it."""
_HEADING = re.compile(r"^\[([a-z]+)\]$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
_ORDER = re.compile(r"(?:system )?(?:user assistant )*template (?:feedback )?")
_HEAD = re.compile(r"---\nversion: ([1-9][0-9]*)\noutput_chars: ([1-9][0-9]*)\n---\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What one agent is told."""

    version: int
    output_chars: int
    """Kept of a program's output when it is quoted, both ends."""
    opening: tuple[Message, ...]
    """System message and worked examples, the same for every problem."""
    template: str
    feedback: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """The prompts of a whole team."""

    name: str
    """The folder, e.g. `small-1`; it ends with the version."""
    version: int
    sha256: str
    """Of all files of the set, so that a changed word is another prompt set."""
    prompts: Mapping[str, Prompt]
    """By agent."""


def parse_prompt(text: str, *, agent: str, sees: Collection[str], source: str) -> Prompt:
    """Read one prompt file.

    Args:
        text: The file's content.
        agent: Whose prompt; what its own program wrote (`<agent>.output`) is for the feedback.
        sees: Placeholders its template and feedback may use.
        source: How to name the file in an error.

    Raises:
        ConfigError: The head, a section or a placeholder is not as the format wants it.
    """
    head = _HEAD.match(text)
    if head is None:
        raise ConfigError(
            f"{source} must begin with ---, version: N, output_chars: N, ---, each on its line"
        )
    sections = _sections(text[head.end() :], source)
    bodies = dict(sections)
    opening = sections[: [name for name, _ in sections].index("template")]
    asked = [name for name in sees if not name.startswith(f"{agent}.")]
    for name, body in sections:
        allowed = {"system": (TOOLS,), "template": asked, "feedback": sees}.get(name, ())
        _check_placeholders(body, allowed, f"{source}, [{name}],")
    return Prompt(
        version=int(head[1]),
        output_chars=int(head[2]),
        opening=tuple(_message(name, body) for name, body in opening),
        template=bodies["template"],
        feedback=bodies.get("feedback"),
    )


def fill(template: str, values: Mapping[str, str]) -> str:
    """`template` with each `{{name}}` replaced; values are inserted as they are, once."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def load_prompts(team: str, name: str, sees: Mapping[str, Collection[str]]) -> PromptSet:
    """The prompt set `name` of a team; `sees` has the placeholders that each agent's may use.

    Raises:
        ConfigError: No such set, a file is missing, or one breaks the format.
    """
    folder, version = _folder(team, name), _version(name)
    texts = {agent: _read(folder, agent) for agent in sees}
    prompts = {
        agent: parse_prompt(
            text, agent=agent, sees=sees[agent], source=f"prompts/{team}/{name}/{agent}.md"
        )
        for agent, text in texts.items()
    }
    for agent, prompt in prompts.items():
        if prompt.version != version:
            raise ConfigError(
                f"prompts/{team}/{name}/{agent}.md says version {prompt.version}: a changed "
                "prompt needs a folder with that version in its name"
            )
    return PromptSet(name=name, version=version, sha256=_digest(texts), prompts=prompts)


def prompt_fingerprints(prompts: PromptSet) -> dict[str, str]:
    """Fingerprint what each agent is told, the tools of servers included, as `prompts.<agent>`."""
    return {
        f"prompts.{agent}": ids.fingerprint(
            prompt.output_chars,
            tuple((message.role, message.content) for message in prompt.opening),
            prompt.template,
            prompt.feedback,
        )
        for agent, prompt in prompts.prompts.items()
    }


def _folder(team: str, name: str) -> Traversable:
    folders = {
        folder.name: folder for folder in (files(__name__) / team).iterdir() if folder.is_dir()
    }
    if name not in folders:
        near = get_close_matches(name, folders, n=1) or sorted(folders)
        raise ConfigError(f"team {team} has no prompts {name!r}: try {' or '.join(near)}")
    return folders[name]


def _version(name: str) -> int:
    number = name.rpartition("-")[2]
    if not re.fullmatch("[1-9][0-9]*", number):
        raise ConfigError(f"prompt set {name!r} must end with its version, e.g. {name}-1")
    return int(number)


def _read(folder: Traversable, agent: str) -> str:
    file, first = folder / f"{agent}.md", f"{common_name(agent)}_1"
    if not file.is_file() and first != agent and (folder / f"{first}.md").is_file():
        # One of more peers than the set has files for: the words of the first.
        return _read(folder, first).replace(f"{{{{{first}.", f"{{{{{agent}.")
    if not file.is_file():
        raise ConfigError(f"prompt set {folder.name} lacks {agent}.md: add the file")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{folder.name}/{agent}.md is not UTF-8 text: save it as UTF-8") from None


def _digest(texts: Mapping[str, str]) -> str:
    parts = (f"{agent}\n{len(text)}\n{text}" for agent, text in sorted(texts.items()))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _sections(text: str, source: str) -> list[tuple[str, str]]:
    parts = _HEADING.split(text)
    if parts[0].strip():
        raise ConfigError(f"{source} has text before its first [section]: move it into one")
    names, bodies = parts[1::2], [body.strip("\n") for body in parts[2::2]]
    if not _ORDER.fullmatch("".join(f"{name} " for name in names)):
        raise ConfigError(
            f"{source} has sections {', '.join(names) or 'none'}: the order is system, pairs of "
            "user and assistant, template, feedback; only the template is required"
        )
    empty = [name for name, body in zip(names, bodies, strict=True) if not body.strip()]
    if empty:
        raise ConfigError(f"{source} has an empty section [{empty[0]}]: fill it or leave it out")
    return list(zip(names, bodies, strict=True))


def _check_placeholders(body: str, allowed: Collection[str], source: str) -> None:
    unknown = [name for name in _PLACEHOLDER.findall(body) if name not in allowed]
    if unknown:
        raise ConfigError(
            f"{source} uses {{{{{unknown[0]}}}}}, which is not seen there: "
            + (f"use {', '.join(allowed)}" if allowed else "worked examples are for all problems")
        )


def _message(name: str, body: str) -> Message:
    if name == "system":
        return Message(role="system", content=body)
    return Message(role="user" if name == "user" else "assistant", content=body)

"""Writes the configuration's reference page from the models; a test holds `docs/` to it.

TrainConfig ─▶ JSON schema ─▶ one table per section: key, default, values, what it does
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, Field

from mappa_core.app.config import TrainConfig

HEAD = """\
# Configuration

One YAML file is one run: `mappa train --config FILE key=value ...`. Every key has a default, any
can be overridden on the command line by its dotted name, and a key that does not exist is refused
with the nearest one that does. `mappa config show RUN` prints what a stored run ran with, and
`mappa config diff A B` what is different between two runs or files.

This page is written by `mappa config docs > docs/configuration.md`; change the classes
of the code, not the page.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, as a reader meets it."""

    path: str
    default: str
    """As YAML."""
    values: str
    """Kind and bounds in words."""
    description: str


def page() -> str:
    """The whole reference in Markdown."""
    parts = [HEAD]
    for title, about, section in _sections():
        rows = "\n".join(
            f"| `{key.path}` | `{key.default}` | {_cell(key.values)} | {_cell(key.description)} |"
            for key in section
        )
        head = "| key | default | values | what it does |\n| --- | --- | --- | --- |\n"
        parts.append(f"## {title}\n\n{about}\n\n{head}{rows}\n")
    return "\n".join(parts)


def reference() -> tuple[Key, ...]:
    """Every key of the configuration, in the order of the models."""
    return tuple(key for _, _, section in _sections() for key in section)


class _Schema(BaseModel):
    """A part of a JSON schema, as far as the page says it."""

    ref: str = Field(default="", alias="$ref")
    defs: dict[str, "_Schema"] = Field(default={}, alias="$defs")
    description: str = ""
    type: str = ""
    properties: dict[str, "_Schema"] = {}
    any_of: list["_Schema"] = Field(default=[], alias="anyOf")
    enum: list[object] = []
    const: object = None
    items: "_Schema | None" = None
    prefix_items: list["_Schema"] = Field(default=[], alias="prefixItems")
    min_items: int = Field(default=0, alias="minItems")
    additional: "_Schema | bool" = Field(default=False, alias="additionalProperties")
    by_pattern: dict[str, "_Schema"] = Field(default={}, alias="patternProperties")
    minimum: int | float | None = None
    above: int | float | None = Field(default=None, alias="exclusiveMinimum")
    maximum: int | float | None = None
    below: int | float | None = Field(default=None, alias="exclusiveMaximum")
    pattern: str = ""


Defs = Mapping[str, _Schema]


def _sections() -> Iterator[tuple[str, str, tuple[Key, ...]]]:
    schema = _Schema.model_validate(TrainConfig.model_json_schema())
    defaults = TrainConfig().model_dump(mode="json")
    resolved = {name: _resolved(each, schema.defs) for name, each in schema.properties.items()}
    top = {name: each for name, each in schema.properties.items() if not resolved[name].properties}
    yield "The run", "Keys at the top.", tuple(_keys(top, defaults, "", schema.defs))
    for name, section in resolved.items():
        if section.properties:
            keys = _keys(section.properties, defaults[name], f"{name}.", schema.defs)
            yield f"`{name}`", " ".join(section.description.split()), tuple(keys)


def _keys(
    fields: Mapping[str, _Schema], defaults: Mapping[str, object], prefix: str, defs: Defs
) -> Iterator[Key]:
    for name, field in fields.items():
        inner, default = _resolved(field, defs), defaults[name]
        if inner.properties and isinstance(default, Mapping):
            yield from _keys(inner.properties, default, f"{prefix}{name}.", defs)
            continue
        yield Key(
            path=f"{prefix}{name}",
            default=json.dumps(default, ensure_ascii=False),
            values=_values(field, defs),
            description=field.description,
        )


def _values(field: _Schema, defs: Defs) -> str:
    """Kind and bounds of a value in words, e.g. `integer, at least 1`."""
    field = _resolved(field, defs)
    if field.any_of:
        return " or ".join(_values(each, defs) for each in field.any_of)
    if field.enum or field.const is not None:
        return ", ".join(f"`{each}`" for each in field.enum or [field.const])
    if field.properties:
        return "{" + ", ".join(field.properties) + "}"
    if field.prefix_items:
        return f"list of {len(field.prefix_items)}: {_values(field.prefix_items[0], defs)}"
    if field.items is not None:
        fewest = f" (at least {field.min_items})" if field.min_items else ""
        return f"list{fewest} of {_values(field.items, defs)}"
    # What the values of a mapping are, whether or not its names have a pattern.
    named = field.additional if isinstance(field.additional, _Schema) else None
    for inner in (named, *field.by_pattern.values()):
        if inner is not None:
            return f"mapping of names to {_values(inner, defs)}"
    kind = {"string": "text", "boolean": "true or false"}.get(field.type, field.type)
    return ", ".join([kind, *_bounds(field)])


def _bounds(field: _Schema) -> Iterator[str]:
    for bound, word in (
        (field.minimum, "at least"),
        (field.above, "above"),
        (field.maximum, "at most"),
        (field.below, "below"),
    ):
        if bound is not None:
            yield f"{word} {bound:g}" if isinstance(bound, float) else f"{word} {bound}"
    if field.pattern:
        yield f"like `{field.pattern}`"


def _resolved(field: _Schema, defs: Defs) -> _Schema:
    return defs[field.ref.rpartition("/")[2]] if field.ref else field


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

"""The configuration's reference page, written from the models; a test holds `docs/` to it.

TrainConfig ─▶ JSON schema ─▶ one table per section: key, default, values, what it does
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mappa_core.app.config import TrainConfig

Schema = Mapping[str, object]

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


def _sections() -> Iterator[tuple[str, str, tuple[Key, ...]]]:
    schema = TrainConfig.model_json_schema()
    defaults = TrainConfig().model_dump(mode="json")
    sections = {
        name: field
        for name, field in schema["properties"].items()
        if _is_section(_resolved(field, schema))
    }
    top = {name: each for name, each in schema["properties"].items() if name not in sections}
    yield "The run", "Keys at the top.", tuple(_keys(top, defaults, "", schema))
    for name, field in sections.items():
        section = _resolved(field, schema)
        about = " ".join(str(section["description"]).split())
        keys = _keys(_properties(section), _mapping(defaults[name]), f"{name}.", schema)
        yield f"`{name}`", about, tuple(keys)


def _keys(properties: Schema, defaults: Schema, prefix: str, schema: Schema) -> Iterator[Key]:
    for name, found in properties.items():
        field = _mapping(found)
        inner = _resolved(field, schema)
        if _is_section(inner):
            yield from _keys(
                _properties(inner), _mapping(defaults[name]), f"{prefix}{name}.", schema
            )
            continue
        yield Key(
            path=f"{prefix}{name}",
            default=json.dumps(defaults[name], ensure_ascii=False),
            values=_values(field, schema),
            description=str(field.get("description", "")),
        )


def _values(field: Schema, schema: Schema) -> str:
    """Kind and bounds of a value in words, e.g. `integer, at least 1`."""
    field = _resolved(field, schema)
    if "anyOf" in field:
        return " or ".join(_values(_mapping(each), schema) for each in _list(field["anyOf"]))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{each}`" for each in _list(field.get("enum", [field.get("const")])))
    if _is_section(field):
        return "{" + ", ".join(_properties(field)) + "}"
    if field.get("type") == "array":
        return _array(field, schema)
    for inner in _mapped(field):
        return f"mapping of names to {_values(inner, schema)}"
    kind = {"string": "text", "boolean": "true or false"}.get(str(field["type"]))
    return ", ".join([kind or str(field["type"]), *_bounds(field)])


def _mapped(field: Schema) -> Iterator[Schema]:
    """What the values of a mapping are, whether or not its names have a pattern."""
    if "additionalProperties" in field:
        yield _mapping(field["additionalProperties"])
    for inner in _mapping(field.get("patternProperties", {})).values():
        yield _mapping(inner)


def _array(field: Schema, schema: Schema) -> str:
    if "prefixItems" in field:
        items = [_values(_mapping(each), schema) for each in _list(field["prefixItems"])]
        return f"list of {len(items)}: {items[0]}"
    fewest = f" (at least {field['minItems']})" if field.get("minItems") else ""
    return f"list{fewest} of {_values(_mapping(field['items']), schema)}"


def _bounds(field: Schema) -> Iterator[str]:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    for key, word in words.items():
        if key in field:
            yield (
                f"{word} {field[key]:g}"
                if isinstance(field[key], float)
                else (f"{word} {field[key]}")
            )
    if "pattern" in field:
        yield f"like `{field['pattern']}`"


def _resolved(field: Schema, schema: Schema) -> Schema:
    if "$ref" not in field:
        return field
    name = str(field["$ref"]).rpartition("/")[2]
    return _mapping(_mapping(schema["$defs"])[name])


def _is_section(field: Schema) -> bool:
    return "properties" in field


def _properties(field: Schema) -> Schema:
    return _mapping(field["properties"])


def _mapping(value: object) -> Schema:
    assert isinstance(value, Mapping)
    return value


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

"""Configuration as people write it: a YAML file and dotted overrides, checked as one.

configs/quickstart.yaml + ["seed=3", "rollout.iterations=4"] ─▶ TrainConfig
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from re import findall

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from yaml import MarkedYAMLError, YAMLError

from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import ConfigError
from mappa_core.core.package_files import package_folder


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """The configuration of one run.

    Args:
        path: A YAML file, or None for the defaults. A preset may be named by its file's name, or
            as in a checkout (`configs/quickstart.yaml`), wherever MAPPA is installed.
        overrides: `a.b=value`, later ones win; values are read as YAML.

    Raises:
        ConfigError: The file cannot be read, a key does not exist (the message names the nearest
            one), or a value is out of bounds.
    """
    file = OmegaConf.create({}) if path is None else _loaded(path)
    return _validated(_merged(file, overrides, str(path or "the overrides")))


def with_overrides(config: TrainConfig, overrides: Sequence[str]) -> TrainConfig:
    """`config` with dotted overrides applied.

    Raises:
        ConfigError: As `load_config`.
    """
    base = OmegaConf.create(config.model_dump(mode="json"))
    return _validated(_merged(base, overrides, "the overrides"))


def keys() -> tuple[str, ...]:
    """Every dotted key of the configuration."""
    return tuple(_keys(TrainConfig, ""))


def differences(
    one: Mapping[str, object], other: Mapping[str, object]
) -> tuple[tuple[str, object, object], ...]:
    """The dotted keys in which two recorded configurations differ, with both values.

    A key that came later than a recording had its default then; one that is no more shows None
    where it is not recorded.
    """
    defaults = dict(_flat(TrainConfig().model_dump(mode="json"), ""))
    before, after = (defaults | dict(_flat(each, "")) for each in (one, other))
    paths = sorted({*before, *after})
    return tuple(
        (path, before.get(path), after.get(path))
        for path in paths
        if before.get(path) != after.get(path)
    )


def _flat(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    known = set(keys())
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and path not in known:
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _loaded(path: Path) -> DictConfig:
    try:
        file = OmegaConf.load(_found(path))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file {path}: {_presets()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text: save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{path} cannot be understood: {_why(error)}") from error
    if not isinstance(file, DictConfig):
        raise ConfigError(f"{path} is a list: write key: value, as the presets in configs/ do")
    return file


def _found(path: Path) -> Path:
    preset = package_folder("configs") / f"{path.stem}.yaml"
    in_configs = path.parent == Path("configs") or path == Path(path.stem)
    return preset if in_configs and not path.exists() else path


def _presets() -> str:
    names = sorted(file.stem for file in package_folder("configs").glob("*.yaml"))
    return f"the presets are {', '.join(names)}"


def _merged(base: DictConfig, overrides: Sequence[str], source: str) -> object:
    try:
        merged = OmegaConf.merge(base, OmegaConf.from_dotlist(_dotted(overrides)))
        return OmegaConf.to_container(merged, resolve=True)
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{source} cannot be understood: {_why(error)}") from error


def _why(error: Exception) -> str:
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).splitlines()[0]


def _dotted(overrides: Sequence[str]) -> list[str]:
    for override in overrides:
        key, separator, _ = override.partition("=")
        if not separator or not key:
            raise ConfigError(f"{override!r} is no override: write key=value, e.g. seed=3")
    return list(overrides)


def _validated(values: object) -> TrainConfig:
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        near = _nearest(key)
        hint = f": did you mean {near}?" if near else ": see `mappa train --dry-run` for all keys"
        return f"unknown key {key}{hint}{more}"
    message = first["msg"].removeprefix("Value error, ")
    if not key:
        return f"{message}{more}"
    message = message[0].lower() + message[1:]
    given = " ".join(str(first["input"]).split())
    if first["type"] in ("literal_error", "enum"):
        message += _nearest_value(given, str(first.get("ctx", {}).get("expected", "")))
    return f"{key}={given}: {message}{more}"


def _nearest_value(given: str, expected: str) -> str:
    """A hint where `given` is a slip of one of the values that pydantic expected."""
    close = get_close_matches(given, findall("'([^']*)'", expected), n=1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else ""


def _nearest(key: str) -> str | None:
    by_path = get_close_matches(key, keys(), n=1, cutoff=0.6)
    if by_path:
        return by_path[0]
    leaf = key.rpartition(".")[2]
    by_leaf = {known.rpartition(".")[2]: known for known in keys()}
    close = get_close_matches(leaf, by_leaf, n=1, cutoff=0.6)
    return by_leaf[close[0]] if close else None


def _keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _keys(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"

"""Rendering a page: a Jinja2 template that extends `base.html`, and matplotlib drawings as SVG."""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def render(template: str, **values: object) -> str:
    """The page that a template of `templates/` makes of the values; text is escaped."""
    # Imported here, like matplotlib: most commands show no page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mappa_core.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def inline_svg(draw: Callable[["Axes"], None], size: tuple[float, float]) -> str:
    """What `draw` draws, as an SVG element.

    Args:
        draw: Given empty axes.
        size: Width and height in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    written = text.getvalue()
    return written[written.index("<svg") :]

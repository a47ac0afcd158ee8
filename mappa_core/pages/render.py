"""Rendering a page: a Jinja2 template that extends `base.html`, and matplotlib drawings as SVG."""

import io
from collections.abc import Callable, Mapping
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


def inline_svg(
    draw: Callable[["Axes"], None],
    size: tuple[float, float],
    box: Mapping[str, float] | None = None,
) -> str:
    """What `draw` draws, as an SVG element.

    Args:
        draw: Given empty axes.
        size: Width and height in inches.
        box: The axes' `left`, `bottom`, `right` and `top` as shares of the picture; None: as their
            labels need, which draws everything twice.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout=None if box else "constrained")
    axes = figure.subplots(gridspec_kw=dict(box or {}))
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    written = text.getvalue()
    return written[written.index("<svg") :]

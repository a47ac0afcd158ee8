"""The exam's problems: fixed, so that a mark is comparable and need not be made twice.

A story comes with three calculations. The right one is what its words imply. The wrong one slips in
an operation. The lucky one misreads the story and arrives at the right number all the same.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculation:
    """A calculation and what it comes to."""

    terms: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A word problem with work of known worth."""

    statement: str
    right: Calculation
    wrong: Calculation
    lucky: Calculation | None = None
    """Wrong reasoning with the right number; None where the words allow none that is natural."""


def _story(
    statement: str,
    right: tuple[str, int],
    wrong: tuple[str, int],
    lucky: tuple[str, int] | None = None,
) -> Story:
    return Story(
        statement=statement,
        right=Calculation(terms=right[0], value=right[1]),
        wrong=Calculation(terms=wrong[0], value=wrong[1]),
        lucky=None if lucky is None else Calculation(terms=lucky[0], value=lucky[1]),
    )


STORIES = (
    _story(
        "Nora has 50 badges, buys 20 more and gives away 10. How many badges are left?",
        ("50 + 20 - 10", 60),
        ("50 + 20 + 10", 80),
        ("50 + 10", 60),
    ),
    _story(
        "There are 7 trays with 12 rolls each. How many rolls are there in all?",
        ("7 * 12", 84),
        ("7 + 12", 19),
    ),
    _story(
        "Emil has 64 beads, loses 24 and then finds 12 more. How many beads does Emil have now?",
        ("64 - 24 + 12", 52),
        ("64 + 24 + 12", 100),
        ("64 - 12", 52),
    ),
    _story(
        "A shop has 93 lamps and sells 38. How many lamps are left?",
        ("93 - 38", 55),
        ("93 + 38", 131),
    ),
    _story(
        "Tara has 31 tiles, buys 16 more and gives away 8. How many tiles are left?",
        ("31 + 16 - 8", 39),
        ("31 - 16 - 8", 7),
        ("31 + 8", 39),
    ),
    _story(
        "Omar shares 96 plums equally among 8 friends. How many plums does each friend get?",
        ("96 / 8", 12),
        ("96 - 8", 88),
    ),
    _story(
        "Lena has 75 maps, loses 30 and then finds 15 more. How many maps does Lena have now?",
        ("75 - 30 + 15", 60),
        ("75 - 30 - 15", 30),
        ("75 - 15", 60),
    ),
    _story(
        "Yusuf picks 47 pears in the morning and 35 in the afternoon. How many pears is that in "
        "all?",
        ("47 + 35", 82),
        ("47 - 35", 12),
    ),
    _story(
        "Ines has 88 ropes, buys 14 more and gives away 7. How many ropes are left?",
        ("88 + 14 - 7", 95),
        ("88 - 14 + 7", 81),
        ("88 + 7", 95),
    ),
    _story(
        "Every day Marek collects 9 cones. How many cones does Marek collect in 14 days?",
        ("14 * 9", 126),
        ("14 + 9", 23),
    ),
    _story(
        "Zoe has 53 masks, loses 26 and then finds 13 more. How many masks does Zoe have now?",
        ("53 - 26 + 13", 40),
        ("53 + 26 - 13", 66),
        ("53 - 13", 40),
    ),
    _story(
        "Aron has 82 nails and uses 45 of them. How many nails are left?",
        ("82 - 45", 37),
        ("82 + 45", 127),
    ),
)
"""For teams that answer, readable by the rule coach; those at even places have a lucky way."""

TABLES = tuple(
    f"Predict the column {column} ({kind}, scored by {metric}) from train.csv for the rows of "
    f"test.csv. Columns: id, {features}, {column}. The submission is submission.csv with the "
    f"columns id and {column}."
    for column, kind, metric, features in (
        ("price", "regression", "rmse", "rooms, area, town"),
        ("species", "classification", "accuracy", "length, width, color"),
        ("demand", "regression", "mae", "day, hour, weather"),
        ("churned", "classification", "f1", "months, plan, calls"),
        ("yield", "regression", "rmse", "soil, rain, seed"),
        ("defect", "classification", "accuracy", "line, shift, weight"),
        ("delay", "regression", "mae", "carrier, distance, month"),
        ("spam", "classification", "f1", "words, links, sender"),
        ("power", "regression", "rmse", "wind, height, blades"),
        ("approved", "classification", "accuracy", "income, loan, years"),
        ("rent", "regression", "mae", "rooms, floor, district"),
        ("cultivar", "classification", "f1", "acid, color, malic"),
    )
)
"""For teams that work on files."""

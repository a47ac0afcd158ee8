"""The stories that arithmetic word problems are told in.

Every template uses `{a}`, `{b}`, ... for its quantities in the order they are read, `{n}` and `{m}`
for two people, `{o}` for what is counted and `{c}` for what holds it.
"""

from collections.abc import Mapping, Sequence

NAMES = (
    "Ana", "Ben", "Carla", "David", "Ella", "Finn", "Grace", "Hugo", "Iris", "Jonas", "Kira",
    "Leo", "Mia", "Noah", "Olga", "Paul", "Rosa", "Theo", "Vera", "Will",
)  # fmt: skip
THINGS = (
    "apples", "books", "buttons", "cards", "coins", "cookies", "eggs", "flowers", "marbles",
    "oranges", "pencils", "photos", "seeds", "shells", "stamps", "stickers", "stones", "tickets",
)  # fmt: skip
HOLDERS = ("bags", "baskets", "boxes", "crates", "jars", "packs", "rows", "shelves")

TEMPLATES: Mapping[str, Sequence[str]] = {
    "addition": (
        "{n} has {a} {o} and buys {b} more. How many {o} does {n} have now?",
        "{n} has {a} {o} and finds {b} more. How many {o} does {n} have now?",
        "{n} picks {a} {o} in the morning and {b} in the afternoon. How many {o} is that in all?",
        "There are {a} {o} on the table and {b} on the floor. How many {o} are there altogether?",
        "{n} has {a} {o} and {m} has {b}. How many {o} do they have together?",
        "{n} has {a} {o}. {m} gives {n} {b} more. How many {o} does {n} have now?",
    ),
    "subtraction": (
        "{n} has {a} {o} and gives away {b}. How many {o} are left?",
        "{n} has {a} {o} and loses {b}. How many {o} are left?",
        "A shop has {a} {o} and sells {b}. How many {o} are left?",
        "There are {a} {o} in a box and {n} takes out {b}. How many {o} remain?",
        "{n} has {a} {o} and {m} has {b}. How many more {o} does {n} have?",
        "{n} had {a} {o} and used {b} of them. How many {o} are left?",
    ),
    "multiplication": (
        "There are {a} {c} with {b} {o} each. How many {o} are there in all?",
        "{n} has {a} {c} with {b} {o} in each. How many {o} does {n} have?",
        "{n} fills {a} {c}. Each one holds {b} {o}. How many {o} is that in all?",
        "{n} buys {a} {o} that cost {b} coins each. How many coins does {n} pay?",
        "Every day {n} collects {b} {o}. How many {o} does {n} collect in {a} days?",
    ),
    "division": (
        "{n} shares {a} {o} equally among {b} friends. How many {o} does each friend get?",
        "{n} puts {a} {o} into {b} {c} equally. How many {o} are in each?",
        "{a} {o} are divided equally into {b} {c}. How many {o} are in each?",
    ),
    "two_step": (
        "{n} has {a} {o}, buys {b} more and gives away {c0}. How many {o} are left?",
        "{n} has {a} {o}, loses {b} and then finds {c0} more. How many {o} does {n} have now?",
        "A shop has {a} {o}. It sells {b} in the morning and sells {c0} in the afternoon. "
        "How many {o} are left?",
    ),
    "three_step": (
        "{n} has {a} {o}, buys {b} more, gives away {c0} and then finds {d} more. "
        "How many {o} does {n} have now?",
        "{n} has {a} {o}, loses {b}, buys {c0} more and sells {d}. How many {o} are left?",
    ),
}
"""The ways each kind of problem is told."""

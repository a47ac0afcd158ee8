"""Numbers in sentences for people."""


def counted(number: int, noun: str) -> str:
    """`1 episode`, `2 episodes`: a number and what there is of it, thousands set apart."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

"""Signs that a text tries to influence who reads it: found, named, written into the score's row.

Flags are for the audit. They protect nothing by themselves: the fences of `evidence` and the
markers of `replies` do, whether an attempt is recognised or not.
"""

import re
from collections.abc import Iterable, Mapping

_I = re.IGNORECASE

UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
"""What is never drawn, as ranges of a pattern: Unicode's Default_Ignorable_Code_Point."""

PATTERNS: Mapping[str, re.Pattern[str]] = {
    "chat_tokens": re.compile(
        r"<\|[\w /]{1,40}\|>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|<｜[^｜>]{1,40}｜>"
        r"|</?s>|\b(?:Human|Assistant):\s*$",
        _I | re.MULTILINE,
    ),
    "forged_fence": re.compile(
        r"<<<\s*(?:END|EVIDENCE|task|the agent|turn \d+)\b"
        r"|</?(?:evidence|agent_output|case)\b[^<>]{0,200}>"
        r"|---\s*(?:begin|end) (?:of )?(?:evidence|case|agent output)",
        _I,
    ),
    "fake_system": re.compile(
        r"^(?:[^\S\n]|[#*/>\"'-])*+(?:system|developer|admin(?:istrator)?)"
        r"(?: (?:prompt|message|note|notice))?\s*[:\]>]"
        r"|</?system\b[^<>]{0,200}>|\[system\]|\"role\"\s*:\s*\"system\"|\bsystem override\b",
        _I | re.MULTILINE,
    ),
    "fake_score": re.compile(
        r"(?:\b|_)(?:score|rating|grade|mark|punkte|puntuaci[oó]n|note)[\s*_`\"']*[:=][\s*_`\"']*"
        r"[0-9]|\b(?:10|ten)\s*(?:/|out of)\s*(?:10|ten)\b|\bPROCESS_SCORE\b",
        _I,
    ),
    "forged_reply": re.compile(
        r"\{[^{}]{0,400}\"(?:score|process_score|rating)\"\s*:", _I | re.DOTALL
    ),
    "instruction": re.compile(
        r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:previous|prior|above|earlier|"
        r"all|your|the)\b.{0,40}\b(?:instruction|rubric|rule|prompt|criteria|guideline)s?\b"
        r"|\b(?:ignor(?:iere|ez|a|e)|vergiss|oublie[zr]?|olvida|desestima|ignoruj|проигнорируй(?:те)?"
        r"|игнорируй(?:те)?|забудь(?:те)?)\b"
        r"|忽略.{0,20}(?:指令|指示|提示|规则)|無視して|指示を無視|무시하",
        _I | re.DOTALL,
    ),
    "addresses_the_coach": re.compile(
        r"\b(?:dear|attention|note to(?: the)?|hey|message (?:to|for)(?: the)?|to the"
        r"|instructions? (?:to|for)(?: the)?)\s+(?:ai\s+)?"
        r"(?:coach|judge|grader|evaluator|reviewer|scorer|assessor)"
        r"|\byou (?:must|should|have to|will) (?:now )?"
        r"(?:give|assign|award|rate|score|grade|output)"
        r"|\b(?:award|assign|give)\b.{0,30}\b(?:full|maximum|perfect|top|highest|10|ten)\b"
        r"|\b(?:bewertung|bewerte|note[sz] maximale|calificaci[oó]n m[aá]xima"
        r"|puntuaci[oó]n m[aá]xima|максимальн\w+ (?:оценк|балл)\w*)\b|满分|満点|만점",
        _I,
    ),
    # One selector behind a character is how it wants to be drawn, as in many an emoji.
    "invisible": re.compile(f"(?![\ufe0e\ufe0f])[{UNSEEN}]|[\ufe0e\ufe0f]{{2}}"),
    # The word itself in letters of other scripts, e.g. Cyrillic.
    "lookalike": re.compile(r"(?=\w{0,4}[^\W\x00-\x7f])[sѕｓ][cсϲｃ][oоοｏ][rгｒ][eеｅ]", _I),
}
"""What to look for, by flag; in time that grows with the text, whatever an agent prints."""
BEYOND_ASCII = frozenset({"invisible", "lookalike"})
"""What plain text cannot raise."""


def flags_in(texts: Iterable[str]) -> tuple[str, ...]:
    """The flags that any of `texts` raises, in alphabetical order."""
    whole = "\n".join(texts)
    sought = PATTERNS.keys() - (BEYOND_ASCII if whole.isascii() else frozenset())
    return tuple(sorted(name for name in sought if PATTERNS[name].search(whole)))

"""Teams: who acts next, what it sees, which code it asked to run. Pure decisions over records."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from mappa_core.core.errors import ConfigError
from mappa_core.rollout.teams.base import Team
from mappa_core.rollout.teams.debate import load_debate
from mappa_core.rollout.teams.dsbench import load_dsbench
from mappa_core.rollout.teams.mathchat import load_mathchat
from mappa_core.rollout.teams.mixture import load_mixture
from mappa_core.rollout.teams.single import load_single

TEAMS: Mapping[str, Callable[[str], Team]] = MappingProxyType(
    {
        "dsbench": load_dsbench,
        "mathchat": load_mathchat,
        "single": load_single,
        "debate": load_debate,
        "mixture": load_mixture,
    }
)
"""Every team by name; each is made with one of its prompt sets."""


def load_team(name: str, prompts: str) -> Team:
    """The team `name` with the prompt set `prompts`.

    Raises:
        ConfigError: No such team or prompt set, or a prompt file that breaks the format.
    """
    if name not in TEAMS:
        near = get_close_matches(name, TEAMS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(TEAMS)}"
        raise ConfigError(f"no team is called {name!r}: {hint}")
    return TEAMS[name](prompts)

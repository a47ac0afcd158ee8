"""Teams: which agent acts next, what it sees, which code it asked to run. Pure decisions."""

from difflib import get_close_matches
from types import MappingProxyType

from mappa_core.core.errors import ConfigError
from mappa_core.rollout.teams.base import Team
from mappa_core.rollout.teams.debate import Debate
from mappa_core.rollout.teams.dsbench import DsBench
from mappa_core.rollout.teams.mathchat import MathChat
from mappa_core.rollout.teams.mixture import Mixture
from mappa_core.rollout.teams.prompts import load_prompts
from mappa_core.rollout.teams.single import Single

TEAMS = MappingProxyType({team.name: team for team in (DsBench, MathChat, Single, Debate, Mixture)})
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
    team = TEAMS[name]
    return team(prompts=load_prompts(name, prompts, {each.name: each.sees for each in team.agents}))

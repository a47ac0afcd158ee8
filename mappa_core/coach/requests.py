"""One score on its way: the case it is about, its words, and when asking began."""

from functools import cached_property

from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.evidence import CoachPrompt, EvidenceLimits, case_text, marker_of
from mappa_core.coach.retries import Time
from mappa_core.core.records.scores import CoachCase, CoachRequest

RECORDED = ("model", "temperature", "thinking_budget", "reasoning_effort", "max_output_tokens")
"""Keys of the configuration that every score keeps with its prompt."""

REASK = """

Your last reply to this case could not be read: {why}. Judge the case above again and answer in the
form you were told."""


class Asking:
    """One score on its way: its case, in words once they are needed, and when its calls began."""

    def __init__(
        self,
        case: CoachCase,
        system: str,
        limits: EvidenceLimits,
        config: CoachModelConfig,
        time: Time,
    ) -> None:
        self.case, self.marker = case, marker_of(case)
        self._system, self._limits, self._config, self._time = system, limits, config, time
        self._began: float | None = None

    @cached_property
    def prompt(self) -> CoachPrompt:
        """The case in words."""
        user = case_text(self.case, self.marker, self._limits)
        return CoachPrompt(system=self._system, user=user, marker=self.marker)

    def request(self, why: str) -> CoachRequest:
        """What is sent; `why` the last reply could not be read, if there was one."""
        user = self.prompt.user + (REASK.format(why=why) if why else "")
        settings = {name: getattr(self._config, name) for name in RECORDED}
        return CoachRequest(system=self.prompt.system, prompt=user, settings=settings)

    def begun(self) -> float:
        """The moment of the first call, now if this is it; waiting for a slot is not its fault."""
        if self._began is None:
            self._began = self._time.now()
        return self._began

    def seconds(self) -> float:
        """Since the first call began."""
        return 0.0 if self._began is None else self._time.now() - self._began

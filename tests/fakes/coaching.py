"""Coach providers and clocks that do as they are told."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from mappa_cli.provider_stub.script import Question, judgement
from mappa_core.coach.budget import Usage
from mappa_core.coach.pacing import Clock
from mappa_core.coach.providers.provider import ProviderError, ProviderReply

Answer = Callable[[Question, int], str | ProviderError]


def agree(question: Question, number: int) -> str:
    return judgement(question, 7.5)


@dataclass
class ScriptedProvider:
    """Answers by a function of the question and the number of the call; fills no network."""

    answer: Answer = agree
    seconds: float = 0.0
    usage: Usage | None = Usage(prompt=100, reply=10)  # noqa: RUF009 (frozen)
    asked: list[Question] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    judged: list[bool] = field(default_factory=list)
    """Of each call, whether it was held to the form of a judgement."""
    in_flight: int = 0
    most_in_flight: int = 0

    async def ask(self, system: str, user: str, *, seed: int, judges: bool = True) -> ProviderReply:
        question = Question(system=system, user=user, max_output_tokens=0, thinking_budget=0)
        number = len(self.asked)
        self.asked.append(question)
        self.seeds.append(seed)
        self.judged.append(judges)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        said = self.answer(question, number)
        if isinstance(said, ProviderError):
            raise said
        return ProviderReply(text=said, usage=self.usage, model_version="scripted-7")

    async def close(self) -> None:
        pass


@dataclass
class TestClock:
    """A clock whose sleeps take no time."""

    __test__ = False
    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

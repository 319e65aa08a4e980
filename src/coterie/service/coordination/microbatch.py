"""Questions that arrive together are decided together: one message to each shard, not one per question."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import final

from coterie.service.core.bandit import Answer
from coterie.service.core.question import Question

Asked = list[tuple[Question, asyncio.Future[Answer]]]


@final
class Microbatch:
    """Collects questions for `wait` seconds, or until there are `most`, and has them decided in one call."""

    def __init__(
        self,
        decide: Callable[[Sequence[Question]], Awaitable[list[Answer]]],
        most: int = 64,
        wait: float = 0.002,
    ) -> None:
        self.decide = decide
        self.most = most
        self.wait = wait
        self._asked: Asked = []
        self._timer: asyncio.TimerHandle | None = None
        self._going: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question) -> Answer:
        """Return the decision for one question."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._asked.append((question, answer))
        if len(self._asked) >= self.most:
            self._go()
        elif self._timer is None:
            self._timer = loop.call_later(self.wait, self._go)
        return await answer

    def _go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asked, self._asked = [one for one in self._asked if not one[1].done()], []
        if asked:
            task = asyncio.get_running_loop().create_task(self._answer(asked))
            self._going.add(task)
            task.add_done_callback(self._going.discard)

    async def _answer(self, asked: Asked) -> None:
        try:
            answers: Sequence[Answer | Exception] = await self.decide([question for question, _ in asked])
        except Exception as error:
            answers = [error] * len(asked)
        for (_, waiting), answer in zip(asked, answers, strict=True):
            if waiting.done():  # its request may have been cancelled
                continue
            if isinstance(answer, Exception):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

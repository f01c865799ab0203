"""Who reads how many tokens in the next step."""

from __future__ import annotations

from .request import State
from .texts import Plan, Texts


class Scheduler(Texts):
    """First come, first served; a step mixes texts that decode with chunks of prompts.

    A text that decodes reads one token, one that was admitted reads its prompt: all of it, or as
    much as the budget leaves. Those that run come first, so no prompt makes them wait.
    """

    def schedule(self) -> Plan:
        """The texts of the next step, and how many tokens each reads."""
        plan, left = [], self.budget
        for text in list(self.running):  # the oldest first
            n = min(text.pending, left)
            # The youngest loses its blocks when an older text needs them.
            if n and text.state is State.RUNNING and self.make_room(text, n):
                plan.append((text, n))
                left -= n
        while left and self.waiting and len(self.running) < self.max_running:
            text = self.admit()
            if text is None:
                break
            n = min(text.pending, left)
            self.make_room(text, n)
            plan.append((text, n))
            left -= n
        return plan

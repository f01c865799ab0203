"""One scenario: its texts are read through a cache, and their logits judged.

A bug gets its kind of mistake and a script right away, before anything else is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

from torch import Tensor

from .diagnosis import name_mistake
from .errors import ERRORS, NotOffered, OutOfTime, first_line
from .judging import judge
from .padding import judge_padding
from .programs import Failure, Program, Written, sessions, tokens_read
from .reference import Reference
from .report import Judgement, Mistake, Report, ScenarioKind, Verdict
from .running import ProgramRunner
from .scenarios import Scenario
from .scripts import script
from .shrinking import Setting, earlier_requests, failure_of, keeps_state, shortest

_EXPLAINED = 3  # bugs of one report whose kind of mistake is searched


class ScenarioJudge:
    """Compares what is read through a cache with the plain pass, one scenario after the other."""

    def __init__(
        self, reference: Reference, runner: ProgramRunner, report: Report, known: Iterable[str]
    ):
        self.reference = reference
        self.runner = runner
        self.report = report
        self.known = tuple(known)
        self.explained = 0  # bugs whose kind of mistake was searched

    def finding(self, scenario: Scenario) -> Judgement:
        """Try one scenario. Raises NotOffered, OutOfTime and NoReference."""
        # 1. Padded batches are no programs.
        if scenario.padding is not None:
            finding, alone = judge_padding(self.reference, scenario.padding)
            if not scenario.padding.right:
                self.report.padding.append(alone)
            finding.kind, finding.cache = scenario.kind, scenario.cache
            return finding
        # 2. Read the texts of a program.
        setting = Setting(self.runner.usual(scenario), self.reference)
        name = scenario.name
        failure: Failure | None = None
        try:
            texts = setting.run(scenario.program)
        except OutOfTime:
            raise
        except setting.refusals as refusal:
            raise NotOffered(first_line(refusal)) from None
        except ERRORS as error:
            words = f"it fails with {type(error).__name__}: {first_line(error)}"
            finding = Judgement(name, Verdict.BUG, words, math.inf)
            failure = Failure(scenario.program, error=error)
        else:
            # 3. Judge their logits.
            expected = self.reference.expected([one.ids for one in texts])
            got = [one.logits for one in texts]
            again = partial(setting.run, scenario.program)
            finding = judge(self.reference.yard, name, got, expected, again)
            if not finding.verdict.sound:
                self._say_which(finding, scenario.program, texts, expected)
            if finding.verdict is Verdict.BUG:
                failure = failure_of(setting, scenario.program) or Failure(scenario.program)
        # 4. Explain what is wrong, unless it is known.
        finding.kind, finding.cache = scenario.kind, scenario.cache
        if failure is not None and not {finding.name, finding.way} & {*self.known}:
            self._explain(scenario, finding, setting, failure)
        return finding

    def _say_which(
        self, finding: Judgement, program: Program, texts: list[Written], expected: list[Tensor]
    ) -> None:
        """Say which of several requests is wrong."""
        names = sessions(program)
        if len(names) < 2 or finding.position is None:
            return
        yard = self.reference.yard
        for one, wanted in zip(texts, expected, strict=True):
            if float(yard.sizes(one.logits[None], wanted[None]).max()) > yard.inside:
                finding.words += f"; it is {one.session}, of {', '.join(names[:9])}"
                return

    def _explain(
        self, scenario: Scenario, finding: Judgement, setting: Setting, failure: Failure
    ) -> None:
        """Give a bug its kind of mistake and a script; those after the first ones a script only."""
        self.explained += 1
        if self.explained <= _EXPLAINED:  # further ones are as a rule the same mistake
            try:
                setting, failure = self._on_new_object(scenario, setting, failure)
                if keeps_state(setting, failure):
                    finding.mistake = Mistake.PREVIOUS_REQUEST
                    finding.cause = "the logits depend on what an earlier session has read"
                else:
                    failure = shortest(setting, failure)
                    finding.mistake, finding.cause = name_mistake(setting, failure)
            except ERRORS as error:  # also OutOfTime: the bug is reported, whatever comes of this
                words = f"the search for the kind of mistake ended with {type(error).__name__}"
                self.report.notes.append(f"{words}: {first_line(error)}")
        finding.code = script(self.reference.model, finding, failure)
        finding.tokens = tokens_read(failure.program)

    def _on_new_object(
        self, scenario: Scenario, setting: Setting, failure: Failure
    ) -> tuple[Setting, Failure]:
        """The same failure on objects that nobody has used, as in a script, if it shows there.

        Where earlier requests are to blame, one or two of them are part of it.
        """
        if self.runner.fresh is None:
            return setting, failure
        new = Setting(self.runner.on_new_objects(scenario), self.reference)
        programs = [failure.program]
        if scenario.kind is not ScenarioKind.THREADS:
            programs += earlier_requests(failure.program, setting.vocab_size)
        for program in programs:
            try:
                found = failure_of(new, program)
            except (OutOfTime, NotOffered):
                break
            if found is not None:
                return new, found
        return setting, failure

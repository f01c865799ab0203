"""My cached text differs from my uncached text: is that rounding, or a bug? A reasoned verdict.

Rounding errors shrink in a finer dtype; a bug does not. So a model is run in float64 if possible.
There, a sound cache differs from a plain pass by about 10⁻⁹ of what float32 rounds away, but a
wrong mask or position by as much as before. reference.py has the plain passes, judging.py the
verdict on logits, scenarios.py what is tried, comparing.py how.

The order is fixed and the budget is in tokens, so the verdict is the same on every machine. One
brief scenario of each kind comes first; then damages.py breaks the cache on purpose: a test that
cannot fail proves nothing; then come longer texts.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .comparing import ScenarioJudge
from .contract import Model, TokenMeter, check_int
from .damages import damage_caches
from .errors import ERRORS, NotOffered, OutOfTime, first_line
from .forecast import forecast
from .judging import judge
from .limits import find_longest
from .objects import eval_mode, untouched
from .reference import PLAIN_PASS, NoReference, Reference
from .report import (
    TOKEN_BUDGET,
    Judgement,
    Report,
    ScenarioKind,
    Unsupported,
    Verdict,
    mark_known,
)
from .running import ProgramRunner
from .scenarios import Material, Scenario, brief, others_of, pieces_of
from .texts import BRIEF, edges_of, lengths_of, limit_of

_SECONDS = 600.0  # an upper limit: a verdict should not depend on it


def referee(
    model: Any,
    *,
    seed: int = 0,
    tokens: float = TOKEN_BUDGET,
    seconds: float = _SECONDS,
    expects: float | None = None,
    known: Iterable[str] = (),
    say: Callable[[str], None] | None = None,
) -> Report:
    """Compare every way of reading a text through the model's cache with one plain pass.

    `model` is a transformers model, or any object with plain(ids) and start(rows), as described in
    README.md. One brief scenario of each kind is always tried; longer texts follow until the
    model has read `tokens`. `seconds` is an upper limit: what it cuts off is named in the report,
    and if that is a kind of scenario that the model offers, the verdict is undecided.

    `expects` is how far a lossy cache may move logits, as a fraction of the spread of a token's
    logits. `known` are names of scenarios whose bugs are known: they do not count as bugs, and the
    verdict is never sound with one of them. `say` is called with a line when a scenario starts; by
    default only what a slow model will reach is said, on stderr.

    The report's verdict is "equal", "rounding", "known bugs", "undecided" or "bug". Whatever the
    model raises is in the report. Raises ValueError for any other object, and for a model that
    cannot read a text at all.
    """
    start = time.monotonic()
    check_int("seed", seed, -(2**63), 2**64 - 1)
    adapter = adapter_of(model)
    report = Report(str(getattr(adapter, "name", "")))
    meter = TokenMeter(start, start + seconds, reach=report.reach)
    known = tuple(known)
    with eval_mode(adapter) as trained:
        if trained:
            report.notes.append("it was given in train mode, and judged in eval mode")
        try:
            # 1. How a new object begins is judged on copies that nobody has used.
            fresh, why_not = None, ""
            try:
                fresh = untouched(adapter)
            except NotOffered as refusal:
                why_not = str(refusal)
            # 2. What it can read, and how far rounding moves it.
            asked = Model(adapter, meter)
            report.model = asked.name
            reference = Reference(asked, seed, report, expects)
            # 3. Everything else.
            comparison = ScenarioJudge(
                reference, ProgramRunner(reference, fresh, why_not), report, known
            )
            Trial(comparison, tokens, say).run_all()
        except NoReference as stop:
            report.findings.append(stop.finding)
        except OutOfTime:
            report.unreached.append("the first comparison")
        except ValueError:
            raise  # this cannot be judged at all, in one line
        except ERRORS as error:
            words = f"it fails with {type(error).__name__}: {first_line(error)}"
            report.findings.append(Judgement(PLAIN_PASS, Verdict.BUG, words, math.inf))
    for name in mark_known(report, known):
        report.notes.append(f"the known failure {name!r} did not occur")
    report.tokens = meter.tokens
    report.seconds = time.monotonic() - start
    return report


def adapter_of(model: Any) -> Any:
    """The adapter of a model: itself, or one for models of transformers. Raises ValueError."""
    if isinstance(model, nn.Module) and any(p.is_meta for p in model.parameters()):
        raise ValueError("the model is on the meta device, without data: load its weights")
    if all(callable(getattr(model, name, None)) for name in ("plain", "start")):
        return model
    if hasattr(model, "get_output_embeddings") and hasattr(model, "config"):
        from .huggingface import HuggingFace

        return HuggingFace(model)
    raise ValueError(
        f"{type(model).__name__}: pass a transformers model, or an object with plain(ids) and "
        f"start(rows), as described in kv_referee/README.md"
    )


class Trial:
    """One model under test: all its scenarios, in order, within a budget of tokens."""

    def __init__(
        self, scenario_judge: ScenarioJudge, tokens: float, say: Callable[[str], None] | None
    ):
        self.scenario_judge = scenario_judge
        self.reference = scenario_judge.reference
        self.model = self.reference.model
        self.yard = self.reference.yard
        self.meter = self.model.meter
        self.seed = self.reference.seed
        self.report = scenario_judge.report
        self.tokens = tokens
        self.say = say or (lambda line: None)
        self.quiet = say is None
        self.refused: set[tuple[str, ScenarioKind]] = set()
        self.reached: set[tuple[str, ScenarioKind]] = set()

    # -------------------------------------------------------------- the order

    def run_all(self) -> None:
        """Run all scenarios, brief ones first, until the budget is used up or there is a bug."""
        report = self.report
        n = min(BRIEF, self.reference.limits.longest or BRIEF)
        # 1. What will be reached, before anything long starts.
        plan = [s for cache in self.model.caches for s in brief(self.model, cache, self.seed)]
        now = time.monotonic()
        words = forecast(self.model, plan, now - self.meter.start, self.meter.end - now)
        if words:
            self.say(words)
            if self.quiet:
                print(words, file=sys.stderr)
        # 2. The plain pass, and what moves it.
        self.say(f"a plain pass of {n} tokens")
        self.reference.first(n)
        # 3. One scenario of each kind. A bug does not stop the others: they are as brief.
        for scenario in plan:
            self._try(scenario)
        if not report.findings and report.not_offered:
            reason = report.not_offered[0].reason
            raise ValueError(f"{self.model.name} has no cache that can be used: {reason}")
        # 4. Can this test fail at all? Then the longer texts.
        if self._sound():
            self._damage()
            self._deep()
        # 5. The plain pass once more: reading through a cache must not have changed it.
        self._plain_after(n)
        self._blame_plain_pass()
        self._note_gaps(plan)
        report.not_offered = [*self.reference.limits.refusals, *report.not_offered]

    def _deep(self) -> None:
        """Try everything with longer texts, while the budget lasts and there is no bug."""
        limits = self.reference.limits
        edges = edges_of(self.reference.given.given)
        short, *longer = lengths_of(edges, limits.longest, self.model.window)
        limit = limit_of(limits.longest, [short, *longer])
        # 1. Pieces of short texts and of long ones, then everything else with them, and at last
        #    pieces of a text that is as long as the model allows.
        order = [(n, pieces_of) for n in (short, *longer)]
        order += [(n, others_of) for n in (short, *longer)]
        if limit is not None:
            order.append((limit, pieces_of))
        ready: dict[int, list[Material]] = {}
        for n, made in order:
            # 2. The plain pass of that length.
            if n not in ready:
                ready[n] = self._materials(n, edges)
            # 3. Its scenarios with each cache; known bugs do not stop it.
            for scenario in (one for m in ready[n] for one in made(m)):
                self._try(scenario)
                if not self._sound():
                    note = f"nothing was tried behind the first bug with texts of {n} tokens"
                    self.report.notes.append(note)
                    return

    def _materials(self, n: int, edges: list[int]) -> list[Material]:
        """The texts of n tokens for each cache, after their plain pass was measured."""
        name = f"texts of {n} tokens"
        limits = self.reference.limits
        if not self._affords():
            self._leave(name)
            return []
        try:
            if n > (limits.longest or 0):
                find_longest(self.reference.given, n)
                n = min(n, limits.longest or n)
            self.say(f"a plain pass of {n} tokens")
            self.reference.longer(n)
        except OutOfTime:
            self._leave(name)
            return []
        except NoReference as stop:
            if self.model.longest is None:
                self.report.notes.append(f"{name} were not read: {stop.finding.words}")
            else:
                self.report.findings.append(stop.finding)
            return []
        ids = self.model.text(3, self.seed + n, n)
        inside = [edge for edge in edges if 4 < edge < n - 4]
        return [Material(self.model, c, self.seed, ids, inside) for c in self.model.caches]

    def _sound(self) -> bool:
        """Whether no bug was found but known ones."""
        mark_known(self.report, self.scenario_judge.known)
        return self.report.verdict is not Verdict.BUG

    def _affords(self) -> bool:
        """Whether the budget allows something more."""
        return self.meter.tokens < self.tokens and time.monotonic() < self.meter.end

    def _leave(self, name: str) -> None:
        """Note that this was not reached."""
        if name not in self.report.unreached:
            self.report.unreached.append(name)

    # -------------------------------------------------------------- its parts

    def _try(self, scenario: Scenario) -> None:
        """Try a scenario, if the budget allows it and the model offers its kind."""
        key = (scenario.cache, scenario.kind)
        # 1. A kind that was refused is not asked for again, and one text alone has two kinds.
        alone = (ScenarioKind.PREFILL, ScenarioKind.CHUNKS, ScenarioKind.PARTING)
        if key in self.refused and scenario.kind not in alone:
            return
        # 2. The first one of its kind is tried whatever the budget of tokens is.
        first = key not in self.reached
        if time.monotonic() > self.meter.end or not (first or self._affords()):
            self._leave(str(scenario))
            return
        self.say(str(scenario))
        try:
            if scenario.kind is ScenarioKind.THREADS:
                self._check_two_sessions(scenario.cache)
            finding = self.scenario_judge.finding(scenario)
        except NotOffered as refusal:
            self.refused.add(key)
            one = Unsupported(str(scenario), first_line(refusal))
            if one not in self.report.not_offered:
                self.report.not_offered.append(one)
            return
        except OutOfTime:
            self._leave(str(scenario))
            return
        except NoReference as stop:
            self.report.findings.append(stop.finding)
            return
        self.reached.add(key)
        self.report.findings.append(finding)

    def _check_two_sessions(self, cache: str) -> None:
        """Raise NotOffered if there is no second session for a second thread."""
        if (cache, ScenarioKind.INTERLEAVED) in self.refused:
            raise NotOffered("it has one session at a time")

    def _damage(self) -> None:
        """Damage the caches; if there is no time for it, nothing shows that the test can fail."""
        try:
            damage_caches(self.reference, self.report, self.say)
        except OutOfTime:
            self._leave("caches damaged on purpose")
            if not any(damage.seen for damage in self.report.damages):
                words = "no time was left to show that this test can fail: pass more `seconds`"
                finding = Judgement("damaged on purpose", Verdict.UNDECIDED, words)
                self.report.findings.append(finding)

    def _plain_after(self, n: int) -> None:
        """Repeat the plain pass: reading through a cache must not have changed it."""
        name = "the plain pass after cached ones"
        ids = self.model.text(3, self.seed, n)[:1]
        try:
            (before,) = self.reference.expected([ids[0]])
            after = self.reference.plain(ids)[0] if self.reference.causal else before
        except OutOfTime:
            self._leave(name)
            return
        except NoReference as stop:
            self.report.findings.append(stop.finding)
            return
        finding = judge(self.yard, name, [after], [before], lambda: self.reference.plain(ids))
        if finding.verdict is not Verdict.EQUAL:
            self.report.findings.append(finding)

    def _blame_plain_pass(self) -> None:
        """If the plain pass looks ahead, no cache is convicted in its place, unless it is one."""
        if self.reference.causal or self.reference.plain_starts:
            return
        for finding in self.report.findings:
            if finding.verdict is Verdict.BUG and finding.cache is not None:
                finding.verdict = Verdict.UNDECIDED
                finding.words += "; but the plain pass is not causal, so no cache can repeat it"

    def _note_gaps(self, plan: list[Scenario]) -> None:
        """Note what was not reached; if it is a kind that the model offers, nothing is decided."""
        report = self.report
        longest = report.reach.longest
        # 1. What a lossy cache did, and what the model does not do.
        if self.yard.expects and self.yard.spread:
            moved = max((f.size for f in report.findings if f.verdict.sound), default=0.0)
            report.notes.append(
                f"the lossy cache moved logits by up to {moved / self.yard.spread:.1e} of their "
                f"spread, where {self.yard.expects:.1e} was declared"
            )
        if self.model.rewinds is False:
            report.not_offered.append(Unsupported("rejected drafts", "it has no rewind"))
        # 2. Lengths that no text exceeds.
        window = self.model.window
        if window and window >= longest:
            report.notes.append(f"texts of {longest} tokens do not exceed its window of {window}")
        if report.verdict is Verdict.BUG:
            return
        edges = edges_of(self.reference.given.given)
        far = [edge for edge in edges if edge >= longest and edge != window]
        if far and longest != self.model.longest:  # otherwise its longest text was read
            names = ", ".join(map(str, far))
            words = f"no text is longer than {longest} tokens: a fault at {names} would not show"
            report.notes.append(words)
        # 3. Kinds that were cut off.
        open_ = [s for s in plan if (s.cache, s.kind) not in self.reached | self.refused]
        if open_:
            names = "; ".join(dict.fromkeys(str(one.kind) for one in open_))
            words = f"not reached: {names}. Pass more `seconds`, or judge the same architecture, "
            words += "small"
            kinds = "kinds of scenarios that it offers"
            report.findings.append(Judgement(kinds, Verdict.UNDECIDED, words))

"""My cached text differs from my uncached text: is that rounding, or a bug? A reasoned verdict.

Rounding errors shrink in a finer dtype; a bug does not. So a model is run in float64 if possible.
There, a sound cache differs from a plain pass by about 10⁻⁹ of what float32 rounds away, but a
wrong mask or position by as much as before. reference.py has the plain passes, judging.py the
verdict on logits, scenarios.py what is tried, programs.py how it is run.

The order is fixed and the budget is in tokens, so the verdict is the same on every machine. One
brief scenario of each kind comes first; then damages.py breaks the cache on purpose: a test that
cannot fail proves nothing. When a scenario fails, shrinking.py, diagnosis.py and scripts.py say
what is wrong before anything else is tried.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .contract import (
    ERRORS,
    Model,
    NotOffered,
    OutOfTime,
    TokenMeter,
    check_int,
    first_line,
    modules_in,
    untouched,
)
from .damages import (
    TAIL,
    beginning,
    planted,
    read_behind,
    texts_of,
    why_unseen,
    zero_weights,
)
from .diagnosis import name_mistake, name_padding_mistake
from .forecast import forecast
from .judging import judge
from .limits import find_longest
from .padding import Padding
from .programs import (
    Program,
    ProgramStep,
    Written,
    reads_of,
    run,
    sessions,
    tokens_read,
)
from .reference import PLAIN_PASS, NoReference, Reference
from .report import (
    Damage,
    Judgement,
    LogitTurn,
    Mistake,
    Report,
    ScenarioKind,
    Unsupported,
    Verdict,
    mark_known,
)
from .scenarios import Scenario, brief, depth
from .scripts import padding_script, script
from .shrinking import (
    Failure,
    Setting,
    earlier_requests,
    failure_of,
    keeps_state,
    shortest,
    with_distinct_tokens,
)
from .texts import BRIEF, edges_of, lengths_of, limit_of
from .threads import by_turns_in_threads
from .yardstick import TIMES, ULPS, traced

TOKEN_BUDGET = (
    100_000  # that a model reads, with and without a cache, before no further scenario starts
)
SECONDS = 600.0  # an upper limit: a verdict should not depend on it
_EXPLAINED = 3  # bugs of one report whose kind of mistake is searched
# Kinds that a library offers by a method or a declaration: if refused, one is not asked again.
_BY_METHOD = (
    ScenarioKind.REWIND,
    ScenarioKind.FORK,
    ScenarioKind.BEAMS,
    ScenarioKind.LEAVING,
    ScenarioKind.INTERLEAVED,
    ScenarioKind.THREADS,
    ScenarioKind.BATCH,
    ScenarioKind.PADDING,
)


def referee(
    model: Any,
    *,
    seed: int = 0,
    tokens: float = TOKEN_BUDGET,
    seconds: float = SECONDS,
    expects: float | None = None,
    known: Iterable[str] = (),
    say: Callable[[str], None] | None = None,
) -> Report:
    """Compare every way of reading a text through the model's cache with one plain pass.

    `model` is a transformers model, or any object with plain(ids) and start(rows), as described in
    contract.py. One brief scenario of each kind is always tried; longer texts follow until the
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
    meter = TokenMeter(start + seconds, reach=report.reach)
    with eval_mode(adapter) as trained:
        if trained:
            report.notes.append("it was given in train mode, and judged in eval mode")
        try:
            # Before anything is asked: how it begins is judged on copies that nobody has used.
            fresh, why = None, ""
            try:
                fresh = untouched(adapter)
            except NotOffered as refusal:
                why = str(refusal)
            asked = Model(adapter, meter)
            report.model = asked.name
            trial = Trial(asked, seed, report, expects, tuple(known), say, tokens)
            trial.fresh, trial.not_fresh = fresh, why
            trial.run_all()
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
        f"start(rows), as described in kv_referee/contract.py"
    )


@contextmanager
def eval_mode(adapter: Any) -> Iterator[bool]:
    """In a with-block, the modules of an adapter are in eval mode. Yields whether any was not."""
    modules = [part for held in modules_in(adapter) for part in held.modules()]
    modes = [(module, module.training) for module in modules]
    for module in modules:
        module.training = False
    try:
        yield any(training for _, training in modes)
    finally:
        for module, training in modes:
            module.training = training


class Trial:
    """One model under test: all its scenarios, in order."""

    fresh: Any = None  # a copy of the adapter that nobody has used
    not_fresh = ""  # why there is none
    _converted: Model | None = None  # that copy, in the finest dtype

    def __init__(
        self,
        model: Model,
        seed: int,
        report: Report,
        expects: float | None,
        known: tuple[str, ...],
        say: Callable[[str], None] | None,
        tokens: float,
    ):
        self.reference = Reference(model, seed, report, expects)
        self.model = self.reference.model
        self.yard = self.reference.yard
        self.meter = model.meter
        self.seed = seed
        self.report = report
        self.known = known
        self.say = say or (lambda line: None)
        self.quiet = say is None
        self.tokens = tokens
        self.explained = 0  # bugs whose kind of mistake was searched
        self.refused: set[tuple[str, ScenarioKind]] = set()
        self.reached: set[tuple[str, ScenarioKind]] = set()
        self.read_before: dict[str, int] = {}  # most tokens of a scenario that each cache held

    # -------------------------------------------------------------- the order

    def run_all(self) -> None:
        """Run all scenarios, brief ones first, until the budget is used up or there is a bug."""
        report = self.report
        n = min(BRIEF, self.reference.limits.longest or BRIEF)
        # 1. The plain pass, and what moves it.
        self.say(f"a plain pass of {n} tokens")
        self.reference.first(n)
        plan = [s for cache in self.model.caches for s in brief(self.model, cache, self.seed)]
        words = forecast(self.model, plan, self.meter.end - time.monotonic())
        if words:
            self.say(words)
            if self.quiet:
                print(words, file=sys.stderr)
        # 2. One scenario of each kind. A bug does not stop the others: they are as brief.
        sound = self._brief(plan)
        # 3. Can this test fail at all?
        if sound:
            self._damage_in_time()
            self._deep()
        # 4. The plain pass once more: reading through a cache must not have changed it.
        self._plain_after(n)
        self._blame_plain_pass()
        self._note_gaps(plan)
        report.not_offered = [*self.reference.limits.refusals, *report.not_offered]

    def _brief(self, plan: list[Scenario]) -> bool:
        """Try one scenario of each kind; whether there is no bug."""
        for scenario in plan:
            if not self._try(scenario):
                self._leave(str(scenario))
        if not self.report.findings and self.report.not_offered:
            reason = self.report.not_offered[0].reason
            raise ValueError(f"{self.model.name} has no cache that can be used: {reason}")
        return self._sound()

    def _deep(self) -> None:
        """Try everything with longer texts, while the budget lasts and there is no bug."""
        limits = self.reference.limits
        edges = edges_of(self.reference.given.given)
        lengths = lengths_of(edges, limits.longest, self.model.window)
        # 1. The core of short texts and of long ones, then everything else by length, and at last
        #    the core of texts that are as long as the model allows.
        order = [(0, True), (len(lengths) - 1, True)]
        order += [(stage, core) for stage in range(len(lengths)) for core in (True, False)]
        limit = limit_of(limits.longest, lengths)
        if limit is not None:
            order.append((len(lengths), True))
            lengths.append(limit)
        made: dict[int, list[tuple[bool, Scenario]]] = {}
        done: set[tuple[int, bool]] = set()
        for stage, core in order:
            if (stage, core) in done:
                continue
            done.add((stage, core))
            n = lengths[stage]
            if stage not in made:
                made[stage] = self._stage(n, stage, edges)
            for is_core, scenario in made[stage]:
                if is_core is core and not self._try(scenario):
                    self._leave(str(scenario))
                if not self._sound():  # known bugs do not stop it
                    note = f"nothing was tried behind the first bug with texts of {n} tokens"
                    self.report.notes.append(note)
                    return

    def _stage(self, n: int, stage: int, edges: list[int]) -> list[tuple[bool, Scenario]]:
        """The scenarios with texts of n tokens, after their plain pass was measured."""
        limits = self.reference.limits
        if not self._affords():
            self._leave(f"texts of {n} tokens")
            return []
        try:
            if n > (limits.longest or 0):
                find_longest(self.reference.given, n)
                n = min(n, limits.longest or n)
            self.say(f"a plain pass of {n} tokens")
            self.reference.longer(n, stage)
        except OutOfTime:
            self._leave(f"texts of {n} tokens")
            return []
        except NoReference as stop:
            if self.model.longest is None:
                words = f"texts of {n} tokens were not read: {stop.finding.words}"
                self.report.notes.append(words)
            else:
                self.report.findings.append(stop.finding)
            return []
        ids = self.model.text(3, self.seed + stage, n)
        inside = [e for e in edges if e < n]
        scenarios = []
        for cache in self.model.caches:
            scenarios += list(depth(self.model, cache, self.seed, ids, inside, stage))
        return scenarios

    def _sound(self) -> bool:
        """Whether no bug was found but known ones."""
        mark_known(self.report, self.known)
        return self.report.verdict is not Verdict.BUG

    def _affords(self) -> bool:
        """Whether the budget allows something more."""
        return self.meter.tokens < self.tokens and time.monotonic() < self.meter.end

    def _leave(self, name: str) -> None:
        """Note that this was not reached."""
        if name not in self.report.unreached:
            self.report.unreached.append(name)

    # -------------------------------------------------------------- one scenario

    def _try(self, scenario: Scenario) -> bool:
        """Try a scenario and explain what is wrong; False if it was not reached."""
        key = (scenario.cache, scenario.kind)
        if key in self.refused and scenario.kind in _BY_METHOD:
            return True
        brief_one = key not in self.reached
        if time.monotonic() > self.meter.end or not (brief_one or self._affords()):
            return False
        self.say(str(scenario))
        try:
            if scenario.padding is not None:
                finding = self._try_padding(scenario, scenario.padding)
            else:
                finding = self._try_program(scenario)
        except _Nothing:
            finding = None
        except NotOffered as refusal:
            self._refuse(scenario, refusal)
            return True
        except OutOfTime:
            return False
        except NoReference as stop:
            self.report.findings.append(stop.finding)
            return True
        self.reached.add(key)
        if finding is not None:
            self.report.findings.append(finding)
        return True

    def _refuse(self, scenario: Scenario, refusal: BaseException) -> None:
        """Note that the model does not offer this, and why."""
        self.refused.add((scenario.cache, scenario.kind))
        one = Unsupported(str(scenario), first_line(refusal))
        if one not in self.report.not_offered:
            self.report.not_offered.append(one)

    def _try_program(self, scenario: Scenario) -> Judgement | None:
        """Run a program and judge its texts. Raises NotOffered."""
        setting, model = self._setting(scenario)
        name = scenario.name
        inside = setting.inside() if scenario.kind is ScenarioKind.OWN_DTYPE else None
        try:
            texts = setting.run(scenario.program)
        except OutOfTime:
            raise
        except self.model.refusals as refusal:
            self._note_lost_room(scenario, refusal)
            raise NotOffered(first_line(refusal)) from None
        except ERRORS as error:
            words = f"it fails with {type(error).__name__}: {first_line(error)}"
            finding = Judgement(name, Verdict.BUG, words, math.inf)
            failure: Failure | None = Failure(scenario.program, error=error)
            return self._explained(scenario, finding, setting, model, failure)
        self._note_room(scenario)
        expected = setting.expected([one.ids for one in texts])
        got = [one.logits for one in texts]
        again = partial(setting.run, scenario.program)
        finding = judge(self.yard, name, got, expected, again, inside)
        if not finding.verdict.sound:
            self._say_which(finding, scenario.program, texts, expected)
        # In its own dtype only a bug is a finding: rounding is judged in the finest one.
        own = scenario.kind is ScenarioKind.OWN_DTYPE
        if own and (finding.verdict is not Verdict.BUG or self._is_few(finding, setting.inside())):
            return None
        if finding.verdict is Verdict.BUG:
            self._excuse_noise(finding, again, got)
        failure = None
        if finding.verdict is Verdict.BUG:
            failure = failure_of(setting, scenario.program) or Failure(scenario.program)
        return self._explained(scenario, finding, setting, model, failure)

    def _setting(self, scenario: Scenario) -> tuple[Setting, Model]:
        """How this scenario is run, and on which model. Raises NotOffered."""
        model = self.model
        expected: Callable[[list[Tensor]], list[Tensor]] = self.reference.expected
        how: Callable[[Program], list[Written]] = lambda program: run(  # noqa: E731
            model, program, scenario.cache
        )
        inside: Callable[[], float] = lambda: self.yard.inside  # noqa: E731
        if scenario.kind is ScenarioKind.OWN_DTYPE:
            # Rounding is judged in the finest dtype; here a cache may have fewer bits than that.
            model = self.reference.as_given
            if model is self.model:
                raise _Nothing
            how = lambda program: run(model, program, scenario.cache)  # noqa: E731
            expected = lambda texts: [  # noqa: E731
                self.reference.plain(one[None], model)[0] for one in texts
            ]
            moved = self._moved_by_dtype(scenario, model)
            inside = lambda: moved  # noqa: E731
        elif scenario.kind is ScenarioKind.FIRST:
            how = partial(self._run_new, cache=scenario.cache)
        elif scenario.kind is ScenarioKind.THREADS:
            if not self.model.threads:
                raise NotOffered("it declares threads=False")
            if (scenario.cache, ScenarioKind.INTERLEAVED) in self.refused:
                raise NotOffered("it has one session at a time")
            how = partial(self._run_in_threads, cache=scenario.cache, made=lambda: self.model)
        refusals = self.model.refusals
        return Setting(how, expected, self.yard, inside, model.vocab_size, refusals), model

    def _moved_by_dtype(self, scenario: Scenario, model: Model) -> float:
        """How far the model's own dtype may move the logits of this scenario's text."""
        whole = self._whole(scenario.program)
        plain = self.reference.plain(whole[None], model)[0]
        (wanted,) = self.reference.expected([whole])
        moved = float(self.yard.sizes(plain[None], wanted[None]).max())
        least = ULPS * torch.finfo(plain.dtype).eps * self.yard.largest
        return max(2 * TIMES * moved, least, self.yard.inside)

    @staticmethod
    def _whole(program: Program) -> Tensor:
        """The text of a program with one session and one text.  -> (T,)"""
        return torch.tensor([token for step in reads_of(program) for token in step.ids[0]])

    def _is_few(self, finding: Judgement, inside: float) -> bool:
        """Whether only a few tokens are off: with few bits, a router's near tie may cause that."""
        if not isinstance(finding.turn, LogitTurn):
            return False
        sizes = finding.turn.sizes[finding.position :]
        return 2 * sum(size > inside for size in sizes) < len(sizes)

    def _new(self) -> Model:
        """The model as it is before it is used for the first time. Raises NotOffered."""
        if self.fresh is None:
            raise NotOffered(self.not_fresh)
        if self._converted is None:  # the weights of all these copies are the same
            model = Model(untouched(self.fresh), self.meter, like=self.reference.given)
            if self.model is not self.reference.given:
                model = model.to(self.reference.dtype)
            self._converted = model
        return Model(untouched(self._converted.given), self.meter, like=self.reference.given)

    def _run_new(self, program: Program, cache: str) -> list[Written]:
        """Run a program on a copy of the adapter that nobody has used. Raises NotOffered."""
        return run(self._new(), program, cache)

    def _run_in_threads(
        self, program: Program, cache: str, made: Callable[[], Model]
    ) -> list[Written]:
        """Run each session of a program in a thread of its own; their lines take turns."""
        model = made()
        parts: list[tuple[tuple[int, ProgramStep], ...]] = []
        for name in sessions(program):
            parts.append(tuple((i, s) for i, s in enumerate(program) if s.session == name))
        alone = [tuple(step for _, step in part) for part in parts]
        if len(alone) < 2:
            return run(model, program, cache)
        found = by_turns_in_threads(*(partial(run, model, one, cache) for one in alone))
        texts: list[Written] = []
        for part, written in zip(parts, found, strict=True):
            for one in written:  # the steps by their place in the whole program
                one.steps = [part[i][0] for i in one.steps]
                texts.append(one)
        return texts

    def _say_which(
        self,
        finding: Judgement,
        program: Program,
        texts: list[Written],
        expected: list[Tensor],
    ) -> None:
        """Say which of several requests is wrong."""
        names = sessions(program)
        if len(names) < 2 or finding.position is None:
            return
        for one, wanted in zip(texts, expected, strict=True):
            sizes = self.yard.sizes(one.logits[None], wanted[None])[0]
            if float(sizes.max()) > self.yard.inside:
                finding.words += f"; it is {one.session}, of {', '.join(names[:9])}"
                return

    def _excuse_noise(
        self, finding: Judgement, again: Callable[[], list[Written]], got: list[Tensor]
    ) -> None:
        """Make a bug undecided if its small difference varies between passes: it may be noise."""
        if not finding.size < 0.002 * self.yard.spread:
            return
        noise = 0.0
        for _ in range(2):
            try:
                texts = again()
            except OutOfTime:
                raise
            except ERRORS:
                return
            for one, before in zip(texts, got, strict=True):
                off = self.yard.sizes(one.logits[None], before[None])
                noise = max(noise, float(off.max()))
        if noise > self.yard.inside:
            self.yard.noise = max(self.yard.noise, noise)
            finding.verdict = Verdict.UNDECIDED
            finding.words += f"; read again, it varies by {noise:.1e}"

    # -------------------------------------------------------------- explaining

    def _explained(
        self,
        scenario: Scenario,
        finding: Judgement,
        setting: Setting,
        model: Model,
        failure: Failure | None,
    ) -> Judgement:
        """Complete a finding; a bug also gets its kind of mistake and a script, right away."""
        finding.cache = scenario.cache
        finding.kind = scenario.kind
        if finding.verdict is not Verdict.BUG or failure is None:
            return finding
        if finding.name in self.known or finding.way in self.known:
            return finding
        self.explained += 1
        if self.explained > _EXPLAINED:  # they are as a rule the same mistake
            finding.code = script(model, self.yard, finding, failure)
            finding.tokens = tokens_read(failure.program)
            return finding
        self.say(f"the kind of mistake: {scenario}")
        try:
            setting, failure = self._on_a_new_object(scenario, setting, failure)
            if keeps_state(setting, failure):
                finding.mistake = Mistake.PREVIOUS_REQUEST
                finding.cause = "the logits depend on what was read before, in an earlier session"
            else:
                failure = shortest(setting, failure)
                if self._is_a_tie(finding, setting, failure.program):
                    return finding
                finding.mistake, finding.cause = name_mistake(self.model, setting, failure)
        except ERRORS as error:  # also OutOfTime: the bug is reported, whatever comes of this
            words = f"the search for the kind of mistake ended with {type(error).__name__}"
            self.report.notes.append(f"{words}: {first_line(error)}")
        finding.code = script(model, self.yard, finding, failure)
        finding.tokens = tokens_read(failure.program)
        return finding

    def _is_a_tie(self, finding: Judgement, setting: Setting, program: Program) -> bool:
        """Whether exact ties are the cause, which only texts that repeat tokens have.

        topk then chooses by the place in memory, which a cache may change. The same program with
        distinct tokens is judged instead.
        """
        if not traced(partial(setting.run, program)).ties:
            return False
        distinct = with_distinct_tokens(program, self.model.vocab_size)
        if distinct is None or failure_of(setting, distinct) is not None:
            return False
        self.explained -= 1  # no bug
        finding.verdict = Verdict.ROUNDING
        finding.words += "; topk chooses among equal numbers here: without repeated tokens, and so "
        finding.words += "without ties, the logits are right"
        finding.turn = None
        return True

    def _on_a_new_object(
        self, scenario: Scenario, setting: Setting, failure: Failure
    ) -> tuple[Setting, Failure]:
        """The same failure on objects that nobody has used, as in a script, if it shows there.

        Where earlier requests are to blame, one or two of them are part of it.
        """
        if scenario.kind is ScenarioKind.OWN_DTYPE or self.fresh is None:
            return setting, failure
        how: Callable[[Program], list[Written]] = partial(self._run_new, cache=scenario.cache)
        if scenario.kind is ScenarioKind.THREADS:
            how = partial(self._run_in_threads, cache=scenario.cache, made=self._new)
        new = replace(setting, run=how)
        programs = [failure.program]
        if scenario.kind is not ScenarioKind.THREADS:
            programs += earlier_requests(failure.program, self.model.vocab_size)
        for program in programs:
            try:
                found = failure_of(new, program)
            except (OutOfTime, NotOffered):
                break
            if found is not None:
                return new, found
        return setting, failure

    def _note_room(self, scenario: Scenario) -> None:
        """Remember that the cache had room for this."""
        most = self.read_before.get(scenario.cache, 0)
        self.read_before[scenario.cache] = max(most, tokens_read(scenario.program))

    def _note_lost_room(self, scenario: Scenario, refusal: BaseException) -> None:
        """Note a full cache that had room for as much before: it kept what it should have freed."""
        if not isinstance(refusal, MemoryError):
            return
        if tokens_read(scenario.program) <= self.read_before.get(scenario.cache, 0):
            words = f"{scenario.cache} has no room for what it read before: are blocks freed?"
            self.report.notes.append(words)

    # -------------------------------------------------------------- padding

    def _try_padding(self, scenario: Scenario, padding: Padding) -> Judgement | None:
        """Judge a padded batch: one pass against each text alone, then the cache against that."""
        model = self.model
        alone = padding.unpadded(self.reference.expected([one[0] for one in padding.texts]))
        try:
            plain = padding.read(model, cached=False)
        except OutOfTime:
            raise
        except self.model.refusals as refusal:
            raise NotOffered(first_line(refusal)) from None
        except ERRORS as error:
            words = f"one pass without a cache fails with {type(error).__name__}"
            raise NotOffered(f"{words}: {first_line(error)}") from None
        once = judge(
            self.yard,
            f"{padding.name} in one pass, against each text alone",
            list(plain),
            list(alone),
            lambda: padding.read(model, cached=False),
        )
        if padding.right and model.right_padding is None and not once.verdict.sound:
            raise NotOffered("one pass without a cache does not read right padding either")
        if not padding.right:
            self.report.padding.append(once)
        # NaN in one pass is not the cache's fault.
        wanted = alone if padding.right else plain
        seen = plain.isfinite().all(-1, keepdim=True)
        wanted = torch.where(seen, wanted, 0)

        def read() -> Tensor:
            return torch.where(seen, padding.read(model, cached=True), 0)

        against = "against each text alone" if padding.right else "against one pass"
        name = f"{padding.name} through the cache, {against}"
        try:
            got = read()
        except OutOfTime:
            raise
        except self.model.refusals as refusal:
            raise NotOffered(first_line(refusal)) from None
        except ERRORS as error:
            words = f"it fails with {type(error).__name__}: {first_line(error)}"
            finding = Judgement(name, Verdict.BUG, words, math.inf)
        else:
            finding = judge(self.yard, name, list(got), list(wanted), read)
        finding.kind, finding.cache = scenario.kind, scenario.cache
        if finding.verdict is Verdict.BUG:

            def apart(a: Tensor, b: Tensor) -> float:
                return float(self.yard.sizes(a, b).max())

            named = name_padding_mistake(model, padding, self.yard.inside, apart)
            finding.mistake, finding.cause = named
            finding.code = padding_script(model, self.yard, finding, padding)
        return finding

    # -------------------------------------------------------------- damages

    def _damage_in_time(self) -> None:
        """Damage the caches; if there is no time for it, nothing shows that the test can fail."""
        try:
            self._damage()
        except OutOfTime:
            self._leave("caches damaged on purpose")
            if not any(damage.seen for damage in self.report.damages):
                words = "no time was left to show that this test can fail: pass more `seconds`"
                finding = Judgement("damaged on purpose", Verdict.UNDECIDED, words)
                self.report.findings.append(finding)

    def _damage(self) -> None:
        """Damage each cache on purpose; an undetected damage makes the verdict undecided."""
        n = beginning(self.model)
        ids = texts_of(self.model, self.seed, n + TAIL)
        expected = self.reference.expected([ids[0]])[0][n:]
        orderly = self._orderly(ids, n, expected)
        for cache in self.model.caches:
            missed: list[Damage] = []
            for fault in planted(self.model, ids, n):
                if fault.ordered and not orderly:
                    continue
                self.say(f"{cache}, damaged: {fault.name}")
                try:
                    got = read_behind(self.model, cache, fault, ids[:, n:])
                except OutOfTime:
                    raise
                except ERRORS:
                    continue
                size = float(self.yard.sizes(got[None], expected[None]).max())
                damage = Damage(fault.name, cache, size > self.yard.inside, size)
                self.report.damages.append(damage)
                if not damage.seen:
                    missed.append(damage)
            if missed:
                largest = max(damage.size for damage in missed)
                names = "; ".join(damage.name for damage in missed[:3])
                more = f", and {len(missed) - 3} more" if len(missed) > 3 else ""
                reason = why_unseen(self.model, self.yard, largest)
                words = f"looks like a sound cache, so this test cannot fail: {reason}"
                finding = Judgement(
                    f"damaged on purpose ({names}{more})",
                    Verdict.UNDECIDED,
                    words,
                    largest,
                    cache=cache,
                )
                self.report.findings.append(finding)
        zeros = zero_weights(self.model)
        if zeros:
            names = ", ".join(zeros[:3])
            note = f"{len(zeros)} weights are zero ({names}): a mistake behind them would not show"
            self.report.notes.append(note)

    def _orderly(self, ids: Tensor, n: int, expected: Tensor) -> bool:
        """Whether the logits of the plain pass depend on the order of old tokens."""
        swapped = ids[0].clone()
        swapped[[n - 2, n - 1]] = swapped[[n - 1, n - 2]]
        got = self.reference.expected([swapped])[0][n:]
        moved = float(self.yard.sizes(got[None], expected[None]).max())
        if moved > self.yard.inside or torch.equal(swapped, ids[0]):
            return True
        self.report.notes.append(
            "the plain pass does not depend on the order of tokens: a mistake in positions would "
            "not show"
        )
        return False

    # -------------------------------------------------------------- the end

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
            finding.code = ""
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
        if self.yard.expects and self.yard.spread:
            moved = max((f.size for f in report.findings if f.verdict.sound), default=0.0)
            report.notes.append(
                f"the lossy cache moved logits by up to {moved / self.yard.spread:.1e} of their "
                f"spread, where {self.yard.expects:.1e} was declared"
            )
        if self.model.rewinds is False:
            report.not_offered.append(Unsupported("rejected drafts", "it has no rewind"))
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
        open_ = [s for s in plan if (s.cache, s.kind) not in self.reached | self.refused]
        if open_:
            names = "; ".join(dict.fromkeys(str(one.kind) for one in open_))
            words = f"not reached: {names}. Pass more `seconds`, or judge the same architecture, "
            words += "small"
            kinds = "kinds of scenarios that it offers"
            report.findings.append(Judgement(kinds, Verdict.UNDECIDED, words))


class _Nothing(NotOffered):
    """There is nothing to compare: the model is already judged in its own dtype."""

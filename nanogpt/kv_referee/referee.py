"""My cached text differs from my uncached text: is that rounding, or a bug? A reasoned verdict.

Rounding errors shrink in a finer dtype; a bug does not. So a model is run in float64 if possible.
There, a sound cache differs from a plain pass by about 10⁻⁹ of what float32 rounds away, but a
wrong mask or position by as much as before. reference.py has the plain passes and the verdict;
ways.py and situations.py have the scenarios: short texts first, then long ones if there is time.

Before a verdict, damages.py breaks the cache on purpose: a test that cannot fail proves nothing.
After a bug, diagnosis.py names the kind of mistake, and scripts.py writes a script that shows it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .contract import NoLogits
from .damages import (
    ORDERLY,
    TAIL,
    DamageKind,
    beginning,
    damages,
    texts_of,
    why_unseen,
    zero_weights,
)
from .diagnosis import cause, smallest, wrong_at
from .door import subject_of
from .foreign import cache_is_full
from .offers import MODEL_ERRORS, OutOfTime
from .reference import NoReference, Reference
from .report import (
    CachedRun,
    Damage,
    Judgement,
    PlainRun,
    Report,
    Scenario,
    Unsupported,
    Verdict,
    mark_known,
)
from .scripts import plain_script, script
from .situations import Situation, situations
from .subjects import NotOffered, Subject, check_int, first_line
from .texts import edges_of, lengths_of, limit_of, text, total
from .yardstick import thinned

SECONDS = 60.0  # after which no further scenario starts
_REQUESTS = 24  # one after the other; many of them share a prefix
BRIEF = 24  # tokens of a short text if the model's passes are slow
SHORTEST = 16  # fewest tokens that the scenarios need


def referee(
    model: Any,
    *,
    seed: int = 0,
    seconds: float = SECONDS,
    length: int | None = None,
    requests: int = _REQUESTS,
    expects: float | None = None,
    known: Iterable[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Compare every way of reading a text through the model's cache with one plain pass.

    `model` is a transformers model, or any object with plain(ids) and start(rows), as described in
    contract.py.

    Texts grow from short to `length` tokens (by default past every edge: the block size, a window,
    what the model declares) while `seconds` last. The report's verdict, "equal", "rounding", "bug"
    or "undecided", is about what was reached; the report names the rest. `requests` is how many
    requests are read one after the other. `expects` is how far a lossy cache may move logits, as a
    fraction of the spread of a token's logits: 1e-2 for int8. `known` are parts of the names of
    scenarios whose bugs are known. `say` is called with a line when a scenario starts.

    Before the verdict the cache is damaged on purpose; if the comparison does not detect that, the
    verdict is undecided.

    Raises ValueError for any other object and for a model without a cache.
    """
    start = time.monotonic()
    check_int("seed", seed, -(2**63), 2**64 - 1)
    modes = _modes(model)
    try:
        try:
            subject = subject_of(model)
            result = Report(subject.name)
            case = _Case(subject, seed, result, expects, start + seconds)
            case.settings(length, requests, tuple(known), say)
            case.run()
        except NoReference as stop:
            result.findings.append(stop.finding)
        except OutOfTime:
            result.unreached.append("the first comparison")
        except NoLogits as error:
            raise ValueError(str(error)) from None
    finally:
        for module, training in modes:
            module.training = training
    for name in mark_known(result, known):
        result.notes.append(f"the known failure {name!r} did not occur")
    result.seconds = time.monotonic() - start
    return result


def _modes(model: object) -> list[tuple[nn.Module, bool]]:
    """Each module of the caller's model, and whether it is in train mode."""
    if not isinstance(model, nn.Module):
        model = getattr(model, "model", None)
    if not isinstance(model, nn.Module):
        return []
    return [(module, module.training) for module in model.modules()]


class _Case(Reference):
    """One model under test: all comparisons, and the time left for them."""

    def __init__(
        self,
        subject: Subject,
        seed: int,
        result: Report,
        expects: float | None,
        end: float,
    ):
        self.pick = random.Random(seed)
        super().__init__(subject, seed, result, expects, end)
        self.spent = 0.0  # seconds of the comparisons so far
        self.units = 0.0  # their costs, as situations.py counts them
        self.references: dict[int, tuple[Tensor, Tensor] | None] = {}  # texts and logits, by stage
        self.room: dict[
            str, set[tuple[int, ...]]
        ] = {}  # the numbers of texts and tokens that each cache had room for

    def settings(
        self,
        length: int | None,
        requests: int,
        known: Iterable[str],
        say: Callable[[str], None],
    ) -> None:
        """Set the arguments of `referee` that limit how far it goes. Raises ValueError."""
        self.requests = requests
        self.known = known
        self.say = say
        self.lengths = lengths_of(self.subject, length)
        self.limit = None if length else limit_of(self.subject, self.lengths)
        shortest = self.lengths[0]
        if shortest < SHORTEST:
            raise ValueError(f"{self.subject.name} reads {shortest} tokens: {SHORTEST} are needed")
        if shortest > BRIEF and not length and self.slow(shortest):
            self.lengths[0] = BRIEF
            self.result.notes.append(f"a slow model: its short texts have {BRIEF} tokens")

    def read(
        self,
        comparison: Scenario,
        read: Callable[[], Tensor],
        expected: Tensor,
        inside: float | None = None,
    ) -> Judgement | None:
        """The verdict on the logits that read() returns; None if the model does not support it."""
        try:
            got = read()
        except (NotOffered, NotImplementedError, MemoryError) as refusal:
            self.not_offered(comparison, refusal)
            return None
        except MODEL_ERRORS as error:
            return self._stopped(comparison, error, expected)
        if comparison.cache is not None:
            self.room.setdefault(comparison.cache, set()).add(expected.shape[:2])
        if isinstance(got, Tensor):
            got = thinned(got)
        finding = self.judge(comparison, got, expected, read, inside)
        if finding.verdict is Verdict.BUG:
            self._excuse_noise(finding, read, got)
        return finding

    def _stopped(
        self, comparison: Scenario, error: BaseException, expected: Tensor
    ) -> Judgement | None:
        """The judgement on a pass that raised an error; None if the error is a refusal."""
        full = cache_is_full(error)
        if full and comparison.cache is not None:
            self._note_lost_room(comparison.cache, *expected.shape[:2])
        if full or isinstance(error, self.refusal_types):
            self.not_offered(comparison, error)
            return None
        words = f"it fails with {type(error).__name__}: {first_line(error)}"
        return Judgement(comparison, Verdict.BUG, words, math.inf)

    def _note_lost_room(self, cache: str, rows: int, tokens: int) -> None:
        """Note a full cache that had room for as many texts and tokens before: it kept blocks."""
        if any(rows <= b and tokens <= t for b, t in self.room.get(cache, ())):
            words = f"{cache} has no room for what it read before: are blocks freed?"
            self.result.notes.append(words)

    def _excuse_noise(self, finding: Judgement, read: Callable[[], Tensor], got: Tensor) -> None:
        """Make a bug undecided if its small difference varies between passes: it may be noise."""
        if not finding.size < 0.002 * self.yard.spread:
            return
        try:
            noise = max(float(self.yard.sizes(thinned(read()), got).max()) for _ in range(2))
        except MODEL_ERRORS:
            return
        if noise > self.yard.inside:
            self.yard.noise = max(self.yard.noise, noise)
            finding.verdict = Verdict.UNDECIDED
            finding.words += f"; read again, it varies by {noise:.1e}"

    def not_offered(self, comparison: Scenario, error: BaseException) -> None:
        """Note that the model refuses this comparison, and why."""
        refusal = Unsupported(comparison, first_line(error))
        if refusal not in self.refusals:
            self.refusals.append(refusal)

    # -------------------------------------------------------------- the scenarios

    def run(self) -> None:
        """Run all comparisons, on short texts and then on longer ones, until there is a bug.

        A few on the shortest and longest texts come first: a large model may have no time for more.
        """
        stages = {0, len(self.lengths) - 1}
        if self._stages(sorted(stages), core=True):
            sound = self._stages(range(len(self.lengths)), core=False)
            if sound and self.limit is not None and self.result.verdict is not Verdict.BUG:
                self.lengths.append(self.limit)
                self._stages([len(self.lengths) - 1], core=True)
        self._plain_after()
        self._explain()
        self._note_gaps()

    def _explain(self) -> None:
        """Find the kind of the first mistake and the shortest path to it, and write a script."""
        shown = [f for f in self.result.findings if f.verdict is Verdict.BUG and not f.known]
        cached: list[tuple[Judgement, CachedRun]] = []
        for finding in shown:
            how = finding.how
            if isinstance(how, CachedRun):
                cached.append((finding, how))
            elif isinstance(how, PlainRun):
                ids = text(self.subject, seed=how.seed, length=how.length)[:1]
                finding.code = plain_script(
                    self.subject, finding.way, finding.words, ids, how.ends, self.dtype
                )
        if cached:
            self._explain_cached(*cached[0])

    def _explain_cached(self, finding: Judgement, how: CachedRun) -> None:
        """Find out what is wrong with this pass through a cache, and write the shortest script."""
        ids = text(self.subject, seed=how.seed, length=how.length)[: how.rows]
        lengths, rows, at = how.lengths, how.rows, finding.position
        self.say("the kind of mistake")
        if at is not None:
            try:
                expected = self.alone(ids)
                whole = ids
                rows, lengths = smallest(self, how.cache, ids, expected, lengths, at)
                ids = ids[:rows]
                shorter = wrong_at(self, how.cache, ids, expected[:rows], lengths)
                at = at if shorter is None else shorter
                finding.cause = cause(self, how.cache, ids, expected[:rows], lengths, at)
                if not finding.cause and finding.position is not None:  # a longer text may show it
                    where = finding.position
                    finding.cause = cause(self, how.cache, whole, expected, how.lengths, where)
            except (NotOffered, MemoryError, OutOfTime, NoReference, *MODEL_ERRORS):
                pass  # report what is known anyway
            finding.how = CachedRun(how.seed, how.length, rows, lengths, how.cache)
        tokens = max(total(lengths), self.offers.shortest)  # of the plain pass
        finding.code = script(
            self.subject,
            finding.way,
            finding.words,
            ids[:, :tokens],
            lengths,
            how.cache,
            self.yard,
        )

    def _plain_after(self) -> None:
        """Repeat the plain pass: reading through a cache must not have changed it."""
        reference = self.references.get(0)
        if reference is None or not self._allows("the plain pass after cached ones", 40):
            return
        ids, expected = reference
        comparison = Scenario("the plain pass after cached ones")
        try:
            finding = self.read(comparison, lambda: self.plain(ids[:1]), expected[:1])
        except OutOfTime:
            self._leave(str(comparison))
            return
        if finding and finding.verdict is not Verdict.EQUAL:
            self.result.findings.append(finding)

    # -------------------------------------------------------------- damages

    def _damage_in_time(self) -> None:
        """Damage the caches; if there is no time for it, nothing shows that the test can fail."""
        try:
            self._damage()
        except OutOfTime:
            self._leave("caches damaged on purpose")
            if not any(damage.seen for damage in self.result.damages):
                words = "no time was left to show that this test can fail: pass more `seconds`"
                comparison = Scenario("damaged on purpose")
                self.result.findings.append(Judgement(comparison, Verdict.UNDECIDED, words, 0.0))

    def _damage(self) -> None:
        """Damage each cache on purpose; an undetected damage makes the verdict undecided."""
        n = beginning(self.subject, self.offers.shortest)
        ids = texts_of(self.subject, self.seed, n + TAIL)
        expected = self.plain(ids[:1])[:, n:]
        orderly = self._orderly(ids, n, expected)
        for cache in self.subject.caches:
            unseen: dict[DamageKind, list[Damage]] = {}
            seen: set[DamageKind] = set()
            for one in damages(self.subject, cache, ids, n):
                if one.kind in ORDERLY and not orderly:
                    continue
                self.say(f"{cache}, damaged: {one.name}")
                try:
                    size = float(self.yard.sizes(thinned(one.read()), expected).max())
                except (NotOffered, *MODEL_ERRORS):
                    continue
                damage = Damage(one.name, cache, size > self.yard.inside, size)
                self.result.damages.append(damage)
                if damage.seen:
                    seen.add(one.kind)
                else:
                    unseen.setdefault(one.kind, []).append(damage)
            missed = [many[0] for kind, many in unseen.items() if kind not in seen]
            if missed:
                largest = max(damage.size for damage in missed)
                names = "; ".join(damage.name for damage in missed[:3])
                more = f", and {len(missed) - 3} more" if len(missed) > 3 else ""
                reason = why_unseen(self.subject, expected, self.yard, largest)
                comparison = Scenario(f"damaged on purpose ({names}{more})", cache)
                words = f"looks like a sound cache, so this test cannot fail: {reason}"
                finding = Judgement(comparison, Verdict.UNDECIDED, words, largest)
                self.result.findings.append(finding)
        zeros = zero_weights(self.subject)
        if zeros:
            names = ", ".join(zeros[:3])
            note = f"{len(zeros)} weights are zero ({names}): a mistake behind them would not show"
            self.result.notes.append(note)

    def _orderly(self, ids: Tensor, n: int, expected: Tensor) -> bool:
        """Whether the logits of the plain pass depend on the order of old tokens."""
        swapped = ids[:1].clone()
        swapped[0, [n - 2, n - 1]] = swapped[0, [n - 1, n - 2]]
        moved = float(self.yard.sizes(self.plain(swapped)[:, n:], expected).max())
        if moved > self.yard.inside or torch.equal(swapped, ids[:1]):
            return True
        self.result.notes.append(
            "the plain pass does not depend on the order of tokens: a mistake in positions would "
            "not show"
        )
        return False

    def _note_gaps(self) -> None:
        """Note what the model does not support, and the edges that no text passed."""
        subject = self.subject
        notes = self.result.notes
        longest = self.lengths[-1]
        self.result.not_offered = list(self.refusals)
        if not subject.rewinds:
            rewinding = Unsupported(Scenario("rewinding"), "it has no rewind(n)")
            self.result.not_offered.append(rewinding)
        window = subject.window
        if window and window >= longest:
            notes.append(f"texts of {longest} tokens do not exceed its window of {window}")
        far = [edge for edge in edges_of(subject) if edge >= longest and edge != window]
        if far and longest != subject.longest:  # otherwise its longest text was read
            edges = ", ".join(map(str, far))
            words = f"no text is longer than {longest} tokens: a fault at {edges} would not show"
            notes.append(words)

    def _stages(self, stages: Iterable[int], core: bool) -> bool:
        """Try texts of these lengths; False if a bug stops the longer ones."""
        for stage in stages:
            n = self.lengths[stage]
            if not self._read_texts(n, stage):
                continue
            # A cache may be shorter than its model.
            self.refusal_types = (ValueError,) if stage else ()
            self._all(stage, core)
            mark_known(self.result, self.known)  # known bugs do not stop longer texts
            if core and not stage and self.result.verdict is not Verdict.BUG:
                self._damage_in_time()
            if self.result.verdict is Verdict.BUG and n < self.lengths[-1]:
                if core:
                    self._all(stage, False)
                note = f"texts of more than {n} tokens were not read: shorter ones convict"
                self.result.notes.append(note)
                return False
        return True

    def _all(self, stage: int, core: bool) -> None:
        """Try the core situations with these texts, or all others. Raises ValueError."""
        reference = self.references[stage]
        assert reference is not None  # `_read_texts` has returned True
        for situation in situations(self, stage, *reference):
            if situation.core == core and self._allows(situation.name, situation.cost):
                self._try(situation)
        if not stage and not self.result.findings and self.refusals and not core:
            reason = self.refusals[0].reason
            raise ValueError(f"{self.subject.name} has no cache that can be used: {reason}")

    def _read_texts(self, n: int, stage: int) -> bool:
        """Whether there are texts of n tokens to compare with; their plain passes are run once."""
        if stage in self.references:
            return self.references[stage] is not None
        if stage and not self._allows(f"texts of {n} tokens", 6 * n):
            return False
        try:
            self.say(f"a plain pass of {n} tokens")
            self.references[stage] = self.texts(n, stage)
            return True
        except NoReference as stop:
            if not stage:
                raise
            self.references[stage] = None
            self.result.notes.append(f"texts of {n} tokens were not read: {stop.finding.words}")
            return False
        except OutOfTime:
            if not stage:
                raise
            self._leave(f"texts of {n} tokens")
            return False

    def _try(self, situation: Situation) -> None:
        """Run one situation; its time is used to predict how long the next ones take."""
        self.say(situation.name)
        start = time.monotonic()
        try:
            findings = situation.trial()
        except OutOfTime:
            self._leave(situation.name)
            return
        self.result.findings += [finding for finding in findings if finding is not None]
        self.spent += time.monotonic() - start
        self.units += situation.cost

    def _allows(self, name: str, cost: float) -> bool:
        """Whether there is time for this; if not, the report names it."""
        remaining = self.end - time.monotonic()
        need = cost * self.spent / self.units if self.units else 0
        if need <= remaining and remaining > 0:
            return True
        self._leave(name)
        return False

    def _leave(self, name: str) -> None:
        """Note that there was no time left for this."""
        if name not in self.result.unreached:
            self.result.unreached.append(name)

"""My cached text differs from my uncached text: is that rounding, or a bug? A verdict, with why.

Rounding shrinks when the dtype grows, and a bug does not. So a model is run in float64 where it can
be. There a sound cache differs from a plain pass by about 10⁻⁹ of what float32 rounds away, and a
wrong mask or position by as much as before. The yardstick is measured in the model itself: how far
float32 moves the logits of its plain pass.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from ..decoding.sampling import draw_noise
from .compare import draw_margins, rounding
from .subjects import NotOffered, Subject, subject_of
from .texts import cut, plans, text

VERDICTS = ("equal", "rounding", "bug")  # from good to bad
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
ULPS = 4  # units in the last place of the largest logit, up to which logits are called equal


@dataclass
class Finding:
    """One way of computing the logits, compared with the plain pass."""

    way: str
    verdict: str  # "equal", "rounding" or "bug"
    words: str  # the evidence, in a sentence
    size: float = 0.0  # largest difference of a logit
    position: int | None = None  # of the first token whose logits are wrong
    code: str = ""  # shows a bug again

    @property
    def line(self) -> str:
        """Without the code."""
        return f"{self.verdict}: {self.way}: {self.words}"

    def __str__(self) -> str:
        return "\n".join([self.line, *(f"    {x}" for x in self.code.splitlines())])


@dataclass
class Report:
    """What `referee` found. `verdict` is that of the cache; `padding` lists what else is wrong."""

    model: str
    verdict: str = "equal"
    findings: list[Finding] = field(default_factory=list)
    padding: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was not tried, or cannot be excluded

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.verdict}"]
        for verdict in VERDICTS:
            found = [f for f in self.findings if f.verdict == verdict]
            if verdict == "bug":
                lines += [str(f) for f in found[:1]] + [f.line for f in found[1:]]
            elif found:
                worst = max(found, key=lambda f: f.size)
                lines += [f"{len(found)} ways {verdict}; the worst:", f"  {worst.line}"]
        lines += [f"padding, beside the cache: {f.line}" for f in self.padding]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def as_dict(self) -> dict:
        return asdict(self)


def referee(model, *, seed: int = 0) -> Report:
    """Compare every way of reading a text through the model's cache with one plain pass.

    `model` is a GPT, a model of transformers, a server's URL, or any object with plain(ids) and
    cached(pieces), as `Subject` describes. Raises ValueError for anything else, and for a model
    without a cache; ConnectionError for a server that gives no answers.
    """
    if isinstance(model, str) or hasattr(model, "ask"):
        from .server import referee_server

        return referee_server(model, seed)
    return _Case(subject_of(model), seed).report()


class _Case:
    """One model on its way through the comparisons."""

    def __init__(self, subject: Subject, seed: int):
        self.seed, self.pick = seed, random.Random(seed)
        self.result = Report(subject.name)
        self.by_dtype = self._dtypes(subject)
        (self.best, self.subject), *others = self.by_dtype.items()
        self.ids = text(self.subject, seed=seed)
        self.n = self.ids.shape[1]
        plain = self.subject.plain(self.ids)
        self.scale = float(plain.abs().max())
        if others:
            self.lower, lower = others[0]
            apart = (lower.plain(self.ids).double() - plain.double()).abs()
            self.coarse = float(apart[apart.isfinite()].amax()) if apart.isfinite().any() else 0.0
            ratio = torch.finfo(self.best).eps / torch.finfo(self.lower).eps
            self.limit = max(self.coarse * math.sqrt(ratio), ULPS * self.ulp)
        else:
            self.limit = self.coarse = rounding(plain)
            self.note(f"only in {_name(self.best)}: rounding is told from a bug by size alone")
        # A float32 inside a float64 model rounds as float32 does.
        self.inside = self.coarse if others and self.lower == torch.float32 else self.limit
        self.expected = self._truth(plain)

    @property
    def ulp(self) -> float:
        return torch.finfo(self.best).eps * self.scale

    def note(self, words: str) -> None:
        if words not in self.result.notes:
            self.result.notes.append(words)

    def _dtypes(self, subject: Subject) -> dict[torch.dtype, Subject]:
        """The model in every dtype that it can be run in, from the finest on."""
        found = {}
        for dtype in DTYPES:
            try:
                found[dtype] = subject.to(dtype)
                found[dtype].plain(text(subject, 1)[:, :2])
            except (NotOffered, MemoryError, RuntimeError, TypeError) as error:
                found.pop(dtype, None)
                if not isinstance(error, NotOffered) or dtype is torch.float64:
                    self.note(f"not in {_name(dtype)}: {str(error).splitlines()[0][:120]}")
        if not found:
            found[subject.plain(text(subject, 1)[:, :2]).dtype] = subject
        return found

    # -------------------------------------------------------------- the plain pass

    def _truth(self, plain: Tensor) -> Tensor:
        """What each token's logits must be.  (B, T, V)

        That of the whole text, unless it looks ahead or is not repeated: then each position's own.
        """
        alone = torch.cat([self.subject.plain(row[None]) for row in self.ids])
        if not self._same(
            "the plain pass, a second time", alone[:1], self.subject.plain(self.ids[:1])
        ):
            self.result.findings[-1].words += (
                ". It is not repeated: dropout is on (call eval()), or it keeps something of an "
                "earlier text"
            )
            return alone
        self._same("the plain pass of a batch, against each text alone", plain, alone)
        for t in (1, 2, self.n // 3, self.n // 2, self.n - 1):
            whole, ahead = alone[:1, :t], self.subject.plain(self.ids[:1, :t])
            if not float((ahead - whole).abs().max()) <= self.inside:
                self._looks_ahead(t, (ahead - whole).abs().amax((0, 2)))
                ends = range(1, self.n + 1)
                return torch.cat([self.subject.plain(self.ids[:, :t])[:, -1:] for t in ends], 1)
        return alone

    def _looks_ahead(self, t: int, diffs: Tensor) -> None:
        """The plain pass gives the first t tokens other logits when more tokens follow.  (t,)"""
        words = (
            f"the logits of the first {t} tokens change by {float(diffs.max()):.1e} when later "
            f"tokens are there: it looks ahead, or depends on the length. The cache is compared "
            f"with plain passes that end at each token"
        )
        code = f"(m.plain(ids[:1, :{t}]) - m.plain(ids[:1])[:, :{t}]).abs().amax((0, 2))"
        at = int((~(diffs <= self.inside)).nonzero()[0])
        size = float(diffs.max())
        self.add(Finding("the plain pass", "bug", words, size, at, self._code(code)))

    def _same(self, way: str, a: Tensor, b: Tensor) -> bool:
        finding = self.judge(way, a, b)
        if finding.verdict == "bug":
            self.add(finding)
        return finding.verdict != "bug"

    # -------------------------------------------------------------- a verdict

    def judge(self, way: str, got: Tensor, expected: Tensor, code: str = "") -> Finding:
        """The verdict on these logits, by their size.  (B, T, V) twice"""
        diffs = (got.double() - expected.double()).abs().amax((0, 2))  # (T,)
        size, ulps = float(diffs.max()), float(diffs.max()) / max(self.ulp, 1e-300)
        if size <= ULPS * self.ulp:
            bits = "the same bits" if size == 0 else f"{ulps:.1f} units in the last place"
            return Finding(way, "equal", f"{bits} ({_name(self.best)})", size)
        if size <= self.limit:
            return Finding(
                way, "rounding", f"{size:.1e} in {_name(self.best)}, {self._yard()}", size
            )
        if size <= self.inside:
            self.note(
                f"something in it computes in float32, also where the model is in float64: a bug "
                f"smaller than {self.inside:.1e} cannot be excluded"
            )
            words = f"{size:.1e} in float64, no more than float32 rounds ({self.coarse:.1e})"
            return Finding(way, "rounding", words, size)
        at = int((~(diffs <= self.inside)).nonzero()[0])
        if math.isnan(size):
            words = f"NaN from token {at} on, where the plain pass has numbers"
        else:
            words = f"off by {size:.1e} in {_name(self.best)}, from token {at} on; {self._yard()}"
        return Finding(way, "bug", words, size, at, code and self._code(code))

    def _yard(self) -> str:
        if len(self.by_dtype) == 1:
            return f"where rounding explains {self.limit:.1e}"
        return f"where {_name(self.lower)} moves the plain pass by {self.coarse:.1e}"

    def _code(self, line: str) -> str:
        return (
            f"from nanogpt.verify.referee import cut, subject_of, text  # MODEL is yours\n"
            f"m = subject_of(MODEL){f'.to({self.best})' if len(self.by_dtype) > 1 else ''}; "
            f"ids = text(m, seed={self.seed}); V = m.vocab_size\n{line}"
        )

    def add(self, finding: Finding) -> None:
        self.result.findings.append(finding)

    # -------------------------------------------------------------- the ways

    def report(self) -> Report:
        """Run all comparisons."""
        s, result = self.subject, self.result
        ways = plans(self.n, s.window, s.rewinds, self.pick)
        if not s.rewinds:
            self.note("not offered by this model: taking tokens back")
        for cache in s.caches:
            for way, lengths in ways.items():
                self.compare(cache, way, lengths, self.ids[:1])
            batch = [self.n // 2 - 3, 1, 1, 4, 1, 1, 1]
            batch += [self.n - sum(batch)]
            self.compare(cache, "three texts in a batch, against each alone", batch, self.ids)
            self.requests(cache)
        if result.findings[-1:] == [] or all("no cache" in f.words for f in result.findings):
            raise ValueError(f"{s.name}: none of its ways to use a cache could be run")
        self.padding()
        self.tokens()
        if s.window and s.window >= self.n:
            self.note(f"a window of {s.window} tokens is not left: its edge was not tested")
        result.verdict = max((f.verdict for f in result.findings), key=VERDICTS.index)
        return result

    def read(self, way: str, read, expected: Tensor, code: str) -> Finding | None:
        """Judge the logits that read() gives; None where the model has no such way."""
        try:
            got = read()
        except (NotOffered, NotImplementedError) as why:
            self.note(f"not offered by this model: {way} ({why})")
            return None
        except (IndexError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            said = f"it stops with {type(error).__name__}: {str(error).splitlines()[0][:160]}"
            return Finding(way, "bug", said, math.inf, None, self._code(code))
        if got.shape != expected.shape:
            said = f"logits {tuple(got.shape)}, and {tuple(expected.shape)} are wanted"
            return Finding(way, "bug", said, math.inf, None, self._code(code))
        return self.judge(way, got, expected, code)

    def compare(self, cache: str, way: str, lengths: list, ids: Tensor) -> None:
        """One plan through one cache."""
        s, n = self.subject, sum(x[0] if isinstance(x, tuple) else x for x in lengths)
        rows = "ids" if len(ids) > 1 else "ids[:1]"
        code = f"got = m.cached(cut({rows}, {lengths}, V), {cache!r})\n"
        code += f"(got - m.plain({rows})[:, :{n}]).abs().amax((0, 2))"
        pieces = cut(ids, lengths, s.vocab_size)
        found = self.read(
            f"{cache}, {way}", lambda: s.cached(pieces, cache), self.expected[: len(ids), :n], code
        )
        if found:
            self.add(found)

    def requests(self, cache: str) -> None:
        """One request after the other: A, one that shares A's beginning, a part of A, B, A."""
        s, half = self.subject, self.n // 2
        a, b = self.ids[:1], self.ids[1:2]
        shared = torch.cat([a[:, :half], b[:, half:]], 1)
        for order, (ids, name) in enumerate(
            [
                (a, "A"),
                (shared, "half of A, then B"),
                (a[:, :half], "half of A"),
                (b, "B"),
                (a, "A"),
            ]
        ):
            known = {"A": self.expected[:1], "B": self.expected[1:2]}
            known |= {"half of A": self.expected[:1, :half]}
            expected = known[name] if name in known else s.plain(ids)
            lengths = [
                half - 2,
                1,
                1,
                *([2, 1, 1, ids.shape[1] - half - 4] if name != "half of A" else []),
            ]
            pieces = cut(ids, lengths, s.vocab_size)
            code = f"# requests in this order: A, half of A then B, half of A, B, A; wrong: {name}"
            way = f"{cache}, request {order + 1} of 5: {name}"
            found = self.read(way, lambda p=pieces: s.cached(p, cache), expected, code)
            if found is None or found.verdict == "bug":
                if found:
                    self.add(found)
                return
        found.way = f"{cache}, five requests, the first one again at the end"
        self.add(found)

    def padding(self) -> None:
        """Shorter texts beside longer ones, padded on the left: without a cache, then with one.

        What one pass without a cache does with padding is no matter of the cache, and is reported
        apart.
        """
        s, n = self.subject, self.n
        starts = [0, 5, n // 3]
        column = torch.arange(n) - torch.tensor(starts)[:, None]  # (B, T): place in the own text
        mask, ids = (column >= 0).long(), self.ids.gather(1, column.clamp(min=0))
        alone = self.expected.gather(1, column.clamp(min=0)[..., None].expand_as(self.expected))
        lengths = [n // 2, 1, 1, 3, 1, n - n // 2 - 6]
        code = "# rows of ids padded on the left by 0, 5 and a third: m.padded(ids, mask, {})"
        way = "a padded batch in one pass, against each text alone"
        real = mask[..., None] > 0
        one = self.read(
            way,
            lambda: self._keep(s.padded(ids, mask, None), real),
            self._keep(alone, real),
            code.format(None),
        )
        if one is None:
            return
        self.result.padding.append(one)
        plain = self._keep(s.padded(ids, mask, None), real)
        real = real & plain.isfinite().all(-1, keepdim=True)  # NaN without a cache is not its bug
        way = "left padding through the cache, against one pass"
        got = self.read(
            way,
            lambda: self._keep(s.padded(ids, mask, lengths), real),
            self._keep(plain, real),
            code.format(lengths),
        )
        if got:
            self.add(got)

    @staticmethod
    def _keep(logits: Tensor, real: Tensor) -> Tensor:
        """Zeros instead of the logits of padding."""
        return torch.where(real, logits, 0)

    def tokens(self) -> None:
        """In each dtype: the first token, greedy or drawn, that the cache changes."""
        k, ids, s = self.n // 2 - 3, self.ids[:1], self.subject
        noise = draw_noise(self.n, 1, s.vocab_size, torch.Generator().manual_seed(self.seed))
        pieces, lines = cut(ids, [k] + [1] * (self.n - k), s.vocab_size), []
        for dtype, s in self.by_dtype.items():
            try:
                a, b = s.plain(ids)[0].double(), s.cached(pieces)[0].double()  # (T, V)
            except Exception as error:  # the ways above have said why, or it is a coarse dtype
                self.note(f"{_name(dtype)}: no text, {type(error).__name__}")
                continue
            diffs = (a - b).abs().amax(-1)  # (T,)
            line = f"{_name(dtype)} {float(diffs.max()):.1e}"
            for kind, race in (("greedy", torch.ones_like(noise)), ("drawn", noise)):
                x, y = ((z - race[:, 0].double().log()).argmax(-1) for z in (a, b))
                if len(at := (x != y).nonzero()):
                    margin = float(draw_margins(a[:, None], race)[at[0], 0])
                    line += f" (token {int(at[0])}, {kind}, is another: decided by {margin:.1e}, "
                    line += f"its logits are off by {float(diffs[at[0]]):.1e})"
            lines.append(line)
        self.note(f"a prompt of {k}, then token by token, is off by {', '.join(lines)}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Every blank of the series: solved, left empty, and filled with plausible wrong answers."""

import ast
import contextlib
import functools
import io

import nbformat
import pytest
from notebook_fixtures import NOTEBOOKS, book, brief_referee, code, prose

from nanogpt.series.execute import normalise
from nanogpt.series.mine import judged_lesson as lesson
from nanogpt.series.nbfile import FILLED, FIRST_LINE, SyncError, filled, solution, tagged

DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
BLANKS = {cell.id: path for path in NOTEBOOKS for cell in book(path).cells if tagged(cell, "blank")}
MASK = "visible(pos, k_pos)"
ONES = "torch.ones(len(pos), len(k_pos)).bool()"
GUARD = "self.cache is not None and not self.training"
HIDDEN = '.masked_fill(torch.arange(32) > pos, float("-inf"))'
READ = ": int(pos) + 1]"
# Of each blank: what is replaced in the solution, by what, and a word that the judge must say.
WRONG = {
    "attention-weights": [
        ('.masked_fill(~mask, float("-inf"))', "", "future"),
        (" * q.shape[-1] ** -0.5", "", "hs"),
        ("~mask", "torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()", "comes in"),
    ],
    "one-step": [("    optimizer.zero_grad()\n", "", "Clear"), (".item()", "", "tensor")],
    "visible": [(" & (k_pos[None, :] >= 0)", "", "empty"), ("<=", "<", "own")],
    "cache": [("        self.v = v\n        self.pos = pos\n", "", "NoneType")],
    "head": [
        (MASK, ONES, "future"),
        (MASK, f"{ONES}.tril()", "by place"),
        (GUARD, "self.cache is not None", "training"),
        ("        self.cache = None  # set and removed by kv_cache(model)\n", "", "self.cache"),
        ("self.dropout, self.training", "self.dropout", "dropout"),
    ],
    "sample": [
        (" / noise", "", "noise"),
        ("/ noise", "* noise", "is multiplied"),
        ("logits.softmax(-1)", "logits.sigmoid()", "softmax"),
        ("noise).arg", "torch.rand_like(noise)).arg", "of its own"),
    ],
    "decode-loop": [
        ("pos[-1:] + 1", "pos[-1:] * 0", "is at T"),
        ("@torch.no_grad()\n", "", "no_grad"),
        ("yield tokens", "yield tokens[0]", "shape (1, 1)"),
        ("sample(logits[:, -1]", "sample(logits[:, 0]", "the last logits"),
    ],
    "static-cache": [
        ("new_zeros(k.shape[0], self.capacity, k.shape[2])", "new_ones(2, 6, 3)", "zeros"),
        ("pos.new_full((self.capacity,), -1)", "torch.arange(self.capacity)", "-1 in empty"),
        ("if self.k is None", "if True", "reserve once"),
    ],
    "verdict": [("/ 1000", "", "is 'bug'"), ("in_float32 == in_float64 == 0", "False", "'equal'")],
    "sly": [("v = v.flip(1)", "pass", "acquits"), ("is not None and", "is None and", "one")],
    "margin": [(" - noise.log()", "", "noise")],
    "masked-head": [(MASK, ONES, "prefill"), (MASK, f"{ONES}.tril()", "cached")],
    "repaired-loop": [("start, x.shape[1], x)", "0, x.shape[1], x)", "T + t")],
    "read-on": [("k.shape[1] for", "1 for", "before it"), ("))[0]", "))", "a loss")],
    "repaired-baseline": [("    model.eval()\n", "", "random")],
    "asked-head": [("self.memory is not None", "self.memory", "false")],
    "check-length": [("block_size + 1 - T", "block_size - T", "refuses")],
    "one-text": [("for head in heads:\n            ", "for head in []:\n            ", "still")],
    "fixed-attention": [
        (HIDDEN, "", "empty"),
        ("index_copy_(1, pos", "index_copy_(1, pos * 0", "slot"),
        (
            "scores.softmax(-1) @ self.v",
            f"scores[..., {READ}.softmax(-1) @ self.v[:, {READ}",
            "graphs",
        ),
    ],
    "multiplications": [("n * T", "T", "each of the T"), (" * 2 ", " ", "keys and values")],
    "latency": [(" if rest else None", "", "ZeroDivisionError")],
    "paired-speedup": [("x / y", "y / x", "b / a")],
    "step-bytes": [("2 * ", "", "value")],
    "fastest": [("1 / max", "max", "seconds")],
    "round-row": [("abs(number)", "number", "sign")],
    "tokens-gained": [(": n + 1", ": n", "drop")],
    "total-variation": [("abs().", "", "absolute")],
    "expected-gain": [("range(k + 1)", "range(1, k + 1)", "alone")],
    "my-draft": [("before[-1]", "before[0]", "latest")],
    "key-head": [("h // group", "h % n_kv_head", "neighbours")],
    "turn": [("(angle)", "(math.radians(angle))", "radians")],
    "every-second": [
        ("visible(q_pos, k_pos) & ", "", "after"),
        ("visible(q_pos, k_pos)", "(gap >= 0)", "empty slot"),
        ("gap % 2 == 0", "(gap % 2 == 0) & (gap > 0)", "sees no key"),
        ("gap % 2", "torch.arange(len(k_pos)) % 2", "counts places"),
        ("gap = q_pos[:", "gap = torch.arange(len(q_pos))[:", "counts places"),
        ("gap % 2", "gap % (2 + (len(q_pos) == 1))", "with a cache the logits differ"),
        (" & (gap % 2 == 0)", ".float()", "truth values"),
        ("gap % 2 == 0", "gap // 8 * 0 == 0", "a cache can serve it"),
    ],
    "slot-of": [("(position - sinks) % window", "position % window", "ring")],
    "ragged-mask": [("same & ", "", "sequences"), ("<=", "<", "own")],
    "block-name": [("parent, tuple", "tuple", "parent")],
    "admitted": [("            break\n", "            continue\n", "overtakes")],
    "fold": [("return x", "return -x", "sign")],
    "flip": [("n_head, 2", "2, n_head", "signs")],
    "average": [("zip(rows", "zip(rows[::-1]", "exchanged")],
    "learning-rate": [("min(1, (step + 1) / warmup)", "(step + 1) / warmup", "stops")],
    "accumulate": [(" / parts", "", "divide")],
    "mfu": [(" + 12 * layers * width * block", "", "attention")],
    "pairwise": [("x[0::2] + x[1::2]", "x[: len(x) // 2] + x[len(x) // 2 :]", "neighbours")],
    "row-by-row": [("rows = x.reshape(-1, x.shape[-1])", "rows = x", "at once")],
    "padded-attention": [
        ("F.pad(mask, (0, more))", "F.pad(mask, (0, more), value=True)", "weight"),
        ("(0, 0, 0, more)", "(0, 0, more, 0)", "places"),
    ],
    "share-keys": [
        ("k.repeat_interleave(n_head // k.shape[1], dim=1)", "k", "the shape is"),
        (
            "k.repeat_interleave(n_head // k.shape[1], dim=1)",
            "k.repeat(1, n_head // k.shape[1], 1, 1)",
            "cards",
        ),
        ("return k.rep", "return k.flip(1).rep", "query head 0"),
    ],
    "gated": [
        ("F.silu(x @ gate.T) * (x @ up.T)", "(x @ gate.T) * F.silu(x @ up.T)", "wrong way round"),
        (" * (x @ up.T)", " + x @ up.T", "add"),
        ("F.silu(x @ gate.T)", "F.relu(x @ gate.T)", "ReLU"),
        ("F.silu(x @ gate.T)", "(x @ gate.T)", "activation is missing"),
        ("F.silu(x @ gate.T)", "(x @ gate.T).sigmoid()", "sigmoid"),
        (" @ down.T", "", "shape"),
    ],
}


# Right answers in another style, to the blanks whose judges stand in their notebooks.
RIGHT = {
    "repaired-loop": """
def repaired_loop(model, prompt, noise):
    out = []
    with kv_cache(model, KVCache):
        if prompt.shape[1] > 1:
            model(prompt[:, :-1], pos=places(0, prompt.shape[1] - 1, prompt))
        x = prompt[:, -1:]
        for start, row in enumerate(noise, prompt.shape[1] - 1):
            x = sample(model(x, pos=places(start, 1, x))[0][:, -1], row)
            out.append(x)
    return torch.cat(out, dim=1)
""",
    "read-on": """
def read_on(model, x):
    heads = [module for module in model.modules() if hasattr(module, "memory")]
    start = 0
    for k, _ in heads[-1].memory:
        start = start + k.size(1)
    logits, _ = model(x, pos=torch.arange(start, start + x.size(1)))
    return logits
""",
    "repaired-baseline": """
def repaired_baseline(model, prompt, noise):
    before = model.training
    try:
        model.train(False)
        new = prompt[:, :0]
        for row in noise:
            logits = model(torch.cat([prompt, new], 1))[0]
            new = torch.cat([new, sample(logits[:, -1], row)], 1)
    finally:
        model.train(before)
    return new
""",
    "one-text": """
def one_text(model, prompt, noise):
    def forget():
        for head in filter(lambda m: isinstance(m, MemoryHead), model.modules()):
            del head.memory[:]

    forget()
    try:
        text = decode(model, prompt, noise)
    except BaseException:
        forget()
        raise
    forget()
    return text
""",
    "check-length": """
def check_length(T, n_new, block_size):
    most = block_size - T + 1
    if T > block_size:
        raise ValueError(f"the prompt of {T} is longer than {block_size}: 0 tokens are possible")
    if not n_new <= most:
        raise ValueError(f"at most {most}")
""",
}


@functools.cache
def definitions(source: str) -> ast.Module:
    """What a cell imports and defines, without what it computes."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if isinstance(node, DEFINES)]
    return tree


@functools.cache
def judged(blank: str):
    """A function from the source of an answer to what the judge prints; the blank, the solution.

    What the cells above define is executed once, with the solutions of the blanks that are kept;
    each answer finds it untouched.
    """
    nb = book(BLANKS[blank])
    index = next(i for i, cell in enumerate(nb.cells) if cell.id == blank)
    check = next(cell for cell in nb.cells[index + 1 :] if cell.cell_type == "code")
    scope = lesson().scope | {"__name__": "__main__"}
    for cell in nb.cells[4:index]:
        if cell.cell_type == "code" and not tagged(cell, "blank"):
            exec(compile(definitions(cell.source), cell.id, "exec"), scope)
    before = dict(scope)

    def said(source: str) -> str:
        for name in scope.keys() - before:
            if not name.startswith("__"):  # those are torch.compile's
                del scope[name]
        scope.update(before)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "answer", "exec"), scope)
            exec(check.source, scope)
        return printed.getvalue()

    return said, nb.cells[index].source, solution(nb, index)


def test_every_blank_is_here():
    assert list(WRONG) == list(BLANKS)


# Their judges ask the referee.
SLOW = "every-second read-on repaired-loop asked-head one-text masked-head fixed-attention".split()


@pytest.mark.parametrize(
    "blank", [pytest.param(blank, marks=[pytest.mark.slow] * (blank in SLOW)) for blank in BLANKS]
)
def test_a_blank_is_judged_solved_empty_and_wrong(blank, monkeypatch):
    brief_referee(monkeypatch)
    said, empty, right = judged(blank)
    decorated = [node for node in ast.walk(ast.parse(empty)) if getattr(node, "decorator_list", 0)]
    assert not decorated, "the judge looks for an empty body, and a decorator would hide it"
    assert "Right" in said(right)
    assert "Not yet" not in said(right)
    assert "still empty" in said(empty)
    for old, new, word in WRONG[blank]:
        assert old in right
        printed = said(right.replace(old, new))
        assert "Not yet" in printed, (old, new)
        assert word in printed


@pytest.mark.parametrize(
    "blank", [pytest.param(blank, marks=[pytest.mark.slow] * (blank in SLOW)) for blank in RIGHT]
)
def test_a_right_answer_in_another_style_is_right(blank, monkeypatch):
    brief_referee(monkeypatch)
    said, _, _ = judged(blank)
    assert "Right" in said(RIGHT[blank])


# ------------------------------------------------------------------ filled in


BLANK = code('def f(x):\n    """Twice x."""', "f", tags=["blank"])
HINT = "<details><summary>Hint</summary>\n\nAdd.\n\n</details>\n"
SOLVED = f"{HINT}<details><summary>Solution</summary>\n\n```python\nreturn 2 * x\n```\n\n</details>"


def test_a_run_without_a_reader_is_given_the_solution_and_shows_the_blank():
    cells = [BLANK, code("f(1)", "check"), prose(SOLVED, "solved")]
    nb = nbformat.v4.new_notebook(cells=cells)
    blank, check, _ = filled(nb).cells
    assert blank.source == f"{FIRST_LINE}\nreturn 2 * x"
    assert check.source == "f(1)"
    (blank, *_) = normalise(filled(nb)).cells
    assert blank.source == FILLED + BLANK.source, "what a reader of the executed notebook sees"
    assert blank.metadata == {"tags": ["blank"]}
    assert nb.cells[0].source == BLANK.source, "the notebook itself is left alone"


@pytest.mark.parametrize(
    "below", [[], [prose(HINT, "hint")], [code("", "g", tags=["blank"]), prose(SOLVED, "solved")]]
)
def test_a_blank_without_a_solution_of_its_own_is_an_error(below):
    with pytest.raises(SyncError, match="the blank 'f' has no solution"):
        filled(nbformat.v4.new_notebook(cells=[BLANK, *below]))

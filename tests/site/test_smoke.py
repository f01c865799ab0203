"""In every run, if there is a browser: pages load, the path's token steps, the live page writes."""

import pytest
import torch
from browsers import in_a_browser, open_file
from notebook_fixtures import code, output, png, prose, write

from nanogpt import RollingCache, SamplingParams, complete, load_checkpoint
from nanogpt.engines.native import rounded
from nanogpt.files import KEEPER
from nanogpt.sampling import draw_noise
from nanogpt.site import build

pytestmark = in_a_browser
LIVE_PAGE = True
N_NEW = 40


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The pages of one small notebook, with the live model and everything else."""
    folder = tmp_path_factory.mktemp("smoke")
    plot = code("plot()", "plot", [output(picture=png(), alt="two colours")])
    write(folder / "00_one.ipynb", prose("## A part", "part"), plot, title="00 · One")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "api_page", lambda: None)  # pdoc's takes seconds
        return build.render(folder).parent


def test_every_page_loads_without_an_error_or_a_request(browser, html):
    for path in sorted(html.glob("*.html")):
        open_file(browser, path)
        assert browser.title()


def test_the_token_s_path_steps_to_the_next_token(browser, html):
    open_file(browser, html / "live.html", "#token")
    browser.wait_for_function("document.querySelector('.part canvas')?.width > 0")
    step = int(browser.text_content(".lead .title").split()[1])  # "Step 7 of 9 reads …"
    browser.click("[title='The next token']")
    assert browser.text_content(".lead .title").startswith(f"Step {step + 1} of ")


def test_the_live_page_writes_the_text_of_python(browser, html):
    open_file(browser, html / "live.html")
    written = browser.evaluate(f"write('KING:\\n', 4, {N_NEW}, {{ temperature: 0.8 }}, true)")
    saved = load_checkpoint(KEEPER)
    model = rounded(saved.model).double()
    noise = draw_noise(N_NEW, 1, len(saved.tokenizer), torch.Generator().manual_seed(4))
    prompt = saved.tokenizer.encode("KING:\n")[None]
    text = complete(model, prompt, N_NEW, SamplingParams(0.8), cache=RollingCache, noise=noise)
    assert written == saved.tokenizer.decode(text[0])

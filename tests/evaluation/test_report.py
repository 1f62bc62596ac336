"""Reports: the same content as Markdown and as one HTML page, with hostile texts as text in both."""

import base64
import errno
import re
from pathlib import Path

import pytest

from collab.evaluation import plots
from collab.evaluation.markup import clipped, escape_html, escape_markdown, fenced, inline_html, inline_markdown
from collab.evaluation.report import LONGEST_MESSAGE, Report
from collab.evaluation.statistics import Interval
from collab.evaluation.tables import Column, Row, Table
from simulators.conversation import Message
from simulators.errors import StorageError
from tests.evaluation.chromium import Chromium, needs_chromium

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
ATTACK = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1> ```` \x00 \ud800 | **b** [a](javascript:x)"


def example():
    report = Report("Demo & more", lead="One `line`.")
    report.add_heading("Results")
    report.add_text("First **bold** paragraph, R* and <tags>.\n\nSecond `code <b>` one.")
    report.add_facts({"R* after": Interval(0.5, 0.4, 0.6), "seconds": 612})
    report.add_table(Table("Figures", (Column("Policy"), Column("R*")), (Row(("Base", 0.1)),)))
    report.add_heading("Detail", level=3)
    report.add_figure(plots.before_after({"R*": (0.1, 0.5)}), "before-after", "Before `x` and after")
    report.add_figure(PIXEL, "pixel")
    report.add_transcript([Message("user", "Hello\nthere"), Message("assistant", "Hi")], title="errands-1", note="R* `0.5`")
    report.set_provenance(
        config={"model": {"name": "m", "api_key": "sk-1", "eos_token": "<e>"}, "keys": [{"password": "p"}], "empty_secret": ""},
        seeds={"run": 7},
        cost_usd=0.5,
    )
    return report


def test_markdown_of_a_report():
    text = example().markdown()
    head, provenance = text.split("## Provenance")
    assert head == (
        "# Demo \\& more\n\nOne `line`.\n\n## Results\n\n"
        "First **bold** paragraph, R\\* and &lt;tags>.\n\nSecond `code <b>` one.\n\n"
        "- R\\* after: **0.50 \\[0.40, 0.60\\]**\n- seconds: **612**\n\n"
        "**Figures**\n\n| Policy | R\\* |\n| --- | ---: |\n| Base | 0.10 |\n\n### Detail\n\n"
        "![Before x and after](figures/before-after.svg)\n\nBefore `x` and after\n\n![pixel](figures/pixel.png)\n\n"
        "**errands-1**\n\n*user*\n\n```text\nHello\nthere\n```\n\n*assistant*\n\n```text\nHi\n```\n\nR\\* `0.5`\n\n"
    )
    assert "- cost usd: 0.5" in provenance and "- seed (run): 7" in provenance
    assert re.search(r"- versions: Python 3\.\d+.*, numpy \d", provenance)


def test_credentials_do_not_reach_a_report():
    for text in (example().markdown(), example().html()):
        assert "sk-1" not in text
        assert '"password": "p"' not in text.replace("&quot;", '"')
        assert text.count("(left out)") == 2
        assert "eos_token" in text and "&lt;e&gt;" in text.replace("<e>", "&lt;e&gt;"), "a token of a tokenizer is no credential"


def test_html_has_the_same_content_in_order():
    html = example().html()
    wanted = [
        "<h1>Demo &amp; more</h1>",
        '<p class="lead">One <code>line</code>.</p>',
        ">Results</h2>",
        "<p>First <strong>bold</strong> paragraph, R* and &lt;tags&gt;.</p>",
        "<p>Second <code>code &lt;b&gt;</code> one.</p>",
        "0.50<span",
        "[0.40, 0.60]",
        ">Figures</figcaption>",
        ">Detail</h3>",
        '<img class="light-figure" src="data:image/svg+xml;base64,',
        '<img class="dark-figure" src="data:image/svg+xml;base64,',
        "data:image/png;base64,",
        "errands-1",
        "Hello\nthere",
        ">Hi<",
        "<h2>Provenance</h2>",
        "seed (run)",
    ]
    places = [html.find(each) for each in wanted]
    assert -1 not in places and places == sorted(places)
    assert '<li class="level-2"><a href="#section-0">Results</a></li><li class="level-3">' in html


def test_the_page_names_no_other_address():
    html = example().html()
    assert re.findall(r'(?:src|href)="(?!data:image/|#)', html) == []
    assert "http://" not in re.sub(r"data:[^\"]+", "", html) and "https://" not in html
    assert "default-src 'none'" in html and "unsafe" not in html


def test_writing_makes_the_files(tmp_path):
    page = example().write(tmp_path / "new" / "folder")
    assert page == tmp_path / "new" / "folder" / "report.html"
    assert sorted(str(path.relative_to(page.parent)) for path in page.parent.rglob("*.*")) == [
        "figures/before-after.svg", "figures/pixel.png", "report.html", "report.md",
    ]  # fmt: skip
    assert (page.parent / "figures/pixel.png").read_bytes() == PIXEL
    before = page.read_text()
    example().write(page.parent)
    assert page.read_text() == before, "the same report gives the same file"


def test_a_disk_that_refuses_leaves_the_old_report(tmp_path, monkeypatch):
    example().write(tmp_path)
    before = (tmp_path / "report.html").read_text()
    real = Path.write_bytes

    def full(self, data):
        if "report.html" in self.name:
            real(self, data[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match=r"cannot write .*report\.html: No space left"):
        Report("other").write(tmp_path)
    assert (tmp_path / "report.html").read_text() == before
    assert list(tmp_path.glob(".*")) == [], "no half file is left behind"


@pytest.mark.parametrize(
    ("name", "figure", "reason"),
    [("../evil", PIXEL, "letters, digits"), ("", PIXEL, "letters, digits"), ("x", b"<svg onload=x>", "not a PNG")],
)
def test_figures_with_bad_names_or_bytes_are_refused(name, figure, reason):
    with pytest.raises(ValueError, match=reason):
        Report("r").add_figure(figure, name)


def test_a_figure_is_named_once():
    report = Report("r")
    report.add_figure(PIXEL, "one")
    with pytest.raises(ValueError, match="has a figure 'one' already"):
        report.add_figure(PIXEL, "one")
    with pytest.raises(ValueError, match="level 1"):
        report.add_heading("x", level=1)


def test_very_long_messages_are_cut_and_say_so():
    report = Report("r")
    report.add_transcript([Message("assistant", "x" * 1_000_000)])
    assert len(report.html()) < 60_000
    assert f"[… {1_000_000 - LONGEST_MESSAGE:,} more characters]" in report.html()
    assert clipped("short", 10) == "short"


# --- hostile texts ------------------------------------------------------------------------------------------------------------


def test_markup_is_escaped_in_both_formats():
    assert escape_html("<b a=\"1\" c='2'>&\x00") == "&lt;b a=&quot;1&quot; c=&#x27;2&#x27;&gt;&amp;␀"
    assert escape_markdown("a|b *c* <d>\n`e`") == r"a\|b \*c\* \<d\> \`e\`"
    assert inline_html("**<b>** `<c>` <d>") == "<strong>&lt;b&gt;</strong> <code>&lt;c&gt;</code> &lt;d&gt;"
    assert inline_markdown("<b> & `<c>` 2*3") == r"&lt;b> &amp; `<c>` 2\*3"
    assert "\ud800" not in escape_html("x\ud800y")


@pytest.mark.parametrize("text", ["```", "a\n````\nb", "`" * 50, "no ticks", "~~~"])
def test_a_code_block_cannot_be_closed_from_within(text):
    lines = fenced(text).split("\n")
    fence = lines[-1]
    assert set(fence) == {"`"} and lines[0] == fence + "text"
    assert not any(line.strip().startswith(fence) for line in lines[1:-1])


def hostile_report():
    report = Report(ATTACK, lead=ATTACK)
    report.add_heading(ATTACK)
    report.add_text(ATTACK)
    report.add_facts({ATTACK: ATTACK})
    report.add_table(Table(ATTACK, (Column(ATTACK, group=ATTACK), Column("b", unit=ATTACK)), (Row((ATTACK, 1.0)),), ATTACK))
    report.add_figure(PIXEL, "pixel", ATTACK, ATTACK)
    report.add_figure(
        plots.before_after({ATTACK.replace("\ud800", "").replace("\x00", ""): (0.1, 0.2)}, (ATTACK[:40], "b")), "plot"
    )
    report.add_transcript(
        [
            Message(f'"{ATTACK}', "a role read from a file"),
            Message("user", ATTACK),
            Message("assistant", "שלום \u202e x " + "y" * 50_000),
        ],
        ATTACK,
        ATTACK,
    )
    report.set_provenance({ATTACK: ATTACK}, {ATTACK: 1}, note=ATTACK)
    return report


@needs_chromium
async def test_a_hostile_report_does_no_harm_in_a_browser(tmp_path):
    page_file = hostile_report().write(tmp_path)
    async with Chromium() as browser:
        page = await browser.open(page_file)
        assert await page.evaluate("typeof window.hacked") == "undefined"
        assert await page.evaluate("document.querySelectorAll('script').length") == 1
        assert await page.evaluate("document.querySelectorAll('img[onerror], img:not([src^=\"data:\"]), iframe').length") == 0
        assert await page.evaluate("document.querySelector('h1').textContent") == ATTACK.replace("\x00", "␀").replace(
            "\ud800", "?"
        )
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.problems == [] and page.requests == [page_file.as_uri()]


@needs_chromium
async def test_figures_and_colours_follow_the_theme(tmp_path):
    page_file = example().write(tmp_path)
    shown = "[...document.querySelectorAll('.picture img')].filter(image => image.offsetWidth).map(image => image.className)"
    async with Chromium() as browser:
        light, dark = await browser.open(page_file, scheme="light"), await browser.open(page_file, scheme="dark")
        assert await light.evaluate(shown) == ["light-figure", ""]
        assert await dark.evaluate(shown) == ["dark-figure", ""]
        await dark.click("#theme")
        assert await dark.evaluate(shown) == ["light-figure", ""]
        assert await light.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        assert dark.problems == light.problems == []

"""One browser for all viewer tests of a file, and pages that must stay without a fault."""

import pytest
import pytest_asyncio

from collab.evaluation.viewer import write_viewer
from tests.evaluation.chromium import Chromium


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with Chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path):
    """Write a viewer of some trees and open it; at the end nothing may have gone wrong in any page."""
    pages = []

    async def open_viewer(trees, *, title="run", token_text=None, address="", damage=None, **options):
        path = write_viewer(trees, tmp_path / f"viewer-{len(pages)}.html", title, token_text=token_text)
        if damage:
            path.write_text(damage(path.read_text()))
        page = await browser.open(**options)
        pages.append((page, path))
        await page.go(path.as_uri() + address)
        await page.wait_for("performance.getEntriesByName('open').length")
        return page

    yield open_viewer
    for page, path in pages:
        assert page.problems == []
        assert {request.split("#")[0] for request in page.requests} == {path.as_uri()}, "the page asked for something else"

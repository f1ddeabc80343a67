"""Three lanes in a real browser: they say what core/streaming.py says, play in real time, step back, and keep
the link."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from core import streaming
from core.streaming import Emission, RecordedStream
from core.trace import Trace
from pages.views import streaming_data
from tests.browser.helpers import axe_violations, overflow_px
from tests.conftest import ROOT, recorded_run_path

COMPONENTS = ROOT / "assets" / "components"
TEXT = "日本語 and 👩🏼‍🚀 emoji, plain words.\n\n\ufeffé"


@pytest.fixture(scope="module")
def run() -> RecordedStream:
    return streaming.stream_of(Trace.load(recorded_run_path()))


def lanes(page: Page) -> Any:
    found = page.locator(".streaming-lanes")
    expect(found.locator(".shown")).to_be_attached()
    ready = "e => e.shadowRoot?.querySelector('.streaming-lanes[data-first]')"
    page.wait_for_function(f"() => [...document.querySelectorAll('*')].some({ready})")
    return found


def figure(root: Any, name: str) -> float:
    return float(root.get_attribute(f"data-{name}"))


# ---- the same stages in both languages ----


def settings_cases() -> list[dict[str, Any]]:
    dice = random.Random(7)
    return [
        {"send": dice.choice(["token", "count", "time"]), "n": dice.randint(2, 12),
         "ms": dice.choice([50, 100, 250, 700]), "draw": dice.choice(["asis", "smooth", "end"]),
         "cps": dice.choice([5, 40, 200]), "delay": dice.choice([0, 130]), "jitter": dice.choice([0, 300])}
        for _ in range(60)
    ]  # fmt: skip


def random_streams() -> list[tuple[Emission, ...]]:
    dice, streams = random.Random(3), []
    for _ in range(4):
        data, place, now, parts = TEXT.encode(), 0, 0.2, []
        while place < len(data):
            size = dice.randint(1, 4)
            now += dice.choice([0.0, 0.04, 0.1, 0.5])
            parts.append(Emission(now, data[place : place + size]))
            place += size
        streams.append(tuple(parts))
    return [*streams, (Emission(0.3, b"\xe9\x9b"),), (Emission(0.3, b""),), ()]


SCRIPT = """({source, tokens, controls, dice}) => {
  const f = new Function(source + "; return {messagesOf, deliver, drawsOf};")(); const messages =
  f.deliver(f.messagesOf(tokens, controls), controls, dice); return {messages: messages.map(m => [m.sent,
  m.arrived, m.start, m.stop, m.text]), draws: f.drawsOf(messages, controls)};
}"""


def test_the_browser_computes_the_same_stages_as_core(browser: Browser) -> None:
    source = (COMPONENTS / "shared.js").read_text(encoding="utf-8")
    source += (
        (COMPONENTS / "streaming_lanes" / "main.js")
        .read_text(encoding="utf-8")
        .replace("export default function", "function last")
    )
    page = browser.new_page()
    for emissions in random_streams():
        tokens = [{"t": e.time_s, "hex": e.data.hex(), "special": False} for e in emissions]
        shown = RecordedStream(emissions, (), (), "", False, "", 0, 0.0, "", "", {})
        for controls in settings_cases():
            dice = streaming_data.dice(len(tokens))
            found = page.evaluate(
                SCRIPT, {"source": source, "tokens": tokens, "controls": controls, "dice": dice}
            )
            arrived = streaming_data.messages(shown, controls)
            expected = [[m.sent_s, m.arrived_s, m.start, m.stop, m.text] for m in arrived]
            assert len(found["messages"]) == len(expected), controls
            for ours, theirs in zip(expected, found["messages"], strict=True):
                assert theirs[:2] == pytest.approx(ours[:2], abs=1e-9)
                assert theirs[2:] == ours[2:]
            draws = streaming_data.draws(arrived, controls["draw"], controls["cps"])
            flat = [number for moment in found["draws"] for number in moment]
            assert flat == pytest.approx([x for d in draws for x in (d.time_s, d.n_chars)], abs=1e-9)
    page.close()


# ---- the page ----


def test_it_opens_on_the_finished_run(open_page: Callable[..., Page], run: RecordedStream) -> None:
    root = lanes(open_page("streaming", lang="en"))
    assert figure(root, "first") == pytest.approx(run.emissions[0].time_s)
    assert figure(root, "last") == pytest.approx(run.emissions[-1].time_s)
    assert figure(root, "messages") == len(run.emissions)
    text = "".join(m.text for m in streaming.messages_every_tokens(run.emissions))
    assert root.locator(".shown").text_content() == text


def test_it_plays_to_the_end_in_real_time_and_steps_back(
    open_page: Callable[..., Page], run: RecordedStream
) -> None:
    page = open_page("streaming", lang="en")
    root = lanes(page)
    whole = root.locator(".shown").text_content()
    scrub = root.locator(".scrub")
    count = int(scrub.get_attribute("max"))
    root.locator(".speed").select_option("0.25")
    root.locator(".play").click()
    page.wait_for_timeout(150)
    assert len(root.locator(".shown").text_content()) < len(whole)
    root.locator(".speed").select_option("4")
    expect(root.locator(".play")).to_contain_text("Play", timeout=20_000)
    expect(root.locator(".shown")).to_have_text(whole, use_inner_text=False)
    for i in range(1, 4):
        root.locator(".back").click()
        assert int(scrub.input_value()) == count - i
    emitted = run.emissions[: len(run.emissions) - 3]
    expected = "".join(m.text for m in streaming.messages_every_tokens(emitted))
    assert root.locator(".shown").text_content() == expected


def test_every_step_shows_what_has_been_drawn_by_then(open_page: Callable[..., Page]) -> None:
    shown = streaming_data.stream("emoji", None)  # type: ignore[arg-type]
    root = lanes(open_page("streaming", lang="en", stream="emoji"))
    messages = streaming.messages_every_tokens(shown.emissions)
    root.locator(".scrub").focus()
    root.locator(".scrub").press("Home")
    for index in range(1, len(shown.emissions) + 1):
        root.locator(".scrub").press("ArrowRight")
        now = shown.emissions[index - 1].time_s
        assert root.locator(".shown").text_content() == "".join(
            m.text for m in messages if m.arrived_s <= now
        )
        sent = max((m.stop for m in messages if m.sent_s <= now), default=0)
        assert root.locator(".held .chip").count() == index - sent


def test_settings_change_the_stages_and_the_link(open_page: Callable[..., Page], run: RecordedStream) -> None:
    page = open_page("streaming", lang="en")
    root = lanes(page)
    root.get_by_role("button", name="every few tokens").click()
    root.get_by_role("button", name="all at the end").click()
    assert figure(root, "messages") == len(streaming.messages_every_tokens(run.emissions, 4))
    assert figure(root, "first") == figure(root, "last") == pytest.approx(run.emissions[-1].time_s)
    page.wait_for_url(re.compile("st_draw=end"))
    slider = root.locator(".dial-delay")
    slider.focus()
    for _ in range(5):
        slider.press("ArrowRight")
    page.wait_for_url(re.compile("st_delay=50"))
    assert figure(root, "last") == pytest.approx(run.emissions[-1].time_s + 0.05)
    expect(page.get_by_text("first character · simulated")).to_be_visible()
    again = lanes(open_page("streaming", lang="en", st_send="count", st_draw="end", st_delay=50))
    assert figure(again, "last") == pytest.approx(figure(root, "last"))


def test_the_table_says_the_same_in_words(open_page: Callable[..., Page], run: RecordedStream) -> None:
    root = lanes(open_page("streaming", lang="ja", st_send="count", st_n=5))
    root.locator("summary").click()
    rows = root.locator("tbody tr")
    messages = streaming.messages_every_tokens(run.emissions, 5)
    assert rows.count() == len(messages)
    for index, message in enumerate(messages):
        cells = rows.nth(index).locator("td").all_text_contents()
        assert float(cells[1].replace(",", "")) == pytest.approx(message.sent_s * 1000, abs=0.06)
        assert int(cells[3]) == message.n_tokens


def test_reduced_motion_jumps_and_keys_step(open_page: Callable[..., Page]) -> None:
    page = open_page("streaming", lang="en", reduced_motion=True)
    root = lanes(page)
    root.locator(".back").focus()
    page.keyboard.press("Home")
    assert root.locator(".scrub").input_value() == "0"
    assert root.locator(".shown").text_content() == ""
    page.keyboard.press("End")
    assert root.locator(".shown").text_content()


@pytest.mark.parametrize(("theme", "lang", "width"), [("light", "ja", 390), ("dark", "en", 1280)])
def test_with_every_knob_shown_it_is_accessible_and_fits(
    open_page: Callable[..., Page], theme: str, lang: str, width: int
) -> None:
    page = open_page(
        "streaming",
        theme=theme,
        lang=lang,
        width=width,
        stream="emoji",
        st_send="time",
        st_draw="smooth",
        st_jitter=200,
    )
    root = lanes(page)
    root.locator("summary").click()
    root.locator(".scrub").focus()
    root.locator(".scrub").press("Home")
    assert overflow_px(page) == 0
    assert axe_violations(page) == []

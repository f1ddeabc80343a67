"""The calculator in a real browser: equal to core to the last byte, live under the thumb, and carried by its link."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from core.errors import InvalidSettingError
from core.kv_dtypes import BLOCKS
from core.kv_memory import KVLayer, KVLayout, bytes_per_token, kv_bytes, max_sequences, max_tokens
from pages.views import kv_memory_data as data
from tests.browser.helpers import ROOT, axe_violations, input_to_paint_ms, overflow_px, wait_for_app
from tests.test_kv_memory import CONFIGS, GEMMA3_GGUF, gguf_bytes

SCRIPT = ROOT / "assets" / "components" / "kv_calculator" / "main.js"
DTYPES = {name: list(BLOCKS[name]) for name in data.DTYPES}
SETTINGS = {
    "tokens": 1,
    "users": 1,
    "cross": 0,
    "k": "f16",
    "v": "",
    "tp": 1,
    "ubatch": 512,
    "block": 16,
    "batched": 2048,
}
ENGINES = ("ideal", "no_window", "llama.cpp", "vllm")
GIB = 1024**3

# All cases in one call. BigInt travels as text.
CASES = """({cases, dtypes}) => cases.map(({model, s, budget}) => {
    const groups = grouped(model), out = {};
    try {
        for (const engine of ["ideal", "no_window", "llama.cpp", "vllm"]) {
            const got = kvBytes(groups, s, dtypes, engine);
            out[engine] = [got.full, got.window, got.state, got.cross, got.total].map(String);
            const most = [maxTokens, maxUsers].map((solve) => solve(groups, BigInt(budget), s, dtypes, engine));
            out[engine + " max"] = most.map(String);
        }
    } catch (error) { out.error = error.code; }
    return out;
})"""


@pytest.fixture(scope="module")
def compute(browser: Browser) -> Iterator[Callable[[list[dict[str, Any]]], list[dict[str, Any]]]]:
    """The marked section of the component's script, in an empty page of the real browser."""
    script = SCRIPT.read_text(encoding="utf-8")
    maths = script.split("kv maths: begin", 1)[1].split("*/", 1)[1].split("/* ---- kv maths: end", 1)[0]
    page = browser.new_page()
    page.add_script_tag(content=maths)
    yield lambda cases: page.evaluate(CASES, {"cases": cases, "dtypes": DTYPES})
    page.close()


def python_says(layout: KVLayout, s: dict[str, Any], budget: int) -> dict[str, Any]:
    options = {
        "llama.cpp": {"n_ubatch": s["ubatch"]},
        "vllm": {"block_size": s["block"], "max_num_batched_tokens": s["batched"]},
    }
    common = {
        "k_dtype": s["k"],
        "v_dtype": s["v"] or None,
        "tensor_parallel": s["tp"],
        "n_cross_tokens": s["cross"],
    }
    out: dict[str, Any] = {}
    try:
        for engine in ENGINES:
            more = {**common, "engine": engine, **options.get(engine, {})}
            got = kv_bytes(layout, s["tokens"], n_sequences=s["users"], **more)
            out[engine] = [str(n) for n in (got.full, got.window, got.state, got.cross, got.total)]
            both = (
                max_tokens(layout, budget, n_sequences=s["users"], **more),
                max_sequences(layout, budget, s["tokens"], **more),
            )
            out[engine + " max"] = ["null" if n is None else str(n) for n in both]
    except InvalidSettingError:
        out["error"] = "refused"
    return out


def random_layer(rng: random.Random) -> KVLayer:
    kind = rng.choice(["full", "full", "window", "window", "state", "cross", "none", "latent"])
    heads, width = rng.choice([1, 2, 3, 8, 16]), rng.choice([32, 64, 80, 128])
    if kind == "latent":
        return KVLayer("full", rng.choice([288, 576]))
    if kind == "state":
        return KVLayer("state", state_elements=rng.randrange(1, 9) * 1024, state_parts=rng.choice([1, 2, 8]))
    if kind == "none":
        return KVLayer("none")
    state = rng.choice([0, 0, 4096]) if kind == "full" else 0
    window = rng.randrange(1, 9000) if kind == "window" else None
    return KVLayer(
        kind, heads * width, heads * rng.choice([width, 64]), window, state, heads, 4 if state else 0
    )


def random_case(rng: random.Random) -> tuple[KVLayout, dict[str, Any], int]:
    layout = KVLayout(tuple(random_layer(rng) for _ in range(rng.randrange(1, 7))))
    s = {
        "tokens": rng.choice([1, 255, 256, 257, 4096, rng.randrange(1, 10**6), 10**9]),
        "users": rng.choice([1, 2, 32, rng.randrange(1, 1000), 10**6]),
        "cross": rng.choice([0, 1500, 6404]),
        "k": rng.choice(list(DTYPES)),
        "v": rng.choice(["", "", *DTYPES]),
        "tp": rng.choice([1, 1, 1, 2, 3, 4, 8]),
        "ubatch": rng.choice([1, 64, 512, 2048]),
        "block": rng.choice([1, 16, 32, 960]),
        "batched": rng.choice([1, 2048, 8192]),
    }
    return layout, s, rng.choice([0, 1000, 10**9, 24 * GIB, 10**14])


def test_the_browser_computes_what_python_computes(compute: Callable[..., Any]) -> None:
    """Six hundred random layouts and settings, four engines, forward and inverse: equal to the last byte."""
    rng = random.Random(7)
    cases = [random_case(rng) for _ in range(600)]
    sent = [{"model": data.model(layout), "s": s, "budget": budget} for layout, s, budget in cases]
    refused = 0
    for (layout, s, budget), got in zip(cases, compute(sent), strict=True):
        want = python_says(layout, s, budget)
        if "error" in want:
            refused += 1
            assert got.get("error", "").startswith("tp_"), (layout, s)
        else:
            assert got == want, (layout, s, budget)
    assert 10 < refused < 300


def test_every_published_model_is_the_same_in_both(compute: Callable[..., Any], recorded: Any) -> None:
    data.declare()
    cases = []
    for entry in data.presets():
        for tokens, users, k in ((4096, 32, "f16"), (131_072, 1, "q8_0"), (777, 3, "q4_0")):
            s = {**SETTINGS, "tokens": tokens, "users": users, "k": k, "cross": entry["n_cross_tokens"]}
            cases.append((data.preset_layout(entry["id"]), s, 24 * GIB))
    sent = [{"model": data.model(layout), "s": s, "budget": budget} for layout, s, budget in cases]
    for (layout, s, budget), got in zip(cases, compute(sent), strict=True):
        assert got == python_says(layout, s, budget)


# --- on the page ------------------------------------------------------------------------------------------------------


@pytest.fixture
def calculator(open_page: Callable[..., Page]) -> Callable[..., Page]:
    def opened(**query: Any) -> Page:
        page = open_page("kv_memory", **{"lang": "en", "reduced_motion": True, **query})
        page.wait_for_selector(".kv-calculator .main-figs .fig b")
        return page

    return opened


def total(page: Page) -> str:
    return page.locator(".main-figs .fig b").first.inner_text().replace("\u00a0", " ")


def frame_drawn(page: Page) -> None:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_the_worked_example_in_one_click(calculator: Callable[..., Page]) -> None:
    """LESSONS B1 on screen, from 128 KiB a token to four times as much with 32 KV heads."""
    page = calculator(mem_model="gemma-3-4b", mem_tokens=777, mem_users=9)
    page.get_by_role("button", name="Example: Llama 3.1 8B").click()
    frame_drawn(page)
    assert total(page) == "512 MiB = 536.87 MB"
    assert page.locator(".main-figs .fig b").nth(1).inner_text().replace("\u00a0", " ") == "128 KiB"
    steps = page.locator(".step")
    for i, want in enumerate(
        ["128 KiB = 131.07 kB", "512 MiB = 536.87 MB", "15.6 GiB = 16.78 GB", "16 GiB = 17.18 GB"]
    ):
        assert steps.nth(i).locator("b").inner_text().replace("\u00a0", " ") == want
    assert steps.nth(4).locator("b").inner_text() == "?"  # the question above asks for it
    assert "4 times as much" in steps.nth(5).inner_text()
    steps.nth(4).click()
    frame_drawn(page)
    assert total(page) == "16 GiB = 17.18 GB"
    page.get_by_text("about the same").click()
    page.wait_for_function("() => !!document.querySelector('[data-testid=stMarkdown]')")
    expect(steps.nth(4)).to_contain_text("16.06")
    assert page.locator(".line").first.inner_text().split()[0] == "2"


def test_a_slider_moves_everything_at_once_and_the_link_on_release(calculator: Callable[..., Page]) -> None:
    page = calculator(mem_model="gemma-3-12b")
    layout = KVLayout.from_config(CONFIGS["gemma-3-12b-pt"])
    box = page.locator("#kv-tokens").bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
    frame_drawn(page)
    n = int(page.locator(".ctl.wide .input").first.input_value().replace(",", ""))
    assert n > 4096
    assert total(page).split(" = ")[0] == shown_size(page, kv_bytes(layout, n).total)
    assert "mem_tokens" not in page.url
    page.mouse.up()
    page.wait_for_url(f"**mem_tokens={n}*")
    page.reload()
    page.wait_for_selector(".kv-calculator .main-figs .fig b")
    assert total(page).split(" = ")[0] == shown_size(page, kv_bytes(layout, n).total)


def shown_size(page: Page, n_bytes: int) -> str:
    """The size as shared.js writes it."""
    script = (ROOT / "assets" / "components" / "shared.js").read_text(encoding="utf-8")
    return str(page.evaluate(f"() => {{ {script}; return formats('en').bytes({n_bytes}); }}")).replace(
        "\u00a0", " "
    )


@pytest.mark.parametrize(
    ("typed", "meanings"), [("128k", ["131,072", "128,000"]), ("1M", ["1,048,576", "1,000,000"])]
)
def test_128k_is_asked_back(calculator: Callable[..., Page], typed: str, meanings: list[str]) -> None:
    page = calculator()
    box = page.get_by_role("textbox", name="Context (tokens)")
    for meaning in meanings:
        box.fill(typed)
        box.press("Tab")
        assert page.locator(".ask button").all_inner_texts() == meanings
        page.get_by_role("button", name=meaning, exact=True).click()
        frame_drawn(page)
        assert box.input_value() == meaning


@pytest.mark.parametrize(
    "typed", ["-1", "0", "1000000000000", "many", "1e5", "12.5", "", "𝟙𝟚", "99999999999999999999"]
)
def test_bad_numbers_get_a_sentence_and_change_nothing(calculator: Callable[..., Page], typed: str) -> None:
    page = calculator()
    before = total(page)
    box = page.get_by_role("textbox", name="Context (tokens)")
    box.fill(typed)
    box.press("Tab")
    expect(page.locator(".ask .wrong").first).to_contain_text("Type a number from 1 to 1,000,000,000.")
    assert box.get_attribute("aria-invalid") == "true"
    assert total(page) == before
    assert "mem_tokens" not in page.url


def test_an_echo_that_is_late_does_not_undo_what_came_after(calculator: Callable[..., Page]) -> None:
    """Many quick changes: each is sent, and the answers arrive while the next ones are being made."""
    page = calculator()
    for ranks in ("2", "4", "8", "1", "8", "2"):
        page.locator("#kv-tp").select_option(ranks)
    page.wait_for_url("**mem_tp=2*")
    wait_for_app(page)
    page.wait_for_timeout(500)
    assert page.locator("#kv-tp").input_value() == "2"
    assert total(page) == "256 MiB = 268.44 MB"


def test_the_same_file_again_brings_its_model_back(calculator: Callable[..., Page]) -> None:
    page = calculator()
    config = json.dumps(CONFIGS["Mixtral-8x7B-v0.1"]).encode()
    drop(page, "config.json", config)
    page.wait_for_url("**mem_model=custom*")
    page.locator("#kv-k").select_option("q8_0")
    page.wait_for_url("**mem_k=q8_0*")
    page.locator("select.model").select_option("gemma-2b")
    page.wait_for_url("**mem_model=gemma-2b*")
    drop(page, "config.json", config)
    page.wait_for_url("**mem_model=custom*")
    expect(page.locator("select.model")).to_have_value("custom")


def test_the_shape_by_hand_and_ranks(calculator: Callable[..., Page]) -> None:
    page = calculator(mem_model="manual", mem_shape="40-40-8-128", mem_tokens=2048, mem_tp=4)
    layout = KVLayout.uniform(40, 8, 128)
    assert total(page).split(" = ")[0] == shown_size(page, kv_bytes(layout, 2048, tensor_parallel=4).total)
    page.locator("#kv-kv_heads").focus()
    page.keyboard.press("End")
    page.wait_for_url("**mem_shape=40-40-40-128*")
    page.locator("#kv-tp").select_option("16")
    expect(page.locator(".message")).to_contain_text("40 KV heads")
    page.locator("#kv-tp").select_option("8")
    expect(page.locator(".message")).to_have_text("")
    frame_drawn(page)
    wide = KVLayout.uniform(40, 40, 128)
    assert total(page).split(" = ")[0] == shown_size(page, kv_bytes(wide, 2048, tensor_parallel=8).total)
    slope = bytes_per_token(KVLayout.latent(40, 512, 64)).slope
    page.locator("#kv-tp").select_option("1")
    page.locator("#kv-mla").evaluate("(e) => { e.value = 6; e.oninput(); e.onchange(); }")
    page.wait_for_url("**mem_mla=512-64*")
    assert page.locator(".main-figs .fig b").nth(1).inner_text().replace("\u00a0", " ") == shown_size(
        page, slope
    )


def drop(page: Page, name: str, content: bytes) -> None:
    page.locator(".kv-calculator input[type=file]").set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    )


def test_a_config_and_a_gguf_file_become_the_model(calculator: Callable[..., Page]) -> None:
    page = calculator()
    drop(page, "config.json", json.dumps(CONFIGS["Nemotron-H-56B-Base-8K"]).encode())
    page.wait_for_url("**mem_model=custom*")
    layout = KVLayout.from_config(CONFIGS["Nemotron-H-56B-Base-8K"])
    expect(page.locator(".main-figs .fig b").first).to_contain_text(
        re.compile(r"^" + shown_number(page, layout, 4096))
    )
    drop(page, "gemma.gguf", gguf_bytes(GEMMA3_GGUF) + b"\0" * 100_000)
    page.wait_for_url("**mem_layers=W*")
    expect(page.locator(".source")).to_contain_text("15 layers keep a window")
    page.reload()
    page.wait_for_selector(".kv-calculator .main-figs .fig b")
    expect(page.locator(".source")).to_contain_text("15 layers keep a window")


def shown_number(page: Page, layout: KVLayout, n: int) -> str:
    return re.escape(shown_size(page, kv_bytes(layout, n).total)).replace(r"\ ", ".")


BAD_FILES = {
    "text": (b"hello", "Paste the whole file"),
    "deep": (b"[" * 200_000, "nested"),
    "unknown": (b'{"model_type": "brand_new"}', "does not know"),
    "gguf cut": (struct.pack("<IIQQ", 0x46554747, 3, 0, 5), "neither"),
    "gguf lies": (struct.pack("<IIQQ", 0x46554747, 3, 0, 2**60) + b"x" * 100, "neither"),
    "50 MB": (b" " * 50_000_000, "too large"),
}


@pytest.mark.parametrize(("content", "said"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_get_a_sentence(
    calculator: Callable[..., Page], tmp_path: Path, content: bytes, said: str
) -> None:
    page = calculator()
    file = tmp_path / "file.json"
    file.write_bytes(content)
    page.locator(".kv-calculator input[type=file]").set_input_files(file)
    page.wait_for_function(
        "(said) => [...document.querySelectorAll('[data-testid=stAlert], *')].some((e) => (e.shadowRoot ?? e)"
        ".textContent?.includes(said))",
        arg=said,
    )
    assert total(page) == "512 MiB = 536.87 MB"
    assert "mem_layers" not in page.url


def test_the_table_and_the_charts_can_be_saved(calculator: Callable[..., Page]) -> None:
    page = calculator(mem_model="jamba-v0.1", mem_tokens=1000)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the table (CSV)").click()
    lines = Path(download.value.path()).read_text(encoding="utf-8-sig").splitlines()
    rows = dict(line.split(",")[:2] for line in lines)
    got = kv_bytes(KVLayout.from_config(CONFIGS["Jamba-v0.1"]), 1000)
    assert (int(rows["ideal full"]), int(rows["ideal state"])) == (got.full, got.state)
    assert sum(int(n) for name, n in rows.items() if name.startswith("layer ")) == got.total
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the charts (PNG)").click()
    assert Path(download.value.path()).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_there_is_nothing_to_save_where_the_settings_are_impossible(calculator: Callable[..., Page]) -> None:
    page = calculator(mem_model="manual", mem_shape="40-40-8-128", mem_tokens=2048)
    buttons = [page.get_by_role("button", name=f"Save the {what}") for what in ("table (CSV)", "charts (PNG)")]
    for ranks, possible in (("16", True), ("3", False), ("1", True)):
        page.locator("#kv-tp").evaluate("(el, value) => { el.append(new Option(value)); el.value = value; }", ranks)
        page.locator("#kv-tp").dispatch_event("change")
        for button in buttons:
            expect(button).to_be_enabled(enabled=possible)


def pixels(page: Page) -> list[str]:
    return list(page.locator("canvas").evaluate_all("(all) => all.map((canvas) => canvas.toDataURL())"))


def saved_charts(page: Page) -> bytes:
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the charts (PNG)").click()
    return Path(download.value.path()).read_bytes()


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-12b"])
def test_a_picture_that_nobody_saw_change_is_right_when_seen_or_saved(
    calculator: Callable[..., Page], model: str
) -> None:
    """Canvases out of view are not drawn while a slider moves."""
    page = calculator(mem_model=model, height=500)
    page.locator("#kv-users").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_url("**mem_users=6*")
    before = pixels(page)
    # The other page too: the place for it grows while Streamlit still builds the rest around it.
    fresh = calculator(mem_model=model, mem_users=6, height=500)
    for canvas in [*page.locator("canvas").all(), *fresh.locator("canvas").all()]:
        canvas.scroll_into_view_if_needed()
        frame_drawn(canvas.page)
    for _ in range(50):  # the browser tells what is in view some frames later, on a busy machine much later
        if pixels(page) == pixels(fresh):
            break
        page.wait_for_timeout(100)
    assert pixels(page) == pixels(fresh)
    assert pixels(page) != before
    page.locator("#kv-users").focus()
    frame_drawn(page)
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**mem_users=7*")
    assert saved_charts(page) == saved_charts(calculator(mem_model=model, mem_users=7, height=500))


def test_a_button_keeps_the_focus_when_its_figures_change(calculator: Callable[..., Page]) -> None:
    page = calculator(mem_model="gemma-2b")
    button = page.locator(".step").nth(1)
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(button).to_be_focused()


def test_a_cell_of_the_map_sets_both_settings(calculator: Callable[..., Page]) -> None:
    page = calculator()
    canvas = page.locator("canvas.map")
    box = canvas.bounding_box()
    assert box
    canvas.click(position={"x": box["width"] - 10, "y": 10})
    page.wait_for_url("**mem_users=256*")
    assert "mem_tokens=1048576" in page.url
    assert canvas.evaluate("(e) => getComputedStyle(e.parentElement).opacity") == "1"


def test_what_fits_is_what_core_says(calculator: Callable[..., Page]) -> None:
    page = calculator(
        mem_model="llama-3.1-8b", mem_card="rtx-4090-24", mem_users=4, mem_tokens=8192, mem_over=1.5
    )
    free = 24_564 * 2**20 - 2 * 8_030_000_000 - int(1.5 * GIB)
    layout = KVLayout.uniform(32, 8, 128)
    figures = page.locator(".figs:not(.main-figs) .fig b").all_inner_texts()
    assert figures[2] == f"{max_tokens(layout, free, n_sequences=4):,}"
    assert figures[3] == f"{max_sequences(layout, free, 8192):,}"


def test_everything_can_be_done_by_keyboard(calculator: Callable[..., Page]) -> None:
    page = calculator()
    page.locator("#kv-users").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_url("**mem_users=4*")
    page.locator("details.more summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#kv-layers").is_visible()


@pytest.mark.parametrize(
    ("model", "look"),
    [
        ("gemma-4-31b", {"lang": "en", "theme": "dark", "width": 390}),
        ("whisper-large-v3", {"lang": "ja", "theme": "light", "width": 390}),
        ("nemotron-h-56b", {"lang": "ja", "theme": "dark", "width": 1280}),
        ("manual", {"lang": "en", "theme": "light", "width": 1280}),
    ],
)
def test_every_sort_of_model_is_readable_and_accessible(
    calculator: Callable[..., Page], model: str, look: dict[str, Any]
) -> None:
    page = calculator(mem_model=model, mem_cross=100, **look)
    wait_for_app(page)
    page.locator("details.more summary").last.click()
    page.wait_for_timeout(500)
    assert overflow_px(page) == 0
    found = axe_violations(page)
    assert not found, "\n".join(found)


def test_the_language_switch_keeps_the_model(calculator: Callable[..., Page]) -> None:
    page = calculator(mem_model="gpt-oss-120b", mem_tokens=5000)
    before = total(page)
    page.get_by_text("日本語").click()
    expect(page.get_by_role("heading", name="数値の入った式 計算")).to_be_visible()
    assert total(page) == before


def test_the_calculator_keeps_up_with_the_thumb(calculator: Callable[..., Page]) -> None:
    """From the input event to the frame that shows it, with every picture redrawn."""
    page = calculator(mem_model="nemotron-h-56b")
    times = input_to_paint_ms(page, "#kv-tokens", 100)
    assert len(times) > 30
    assert times[len(times) // 2] < 150  # this machine may be shared; alone it is a few milliseconds

"""The frame of every page: `page_frame()` is the first call of each, and gives it all it needs.

It sets the page's configuration and look, draws the links, the language switch, the model's status and the page's
question (as the h1) with its lead, reads the settings from the URL, and hands out a `Frame`. A page is one file with
one question; its prose is in `assets/text/<language>/<page>.toml`. A whole page looks like this (`pages/3_example.py`):

    import streamlit as st
    from pages.views import components, controls, settings
    from pages.views.frame import page_frame
    from pages.views.text import size

    settings.declare("layer", 0, int, settings.between(0, 29))       # lives in the URL; declare before page_frame()
    frame = page_frame("example")                                    # draws bar, h1 = text key `question`, `lead`
    trace = frame.trace                                              # the learner's finished run, else the recorded one
    frame.surprise(frame.md("surprise", n=trace.n_prompt))           # one sentence, computed from the run
    layer = controls.slider(frame, "layer", 0, trace.spec.n_layers - 1, 1)
    with frame.errors():                                             # an ExplainerError becomes one translated sentence
        components.mount("my_grid", {"layer": layer, "text": frame.t.group("grid")}, key="grid")
    frame.figures([(frame.t("fig.cache"), size(trace.kv_bytes), "measured"), (frame.t("fig.tokens"), "34", "computed")])
    frame.myth(frame.md("myth"))                                     # the misconception, beside what dislodges it
    frame.predict("pass_count", frame.t("predict.q"), ["1", "33", "34"], 0, frame.md("predict.why"))
    frame.try_this(frame.md("try"))                                  # something to do, with a known outcome
    if frame.loaded is None:                                         # the model may still be loading: never wait for it
        st.caption(frame.t("model.needed"))
    frame.next_page()

Text given to `surprise`, `myth`, `try_this` and `predict` is Markdown. Use `frame.md(key, **values)` for sentences
that hold a learner's or a model's words: the values are escaped.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from core.errors import ExplainerError
from pages.views import cache, components, live
from pages.views import settings as settings_module
from pages.views.settings import Settings
from pages.views.text import LANGUAGES, Text, escape_markdown

if TYPE_CHECKING:
    from core.model import LoadedModel
    from core.scheduler import Run
    from core.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
_PAGE = re.compile(r"^(\d+)_([a-z0-9_]+)$")
_log = logging.getLogger("otat")

Figure = tuple[str, str] | tuple[str, str, str] | tuple[str, str, str, str | None]


@dataclass(frozen=True)
class Page:
    """A page as the navigation knows it: its name (also its URL path) and its file relative to app.py."""

    name: str
    file: str


def all_pages() -> tuple[Page, ...]:
    """Home, then every `pages/<n>_<name>.py` in the order of n. A new page is found by being there."""
    found = []
    for path in (ROOT / "pages").glob("*.py"):
        match = _PAGE.match(path.stem)
        if match:
            found.append((int(match[1]), Page(match[2], f"pages/{path.name}")))
    return (Page("home", "app.py"), *(page for _, page in sorted(found, key=lambda item: item[0])))


class Frame:
    """What a page gets from `page_frame()`. See the module's docstring for a whole page."""

    def __init__(self, page: str, lang: str, settings: Settings) -> None:
        self.page, self.lang, self.settings = page, lang, settings
        self.t = Text(lang, page)
        self.md = self.t.md

    # --- the run -----------------------------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """The learner's current finished run, or the recorded one."""
        return live.finished_trace() or cache.recorded_trace()

    @property
    def run(self) -> Run | None:
        """The learner's latest live run in any state, or None."""
        return live.current_run()

    @property
    def loaded(self) -> LoadedModel | None:
        """The model, or None while it is still loading."""
        return cache.engine().loaded

    @property
    def scheduler(self) -> Any:
        """The scheduler that all sessions share, or None while the model is still loading."""
        return cache.engine().scheduler

    @property
    def dark(self) -> bool:
        """True where Streamlit's theme is dark (for charts.py; components follow the theme by themselves)."""
        return not self.settings.get("projector") and st.context.theme.type == "dark"

    # --- errors ------------------------------------------------------------------------------------------------------

    def explain(self, error: ExplainerError, *, markdown: bool = True) -> str:
        """The sentence of `error` in the learner's language, as Markdown with escaped values, or as plain text.

        A value `why` names a translated `reason` (text key `reason.<why>`); `name` may be the name of a control.
        """
        if self.t.find(f"error.{error.code}") is None:
            return escape_markdown(error) if markdown else str(error)
        values = dict(error.values)
        for value, key in (
            ("reason", f"reason.{values.get('why')}"),
            ("name", f"control.{values.get('name')}"),
        ):
            if isinstance(self.t.find(key), str):
                values[value] = self.t(key)
        return (self.md if markdown else self.t)(f"error.{error.code}", **values)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Show an ExplainerError as one sentence. Anything else is logged and shown as one plain sentence."""
        try:
            yield
        except ExplainerError as error:
            st.error(self.explain(error), icon=":material/info:")
        except Exception:
            _log.exception("Unexpected error on page %s", self.page)
            st.error(self.t("error.unexpected"), icon=":material/report:")

    # --- figures -----------------------------------------------------------------------------------------------------

    def figure(
        self, label: str, value: str, kind: str = "measured", help: str | None = None, page: str | None = None
    ) -> None:
        """One number with what it is and how we know it: measured here now, computed, or simulated.

        `page` names the page that explains it: a link to it follows the label where that page exists.
        """
        tip = f' title="{html.escape(help)}"' if help else ""
        tag = f'<em class="otat-kind {kind}">{html.escape(self.t(f"kind.{kind}"))}</em>'
        st.html(
            f'<div class="otat-fig"{tip}><b>{html.escape(value)}</b><span>{html.escape(label)} {tag}</span></div>'
        )
        if page and page != self.page:
            self.link(page, self.t("see", page=Text(self.lang, page)("nav")))

    def figures(self, figures: Sequence[Figure]) -> None:
        """A row of figures: tuples (label, value[, kind[, page]])."""
        with st.container(horizontal=True):
            # Marks instead of keys: they may be drawn again and again by a fragment. frame.css styles their container.
            st.html('<span class="otat-mark figs"></span>')
            for label, value, *more in figures:
                with st.container(gap=None):
                    self.figure(label, value, *more[:1], page=more[1] if len(more) > 1 else None)

    # --- learning furniture ------------------------------------------------------------------------------------------

    def surprise(self, text: str) -> None:
        """One sentence that surprises, computed from the run."""
        self._block("surprise", text)

    def myth(self, text: str) -> None:
        """A misconception and why it is wrong. Put it beside the widget that dislodges it."""
        self._block("myth", text, self.t("myth"))

    def try_this(self, text: str) -> None:
        """Something to do, with what to expect."""
        self._block("try", text, self.t("try_this"))

    def _block(self, kind: str, text: str, tag: str = "") -> None:
        with st.container(gap="xxsmall"):
            st.html(f'<span class="otat-mark {kind}"></span>')
            if tag:
                st.html(f'<span class="otat-tag">{html.escape(tag)}</span>')
            st.markdown(text)

    def predict(
        self, key: str, question: str, options: Sequence[str], answer_index: int, explanation: str
    ) -> bool:
        """Predict, then reveal. Returns True once the learner has answered (so that more can be shown).

        Options are Markdown (escape tokens with `text.escape_markdown`); `explanation` says why, from the run.
        """
        store = f"otat_answer_{self.page}_{key}"
        widget = f"otat_radio_{self.page}_{key}"
        asked, answer = st.session_state.get(store, (answer_index, None))
        if asked != answer_index:  # another run, other figures: the right answer stands elsewhere in the list
            st.session_state.pop(store)
            st.session_state.pop(widget, None)
        elif widget not in st.session_state and answer is not None:
            st.session_state[widget] = answer
        with st.container(border=True, key=f"otat_predict_{self.page}_{key}", gap="small"):
            st.html(f'<span class="otat-tag">{html.escape(self.t("predict.title"))}</span>')
            choice = st.radio(
                question, range(len(options)), index=None, format_func=lambda i: options[i], key=widget
            )
            if choice is None:
                return False
            st.session_state[store] = (answer_index, choice)
            key = "predict.right" if choice == answer_index else "predict.wrong"
            st.markdown(f"{self.t(key, answer=options[answer_index])} {explanation}")
        return True

    def chart(self, figure: Any, key: str, alt: str) -> None:
        """A plotly figure made with charts.py. `alt` says in one sentence what it shows."""
        from pages.views.charts import CONFIG

        if self.settings.get("projector"):
            figure.update_layout(font_size=18)
        st.plotly_chart(figure, key=key, alt=alt, theme=None, config=CONFIG)

    def link(self, page: str, label: str | None = None, icon: str | None = None) -> None:
        """A link to another page that keeps all settings; nothing where that page does not exist (yet)."""
        for known in all_pages():
            if known.name == page:
                text = label or Text(self.lang, page)("nav")
                st.page_link(known.file, label=text, icon=icon, query_params=self.settings.query())

    def next_page(self) -> None:
        """The last line of every page: the next question. Nothing after the last one."""
        pages = all_pages()
        for page in pages[[known.name for known in pages].index(self.page) + 1 :][:1]:
            with st.container(key="otat_next", gap=None):
                st.html(f'<span class="otat-tag">{html.escape(self.t("next"))}</span>')
                self.link(page.name, Text(self.lang, page.name)("question"), icon=":material/arrow_forward:")


def page_frame(page: str) -> Frame:
    """The first call of every page (see the module's docstring). `page` is the file's name without its number."""
    settings = settings_module.current()
    before = st.session_state.get("otat_page")
    if before != page:
        settings.rejected.clear()
        st.session_state["otat_page"] = page
    if before in (None, page):
        # From page to page the settings themselves travel. A link's URL was written when its page was last drawn whole,
        # and may be older than what was chosen on it since.
        settings.pull(st.query_params)
    frame = Frame(page, _language(settings), settings)
    st.set_page_config(
        page_title=f"{frame.t('title')} · {frame.t('app')}", page_icon=str(ROOT / "assets" / "icon.svg"), layout="wide",
        initial_sidebar_state="collapsed",
    )  # fmt: skip
    visited = st.session_state.setdefault("otat_visited", set())
    visited.add(page)
    settings_module.write_url(settings)
    live.resume(settings)
    st.html(f"<style>{_css(bool(settings.get('projector')))}</style>")
    components.set_document_language(frame.lang)
    _bar(frame)
    with st.container(key="otat_model"):
        live.status(frame)
    _notices(frame)
    st.title(frame.t("question"), anchor=False)
    st.html(f'<p class="otat-lead">{html.escape(frame.t("lead", **_facts(frame)))}</p>')
    return frame


def _facts(frame: Frame) -> dict[str, object]:
    """Placeholders that every `lead` may use. Empty where there is no run to look at."""
    try:
        trace = frame.trace
    except ExplainerError:
        return {}
    return {
        "prompt": " ".join(trace.prompt.split())[:60],
        "model": trace.spec.name,
        "n_layers": trace.spec.n_layers,
        "n_prompt": trace.n_prompt,
        "n_generated": trace.n_generated,
        "vocab_size": f"{trace.spec.vocab_size:,}",
    }


def _language(settings: Settings) -> str:
    chosen = settings.get("lang")
    if chosen in LANGUAGES:
        return str(chosen)
    locale = st.context.locale or ""
    return "ja" if str(locale).lower().startswith("ja") else "en"


def _css(projector: bool) -> str:
    style = (ROOT / "assets" / "frame.css").read_text(encoding="utf-8")
    extra = (ROOT / "assets" / "projector.css").read_text(encoding="utf-8") if projector else ""
    return style + extra


def _set_language(key: str) -> None:
    settings = settings_module.current()
    settings.set("lang", st.session_state[key])
    settings_module.write_url(settings)


def _bar(frame: Frame) -> None:
    with st.container(key="otat_bar", horizontal=True, vertical_alignment="center"):
        with st.container(key="otat_nav", horizontal=True, vertical_alignment="center"):
            for page in all_pages():
                label = Text(frame.lang, page.name)("nav")
                # The container marks where the learner is: on a phone the row of links starts scrolled to it.
                with st.container(key="otat_here", gap=None) if page.name == frame.page else nullcontext():
                    st.page_link(page.file, label=label, query_params=frame.settings.query(), icon="")
        with st.container(key="otat_tools", horizontal=True, vertical_alignment="center"):
            key = f"otat_lang_{frame.page}"
            if st.session_state.get(key) != frame.lang:  # see controls._prepare
                st.session_state[key] = frame.lang
            st.segmented_control(
                frame.t("language"), LANGUAGES, format_func={"en": "EN", "ja": "日本語"}.get, key=key, required=True,
                label_visibility="collapsed", on_change=_set_language, args=(key,),
            )  # fmt: skip
            from pages.views import controls

            controls.toggle(frame, "projector")


def _notices(frame: Frame) -> None:
    rejected = list(
        dict.fromkeys(frame.settings.rejected)
    )  # stays until the learner changes something or the page
    status = cache.engine().status
    if status.failed:
        sentence = frame.explain(status.error) if status.error else frame.t("model.unexpected")
        st.error(sentence, icon=":material/info:")
        st.button(frame.t("model.retry"), key=f"otat_retry_{frame.page}", on_click=cache.engine().start)
    if rejected:
        names = ", ".join(str(frame.t.find(f"control.{name}") or name) for name in rejected)
        st.warning(frame.md("url.rejected", names=names), icon=":material/info:")


def path_of_pages(frame: Frame) -> None:
    """All questions in their order, with what was already visited."""
    visited = st.session_state.get("otat_visited", set())
    pages = [page for page in all_pages() if page.name != "home"]
    if not pages:
        return
    st.subheader(frame.t("path.title"), anchor=False)
    with st.container(key="otat_path"):
        for page in pages:
            text = Text(frame.lang, page.name)
            seen = f"<i>✓ {html.escape(frame.t('path.visited'))}</i>" if page.name in visited else ""
            with st.container(key=f"otat_path_{page.name}", gap=None):
                st.html(f'<span class="otat-tag">{html.escape(text("nav"))}{seen}</span>')
                st.page_link(page.file, label=text("question"), query_params=frame.settings.query(), icon="")

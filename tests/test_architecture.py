"""The shape of the house, checked by reading the code rather than by running it.

Arrows point one way: app → pages → pages/views → core. The science (`core`) knows nothing of the screen, parts of it
need no torch, and both languages say the same things. A rule that nobody checks is a wish.
"""

from __future__ import annotations

import ast
import re
import statistics
import string
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import core.errors
from tests.conftest import ROOT

CORE = sorted((ROOT / "core").glob("*.py"))
VIEWS = sorted((ROOT / "pages" / "views").glob("*.py"))
PAGES = sorted((ROOT / "pages").glob("*.py"))
APP = ROOT / "app.py"
TOOLS = sorted((ROOT / "tools").glob("*.py"))
SOURCES = [*CORE, *VIEWS, *PAGES, APP, *TOOLS]
TEXT = ROOT / "assets" / "text"

# Usable in a notebook, a script or a phone's Python without a 200 MB import.
WITHOUT_TORCH = [
    "attention", "errors", "kv_gguf", "kv_logs", "kv_memory", "latency", "sampling", "spec", "streaming", "tokenizer",
    "trace",
]  # fmt: skip
MAX_FUNCTION_LINES, MEDIAN_FUNCTION_LINES, MAX_PAGE_LINES = 50, 12, 120
REQUIRED_TEXT = ("title", "question", "nav", "lead")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=name_of)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports_of(path: Path) -> set[str]:
    """Every dotted name that the file imports, those for type checkers included."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} imports relatively; write the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def reaches(path: Path, *forbidden: str) -> set[str]:
    return {name for name in imports_of(path) if any(f"{name}.".startswith(f"{top}.") for top in forbidden)}


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def n_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring: explaining is never what makes a function long."""
    docstring = function.body[0] if ast.get_docstring(function, clean=False) is not None else None
    explained = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return function.end_lineno - function.lineno + 1 - explained


# ---- directions ------------------------------------------------------------------------------------------------------


@each(CORE)
def test_core_knows_nothing_of_the_screen(path: Path) -> None:
    assert not reaches(path, "streamlit", "plotly", "pages", "app", "tests", "tools")


@each(VIEWS)
def test_views_import_core_and_each_other_only(path: Path) -> None:
    outwards = {name for name in reaches(path, "pages") if not name.startswith("pages.views")}
    assert not outwards | reaches(path, "app", "tests", "tools")


@each([*PAGES, APP])
def test_pages_do_not_import_each_other(path: Path) -> None:
    sideways = {name for name in reaches(path, "pages") if not name.startswith("pages.views")}
    assert not sideways | reaches(path, "app", "tests", "tools")


@each([*PAGES, *VIEWS, APP])
def test_pages_leave_mathematics_to_core(path: Path) -> None:
    """torch in a page would be imported by the server's script thread, before the first paint."""
    at_import = {
        name for name in module_level_imports(path) if name.split(".")[0] in ("torch", "transformers")
    }
    assert not at_import


def test_caches_live_in_one_file() -> None:
    """What is shared between learners must be seen in one place: pages/views/cache.py."""
    users = [
        name_of(path)
        for path in [*PAGES, *VIEWS, APP]
        if path.name != "cache.py"
        and re.search(r"\bcache_(data|resource)\b", path.read_text(encoding="utf-8"))
    ]
    assert not users


def test_charts_draw_without_streamlit() -> None:
    assert not reaches(ROOT / "pages" / "views" / "charts.py", "streamlit")


def module_level_imports(path: Path) -> set[str]:
    """What importing the file imports at once: not inside functions, not for type checkers only."""
    found: set[str] = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""}
    return found


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_imports_without_torch(module: str) -> None:
    """Asked of a new interpreter, since this one may have torch already."""
    heavy = "{'torch', 'transformers', 'streamlit', 'plotly'}"
    code = f"import sys, core.{module}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


# ---- size and manners ------------------------------------------------------------------------------------------------


@each(SOURCES)
def test_every_module_says_what_it_is_about(path: Path) -> None:
    words = (ast.get_docstring(tree_of(path)) or "").split()
    assert len(words) >= (20 if path in CORE else 5), "a module begins with what a newcomer should know"


@each(CORE)
def test_every_function_in_core_has_a_return_type(path: Path) -> None:
    assert not [f"{f.name}, line {f.lineno}" for f in functions_of(path) if f.returns is None]


@each(CORE)
def test_no_function_in_core_is_long(path: Path) -> None:
    assert not {f.name: n_lines(f) for f in functions_of(path) if n_lines(f) > MAX_FUNCTION_LINES}


def test_the_median_function_in_core_is_short() -> None:
    lengths = [n_lines(f) for path in CORE for f in functions_of(path)]
    assert statistics.median(lengths) < MEDIAN_FUNCTION_LINES


@each([*PAGES, APP])
def test_a_page_fits_on_a_few_screens(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MAX_PAGE_LINES


@each(CORE)
def test_public_dataclasses_are_frozen(path: Path) -> None:
    """A step that nobody can change can be shared by threads and drawn again. Arrays make `==` ambiguous: eq=False."""
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        for decorator in node.decorator_list:
            if ast.unparse(decorator).split("(")[0] in ("dataclass", "dataclasses.dataclass"):
                options = ast.unparse(decorator)
                assert "frozen=True" in options, f"{node.name} can be changed"
                fields = " ".join(
                    ast.unparse(f.annotation) for f in node.body if isinstance(f, ast.AnnAssign)
                )
                if re.search(r"NDArray|ndarray|Tensor\b", fields):
                    assert "eq=False" in options, f"{node.name} holds arrays and compares them with =="


TRACKED_SUFFIXES = {".py", ".toml", ".md", ".txt", ".js", ".css", ".html", ".json", ".yml", ".yaml", ""}
LOCAL_PATH = re.compile(r"(?<![\w.~$})])/(?:work|root|home|Users|farm|tmp|opt|mnt)/[\w.]")


def test_no_file_names_a_path_of_one_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    files = [ROOT / name for name in listed if Path(name).suffix in TRACKED_SUFFIXES] or SOURCES
    hits = [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in files
        if path.is_file()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if LOCAL_PATH.search(line)
    ]
    assert not hits


@each(sorted((ROOT / "assets" / "components").rglob("*.js")))
def test_components_never_parse_text_as_html(path: Path) -> None:
    """Token text comes from whoever typed it: it goes through textContent."""
    code = path.read_text(encoding="utf-8")
    assert not re.findall(
        r"\.(?:innerHTML|outerHTML)\s*\+?=(?!=)|insertAdjacentHTML|document\.write|\beval\(", code
    )


# ---- pages are found, not listed -------------------------------------------------------------------------------------


def page_name(path: Path) -> str:
    return re.sub(r"^\d+_", "", path.stem)


def test_page_files_are_numbered_and_named_once() -> None:
    assert all(re.fullmatch(r"\d+_[a-z0-9_]+", path.stem) for path in PAGES), PAGES
    names = [page_name(path) for path in PAGES]
    assert len(names) == len(set(names))
    assert not (ROOT / "pages" / "__init__.py").exists(), "Streamlit would show it as a page"


NEW_PAGE = '''"""A page that did not exist a moment ago."""
from pages.views.frame import page_frame

page_frame("extra")
'''
SEE_LINKS = """
from streamlit.testing.v1 import AppTest
home = AppTest.from_file("app.py", default_timeout=60).run()
assert not home.exception, home.exception
print("links:", [link.proto.label for link in home.get("page_link")])
new = home.switch_page("pages/99_extra.py").run()
assert not new.exception, new.exception
print("title:", [header.value for header in new.header], [title.value for title in new.title],
      [text.value for text in new.markdown])
"""


def test_a_new_page_is_one_file_and_its_text(tmp_path: Path) -> None:
    """No list to extend: the navigation of a copy of the app finds a page that nobody told it about."""
    copy_app(tmp_path)
    (tmp_path / "pages" / "99_extra.py").write_text(NEW_PAGE, encoding="utf-8")
    for lang in ("en", "ja"):
        text = "\n".join(f'{key} = "Extra {key}"' for key in REQUIRED_TEXT)
        (tmp_path / "assets" / "text" / lang / "extra.toml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", SEE_LINKS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    links, title = done.stdout.split("title:")
    assert "Extra nav" in links
    assert "Extra question" in title


def copy_app(folder: Path) -> None:
    import shutil

    shutil.copy(APP, folder)
    for name in ("core", "pages", "assets", ".streamlit"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


# ---- both languages --------------------------------------------------------------------------------------------------


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """{"a": {"b": "text"}} → {"a.b": "text"}; lists are numbered."""
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, list):
            value = {str(i): item for i, item in enumerate(value)}
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = str(value)
    return found


@cache
def text_of(lang: str, name: str) -> dict[str, str]:
    return flat(tomllib.loads((TEXT / lang / f"{name}.toml").read_text(encoding="utf-8")))


def placeholders(text: str) -> set[str]:
    """The names in {braces}, without what follows them: {ratio:.1f} and {ratio} ask for the same value."""
    return {
        re.split(r"[.\[]", field)[0] for _, field, _, _ in string.Formatter().parse(text) if field is not None
    }


TEXT_FILES = sorted({path.stem for path in TEXT.rglob("*.toml")})
APP_NAME = "One Token at a Time"
JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


@pytest.mark.parametrize("name", TEXT_FILES)
def test_both_languages_have_the_same_keys(name: str) -> None:
    english, japanese = text_of("en", name), text_of("ja", name)
    assert english.keys() ^ japanese.keys() == set()


@pytest.mark.parametrize("name", TEXT_FILES)
def test_both_languages_have_the_same_placeholders(name: str) -> None:
    english, japanese = text_of("en", name), text_of("ja", name)
    differ = {
        key: (placeholders(text), placeholders(japanese[key]))
        for key, text in english.items()
        if key in japanese and placeholders(text) != placeholders(japanese[key])
    }
    assert not differ


def n_words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", re.sub(r"\{[^}]*\}", "", text)))


@pytest.mark.parametrize("name", TEXT_FILES)
def test_japanese_text_is_japanese(name: str) -> None:
    """A sentence left in English is a sentence that was forgotten; names, formulas and code may look the same."""
    english, japanese = text_of("en", name), text_of("ja", name)
    forgotten = [
        key
        for key, text in japanese.items()
        if n_words(text) >= 4 and text == english.get(key) != APP_NAME and not JAPANESE.search(text)
    ]
    assert not forgotten


@pytest.mark.parametrize("lang", ["en", "ja"])
@pytest.mark.parametrize("name", [page_name(path) for path in PAGES])
def test_every_page_has_its_text(name: str, lang: str) -> None:
    text = text_of(lang, name)
    assert [key for key in REQUIRED_TEXT if not text.get(key, "").strip()] == []


def error_classes() -> list[type[core.errors.ExplainerError]]:
    classes, waiting = [], [core.errors.ExplainerError]
    while waiting:
        found = waiting.pop()
        classes.append(found)
        waiting += found.__subclasses__()
    return [found for found in classes if found is not core.errors.ExplainerError]


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_every_error_is_a_sentence_in_both_languages(lang: str) -> None:
    texts = text_of(lang, "common")
    for error in error_classes():
        text = texts.get(f"error.{error.code}")
        assert text, f"error.{error.code} is missing from {lang}/common.toml"
        assert placeholders(text) <= placeholders(error.template), (
            f"error.{error.code} asks for unknown values"
        )


def test_error_codes_are_unique_and_defined_in_one_file() -> None:
    codes = [error.code for error in error_classes()]
    assert len(codes) == len(set(codes))
    elsewhere = [
        f"{name_of(path)}: {node.name}"
        for path in SOURCES
        if path.name != "errors.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("ExplainerError") for base in node.bases)
    ]
    assert not elsewhere, "errors have texts in two languages, so they live together in core/errors.py"

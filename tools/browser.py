"""Find a Chromium for the browser tests, or install one.

`python tools/browser.py` prints the path of a browser that starts. Looked for in this order: the variable `CHROMIUM`,
the browsers a machine usually has, then the one that Playwright keeps in the user's cache. With `--install` a missing
one is installed: from Debian's packages where we are root, else by `playwright install chromium`, which needs the
internet. Japanese text needs a font with Japanese in it, so that is looked after too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
DEBIAN_PACKAGES = ("chromium", "fonts-noto-cjk", "fonts-noto-color-emoji")
HELP = (
    "No Chromium or Chrome was found for the browser tests. Install one (Debian, Ubuntu: apt-get install chromium "
    "fonts-noto-cjk; anywhere with internet: .venv/bin/python -m playwright install chromium), or set CHROMIUM to the "
    "path of one."
)


def find_browser() -> str | None:
    """The path of a Chromium-like browser, or None."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    found = (shutil.which(name) for name in NAMES)
    return next(
        (path for path in (*found, *PLACES, _playwrights_own()) if path and Path(path).exists()), None
    )


def _playwrights_own() -> str | None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        return str(playwright.chromium.executable_path)


def install() -> None:
    """Install what is missing: the browser, and on Debian the fonts that the screenshots need."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        if find_browser() is None or not _has_japanese_font():
            _call("apt-get", "update", "-qq")
            _call("apt-get", "install", "-y", "-qq", "--no-install-recommends", *DEBIAN_PACKAGES)
    elif find_browser() is None:
        _call(sys.executable, "-m", "playwright", "install", "chromium")


def _has_japanese_font() -> bool:
    if not shutil.which("fc-list"):
        return False
    fonts = subprocess.run(["fc-list", ":lang=ja", "family"], capture_output=True, text=True, check=False)
    return bool(fonts.stdout.strip())


def _call(*command: str) -> None:
    # The installers' own talk goes to stderr: stdout holds the path and nothing else.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, env=environment, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)


def main() -> int:
    if "--install" in sys.argv[1:]:
        install()
    path = find_browser()
    print(path or HELP, file=sys.stdout if path else sys.stderr)
    return 0 if path else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The site, built once for each worker with the configuration of `make site`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built pages. The build fails at a page without navigation and at a wrong
    link or anchor.
    """
    for module in ("material", "mkdocstrings", "mkdocs_awesome_nav"):
        if importlib.util.find_spec(module) is None:
            pytest.skip("no documentation tools: pip install 'embedlog[docs]'")
    folder = tmp_path_factory.mktemp("site") / "pages"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    # A proxy without a listener: a build that loads anything fails.
    offline = dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    )
    environment = os.environ | offline | {"NO_MKDOCS_2_WARNING": "1"}
    answer = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    return folder

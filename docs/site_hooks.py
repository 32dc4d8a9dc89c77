"""What mkdocs does beside its own: the site has the reports too, so that links to them lead
somewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[1]
SHOWN: Final = ("*.md", "*.png", "*.svg", "*.html", "*.json")
"""Files of the reports that pages link to."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the reports beside the pages of the documentation."""
    for pattern in SHOWN:
        for path in sorted((ROOT / "reports").rglob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File(name, str(ROOT), config["site_dir"], use_directory_urls=False))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are on the site, where pages of `docs` lie beside the folder of reports."""
    if page.file.src_uri.startswith("reports/"):
        return markdown.replace("../docs/", "../")
    return markdown.replace("](../reports/", "](reports/")

"""The pytest plugin: an implementation is a parameter, a verdict a row, a session a decision.

Inert where no test uses the fixture `kernel`. Importing it imports no torch.
"""

from __future__ import annotations

from kdaverify.plugin.collect import pytest_collection_modifyitems, pytest_generate_tests
from kdaverify.plugin.crashes import (
    pytest_configure_node,
    pytest_handlecrashitem,
    pytest_runtest_protocol,
)
from kdaverify.plugin.judging import (
    bounds,
    judge,
    kernel,
    pytest_runtest_call,
    pytest_runtest_makereport,
    pytest_runtest_setup,
)
from kdaverify.plugin.options import pytest_addoption, pytest_configure, pytest_report_header
from kdaverify.plugin.session import (
    pytest_sessionfinish,
    pytest_sessionstart,
    pytest_terminal_summary,
    pytest_unconfigure,
)

__all__ = [
    "bounds", "judge", "kernel", "pytest_addoption", "pytest_collection_modifyitems",
    "pytest_configure", "pytest_configure_node", "pytest_generate_tests", "pytest_handlecrashitem",
    "pytest_report_header", "pytest_runtest_call", "pytest_runtest_makereport",
    "pytest_runtest_protocol", "pytest_runtest_setup", "pytest_sessionfinish",
    "pytest_sessionstart", "pytest_terminal_summary", "pytest_unconfigure",
]  # fmt: skip
